"""Names of the files of an exported model, and of the inputs and outputs of its programs."""

from collections.abc import Collection

ONNX = ".onnx"  # the end of a program's name
PROGRAM = "model.onnx"  # of features, to log_probs
WAVEFORM = "model-waveform.onnx"  # with the features inside
SHERPA = "model-sherpa.onnx"  # as sherpa-onnx reads it
ENCODER = "encoder.onnx"  # of a transducer, of features
ENCODER_WAVEFORM = "encoder-waveform.onnx"  # with the features inside
PREDICTOR, JOINER = "predictor.onnx", "joiner.onnx"  # the rest of a transducer
SHERPA_ENCODER = "encoder-sherpa.onnx"  # the three of a transducer as sherpa-onnx reads them, blank last
SHERPA_DECODER, SHERPA_JOINER = "decoder-sherpa.onnx", "joiner-sherpa.onnx"
SHERPA_TRANSDUCER = (SHERPA_ENCODER, SHERPA_DECODER, SHERPA_JOINER)
STEP = "step.onnx"  # by which a stream goes on
FRONT_END = "features.onnx"  # of waveforms, for a stream
PROGRAMS = (
    *(PROGRAM, WAVEFORM, SHERPA, ENCODER, ENCODER_WAVEFORM, PREDICTOR, JOINER, *SHERPA_TRANSDUCER),
    *(STEP, FRONT_END),
)
OPENED = (PROGRAM, ENCODER, PREDICTOR, JOINER, STEP)  # by asr itself
NETS = {PROGRAM: WAVEFORM, ENCODER: ENCODER_WAVEFORM}  # one of which each exported model has

FEATURES, FEATURE_LENGTHS = "features", "feature_lengths"
WAVEFORMS, SAMPLE_COUNTS = "waveforms", "sample_counts"
NET_INPUTS, FRONT_END_INPUTS = (FEATURES, FEATURE_LENGTHS), (WAVEFORMS, SAMPLE_COUNTS)
LOG_PROBS, LENGTHS = "log_probs", "log_probs_lengths"
NET_OUTPUTS = (LOG_PROBS, LENGTHS)
ENCODER_OUT, PREDICTOR_OUT = "encoder_out", "predictor_out"  # as a transducer's joiner takes them
ENCODER_OUTPUTS = (ENCODER_OUT, LENGTHS)
HYBRID_OUTPUTS = (ENCODER_OUT, LOG_PROBS, LENGTHS)  # beside a CTC head
TOKENS, STATE, NEXT_STATE = "tokens", "state", "next_state"
PREDICTOR_NAMES = ((TOKENS, STATE), (PREDICTOR_OUT, NEXT_STATE))
JOINER_NAMES = ((ENCODER_OUT, PREDICTOR_OUT), (LOG_PROBS,))
NEXT = "next."  # before the name of a stream's state after a step


def step_names(state: Collection[str]) -> tuple[list[str], list[str]]:
    """Inputs and outputs of the program of a stream's step, given the names of its state."""
    return [*NET_INPUTS, *state], [*NET_OUTPUTS, *(f"{NEXT}{name}" for name in state)]
