"""TensorRT engines: built in a subprocess from ONNX files, kept in a content-addressed cache, put into a repository."""
