"""Building models with TensorRT for RTX, without a GPU, to see whether TensorRT will take them."""
