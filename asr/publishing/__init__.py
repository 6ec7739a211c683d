"""Models written for others: ONNX programs, a page that recognises in the browser, a folder for a hub."""
