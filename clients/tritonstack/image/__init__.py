"""Pictures to tensors: how a file becomes a model's input, described by data that travels with the model."""

from tritonstack.image.preprocessing import ImagePreprocessing, Resize

__all__ = ["ImagePreprocessing", "Resize"]
