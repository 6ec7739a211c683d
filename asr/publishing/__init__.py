"""Export of models for other programs: ONNX files, a page that recognises in the browser, a folder for a hub."""
