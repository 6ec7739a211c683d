"""What the files of an exported model are called."""

ONNX = ".onnx"  # the end of a program's name
PROGRAM = "model.onnx"  # of features
WAVEFORM = "model-waveform.onnx"  # with the features inside
SHERPA = "model-sherpa.onnx"  # as sherpa-onnx reads it
PROGRAMS = (PROGRAM, WAVEFORM, SHERPA)
