"""From a PyTorch model to a checked entry of a Triton model repository."""
