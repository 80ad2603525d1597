"""The embedded tritonserver and everything around running it."""
