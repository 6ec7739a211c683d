"""Names of an exported model's files, and of the inputs and outputs of its programs."""

from collections.abc import Collection

ONNX = ".onnx"  # suffix of programs
PROGRAM = "model.onnx"  # maps features to log_probs
WAVEFORM = "model-waveform.onnx"  # maps waveforms to log_probs
SHERPA = "model-sherpa.onnx"  # a CTC model in sherpa-onnx's format
ENCODER = "encoder.onnx"  # encoder of a transducer; its input is features
ENCODER_WAVEFORM = "encoder-waveform.onnx"  # encoder of a transducer; its input is waveforms
PREDICTOR, JOINER = "predictor.onnx", "joiner.onnx"  # prediction network and joiner of a transducer
SHERPA_ENCODER = "encoder-sherpa.onnx"  # a transducer in sherpa-onnx's format, with the blank last
SHERPA_DECODER, SHERPA_JOINER = "decoder-sherpa.onnx", "joiner-sherpa.onnx"
SHERPA_STREAM = "encoder-stream-sherpa.onnx"  # one step of a stream; replaces the encoder above
SHERPA_HEAD = (SHERPA_DECODER, SHERPA_JOINER)
SHERPA_TRANSDUCER, SHERPA_STREAMER = (SHERPA_ENCODER, *SHERPA_HEAD), (SHERPA_STREAM, *SHERPA_HEAD)
STEP = "step.onnx"  # one step of a stream
FRONT_END = "features.onnx"  # maps waveforms to features, for streams
PROGRAMS = (
    *(PROGRAM, WAVEFORM, SHERPA, ENCODER, ENCODER_WAVEFORM, PREDICTOR, JOINER),
    *(SHERPA_ENCODER, SHERPA_STREAM, *SHERPA_HEAD, STEP, FRONT_END),
)
OPENED = (PROGRAM, ENCODER, PREDICTOR, JOINER, STEP)  # programs that asr itself runs
MODEL_DATA, ENCODER_DATA, STEP_DATA = "model.data", "encoder.data", "step.data"
DATA = {  # data files, which contain the weights of programs that are too large for an ONNX file
    **dict.fromkeys((PROGRAM, WAVEFORM, SHERPA), MODEL_DATA),
    **dict.fromkeys((ENCODER, ENCODER_WAVEFORM, SHERPA_ENCODER), ENCODER_DATA),
    **dict.fromkeys((STEP, SHERPA_STREAM), STEP_DATA),  # a model has at most one of these programs
}
DATA_FILES = (MODEL_DATA, ENCODER_DATA, STEP_DATA)
NETS = {PROGRAM: WAVEFORM, ENCODER: ENCODER_WAVEFORM}  # each exported model has exactly one of the keys

FEATURES, FEATURE_LENGTHS = "features", "feature_lengths"
WAVEFORMS, SAMPLE_COUNTS = "waveforms", "sample_counts"
NET_INPUTS, FRONT_END_INPUTS = (FEATURES, FEATURE_LENGTHS), (WAVEFORMS, SAMPLE_COUNTS)
LOG_PROBS, LENGTHS = "log_probs", "log_probs_lengths"
NET_OUTPUTS = (LOG_PROBS, LENGTHS)
ENCODER_OUT, PREDICTOR_OUT = "encoder_out", "predictor_out"  # inputs of a transducer's joiner
ENCODER_OUTPUTS = (ENCODER_OUT, LENGTHS)
HYBRID_OUTPUTS = (ENCODER_OUT, LOG_PROBS, LENGTHS)  # a transducer's encoder, if the model also has a CTC head
TOKENS, STATE, NEXT_STATE = "tokens", "state", "next_state"
PREDICTOR_NAMES = ((TOKENS, STATE), (PREDICTOR_OUT, NEXT_STATE))
JOINER_NAMES = ((ENCODER_OUT, PREDICTOR_OUT), (LOG_PROBS,))
NEXT = "next."  # prefix of the state after a step


def step_names(state: Collection[str]) -> tuple[list[str], list[str]]:
    """Return the names of the step program's inputs and outputs, given the names of a stream's state."""
    return [*NET_INPUTS, *state], [*NET_OUTPUTS, *(f"{NEXT}{name}" for name in state)]
