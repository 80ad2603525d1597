"""The command `tritonstack serve`."""
