"""A model as ONNX: how it is written down, compared, made smaller, and run by ONNX Runtime."""
