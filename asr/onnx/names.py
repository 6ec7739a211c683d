"""What the files of an exported model are called."""

ONNX = ".onnx"  # the end of a program's name
PROGRAM = "model.onnx"  # of features, to log_probs
WAVEFORM = "model-waveform.onnx"  # with the features inside
SHERPA = "model-sherpa.onnx"  # as sherpa-onnx reads it
ENCODER = "encoder.onnx"  # of a transducer, of features
ENCODER_WAVEFORM = "encoder-waveform.onnx"  # with the features inside
PREDICTOR, JOINER = "predictor.onnx", "joiner.onnx"  # the rest of a transducer
STEP = "step.onnx"  # by which a stream goes on
FRONT_END = "features.onnx"  # of waveforms, for a stream
PROGRAMS = (PROGRAM, WAVEFORM, SHERPA, ENCODER, ENCODER_WAVEFORM, PREDICTOR, JOINER, STEP, FRONT_END)
OPENED = (PROGRAM, ENCODER, PREDICTOR, JOINER, STEP)  # by asr itself
NETS = {PROGRAM: WAVEFORM, ENCODER: ENCODER_WAVEFORM}  # one of which each exported model has
