"""The process that holds TensorRT: started by `tritonstack_export.engine.build`, one per build.

It needs the standard library and the TensorRT module only, so that it also runs under another interpreter. It reads
one JSON request from stdin and writes JSON lines: `progress`, `message`, then one `done` or `failed`.
"""
