"""Models exported to ONNX, run by ONNX Runtime."""
