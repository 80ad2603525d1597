"""`tritonstack infer`: one request from the command line."""
