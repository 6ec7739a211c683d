"""Exported programs as a model: opened and run by ONNX Runtime."""
