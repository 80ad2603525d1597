from tritonstack.command import run

run()
