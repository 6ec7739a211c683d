"""Export of models for other programs: ONNX files, a page that recognises speech in the browser, a folder for a hub."""
