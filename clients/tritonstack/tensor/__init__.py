"""Tensors between numpy and Triton's wire: data types, specs, checks, and the BYTES encoding."""
