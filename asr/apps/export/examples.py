"""Example programs for an exported model's README.md, in Python without torch."""

from typing import cast

from asr.apps.export.exported_folder import SHERPA_TOKENS, TOKENS
from asr.apps.export.sherpa_layouts import SherpaLayout
from asr.apps.export.sherpa_stream import Window
from asr.apps.export.stream_step import chunk_frames
from asr.apps.export.transducer_programs import head_of
from asr.base.onnx.names import SHERPA_ENCODER, SHERPA_STREAM
from asr.core.recognition.model import Model
from asr.interfaces import StreamingEncoder

_BEGIN = """import sys
from pathlib import Path

import numpy as np
import onnxruntime
import soundfile

FOLDER = Path(__file__).parent  # of this program and of the model's files
waveform, sample_rate = soundfile.read(sys.argv[1], dtype="float32", always_2d=True)
if sample_rate != {sample_rate}:
    sys.exit("the model needs {sample_rate} Hz: resample the recording first")
waveform = waveform.mean(axis=1)
"""

_END = """pieces = [line.rsplit(" ", 1)[0] for line in open(FOLDER / "tokens.txt", encoding="utf-8")]
print(" ".join("".join(pieces[token] for token in tokens).replace("\\u2581", " ").split()))
"""

CTC = """{begin}
model = onnxruntime.InferenceSession(FOLDER / "model-waveform.onnx")
inputs = {{"waveforms": waveform[None], "sample_counts": np.array([len(waveform)], dtype=np.int64)}}
log_probs, lengths = model.run(None, inputs)

best = log_probs[0, : lengths[0]].argmax(axis=1).tolist()  # the best token of each frame; 0 is the blank
tokens = [token for token, before in zip(best, [0, *best]) if token not in (before, 0)]
{end}"""

_TRANSDUCER = """{begin}
encoder, predictor, joiner = (
    onnxruntime.InferenceSession(FOLDER / f"{{name}}.onnx") for name in ("encoder-waveform", "predictor", "joiner")
)
inputs = {{"waveforms": waveform[None], "sample_counts": np.array([len(waveform)], dtype=np.int64)}}
frames, *_, lengths = encoder.run(None, inputs)


def read(token, state):  # returns the joiner's input from the tokens so far, and the next state
    return predictor.run(None, {{"tokens": np.array([token], dtype=np.int64), "state": state}})


tokens = []
out, state = read(0, np.zeros({state_shape}, dtype=np.{state_dtype}))  # the first token is predicted from token 0
{loop}{end}"""

RNNT_LOOP = """for frame in frames[0, : lengths[0]]:
    for _ in range({max_symbols}):  # maximum number of tokens in a frame
        [log_probs] = joiner.run(None, {{"encoder_out": frame[None], "predictor_out": out}})
        token = int(log_probs[0].argmax())
        if token == 0:  # the blank: continue with the next frame
            break
        tokens.append(token)
        out, state = read(token, state)
"""

TDT_LOOP = """frame, symbols = 0, 0  # symbols: tokens emitted in this frame
while frame < lengths[0]:
    [log_probs] = joiner.run(None, {{"encoder_out": frames[0, frame][None], "predictor_out": out}})
    token = int(log_probs[0, :{vocab_size}].argmax())
    duration = {durations}[int(log_probs[0, {vocab_size}:].argmax())]
    if symbols == {max_symbols}:  # maximum number of tokens in a frame
        token, duration = 0, 1
    if token == 0:  # the blank
        duration = max(duration, 1)
    else:
        tokens.append(token)
        out, state = read(token, state)
    symbols = symbols + 1 if duration == 0 else 0
    frame += duration
"""

STREAM = """import sys
from pathlib import Path

import numpy as np
import onnxruntime
import soundfile

FOLDER = Path(__file__).parent  # of this program and of the model's files
HOP = {hop}  # samples from one frame to the next
AHEAD, BEFORE = {samples_ahead}, {frames_before}  # samples that a frame spans; earlier frames that a frame depends on
CHUNK = {chunk}  # frames of features recognised at once: {chunk_seconds:g} s
RIGHT = {right}  # frames of right context after a chunk; they are also the first frames of the next chunk

features, step = (onnxruntime.InferenceSession(FOLDER / f"{{name}}.onnx") for name in ("features", "step"))
state = {{}}
for value in step.get_inputs()[2:]:
    dtype = np.int64 if value.type == "tensor(int64)" else np.float32
    state[value.name] = np.zeros([1, *value.shape[1:]], dtype=dtype)
pieces = [line.rsplit(" ", 1)[0].replace("\\u2581", " ") for line in open(FOLDER / "tokens.txt", encoding="utf-8")]
samples = np.zeros(0, dtype=np.float32)  # samples on which later frames depend
given = 0  # number of frames of these samples that are already in `waiting` or recognised
# Frames of an incomplete chunk; the first chunk of a stream begins with {unread} frames that the model does not read.
waiting = np.zeros(({unread}, {features_dim}), dtype=np.float32)
last = 0  # token of the previous frame


def recognize(piece, is_end):
    global samples, given, waiting, state, last
    samples = np.concatenate([samples, piece])
    inputs = {{"waveforms": samples[None], "sample_counts": np.array([len(samples)], dtype=np.int64)}}
    frames, [count] = features.run(None, inputs)
    if not is_end:
        count = min(count, max(0, (len(samples) - AHEAD) // HOP + 1))
    if count > given:
        waiting = np.concatenate([waiting, frames[0, given:count]])
        dropped = max(0, count - BEFORE) // 2 * 2  # even: some features round up to pairs of frames
        samples, given = samples[dropped * HOP :], count - dropped
    while len(waiting) >= (1 if is_end else CHUNK + RIGHT):
        seen, waiting = waiting[: CHUNK + RIGHT], waiting[CHUNK:]
        room = np.pad(seen, ((0, CHUNK + RIGHT - len(seen)), (0, 0)))  # adds zeros at the end of the stream
        inputs = {{"features": room[None], "feature_lengths": np.array([len(seen)], dtype=np.int64)}}
        log_probs, lengths, *next_state = step.run(None, inputs | state)
        state = dict(zip(state, next_state))
        for token in log_probs[0, : lengths[0]].argmax(axis=1).tolist():
            if token not in (last, 0):
                print(pieces[token], end="", flush=True)
            last = token


recording = soundfile.SoundFile(sys.argv[1])
if recording.samplerate != {sample_rate}:
    sys.exit("the model needs {sample_rate} Hz: resample the recording first")
for piece in recording.blocks(blocksize={block}, dtype="float32", always_2d=True):  # simulates a microphone
    recognize(piece.mean(axis=1), False)
recognize(np.zeros(0, dtype=np.float32), True)
print()
"""

_SHERPA_CTC = """sherpa_onnx.OfflineRecognizer.{reader}(
    model=f"{{FOLDER}}/model-sherpa.onnx",
    tokens=f"{{FOLDER}}/tokens.txt",
    sample_rate={sample_rate},
    feature_dim={features_dim},
)"""
_SHERPA_TRANSDUCER = """sherpa_onnx.{reader}.from_transducer(
    encoder=f"{{FOLDER}}/{encoder}",
    decoder=f"{{FOLDER}}/decoder-sherpa.onnx",
    joiner=f"{{FOLDER}}/joiner-sherpa.onnx",
    tokens=f"{{FOLDER}}/{tokens}",
    model_type="{model_type}",
    sample_rate={sample_rate},
    feature_dim={features_dim},
)"""

_SHERPA = """import sys
from pathlib import Path

import sherpa_onnx
import soundfile

FOLDER = Path(__file__).parent  # of this program and of the model's files
waveform, sample_rate = soundfile.read(sys.argv[1], dtype="float32", always_2d=True)
recognizer = {recognizer}
stream = recognizer.create_stream()
{rest}"""

_WHOLE = """stream.accept_waveform(sample_rate, waveform.mean(axis=1))
recognizer.decode_stream(stream)
print(stream.result.text)
"""

SILENCE_SECONDS = 0.5  # after the end of a recording, in addition to a window: a transducer may emit a token late
_STREAMED = """silence = [0.0] * round({silence_seconds:g} * sample_rate)  # a chunk is recognised when it is complete
waveform = [*waveform.mean(axis=1), *silence]
block, text = sample_rate // 10, ""
for begin in range(0, len(waveform), block):  # simulates a microphone
    stream.accept_waveform(sample_rate, waveform[begin : begin + block])
    while recognizer.is_ready(stream):
        recognizer.decode_stream(stream)
    longer = recognizer.get_result(stream)
    print(longer[len(text) :], end="", flush=True)
    text = longer
print()
"""


def _ends(model: Model) -> dict[str, str]:
    return {"begin": _BEGIN.format(sample_rate=model.features.sample_rate), "end": _END}


def of_ctc(model: Model) -> str:
    """Return the example program for a model whose output is log_probs."""
    return CTC.format(**_ends(model))


def of_transducer(model: Model, max_symbols: int | None) -> str:
    """Return the example program for a transducer that emits at most `max_symbols` tokens in a frame."""
    durations, state = head_of(model).durations, head_of(model).predictor.initial_state(1)
    loop = TDT_LOOP if durations else RNNT_LOOP
    return _TRANSDUCER.format(
        **_ends(model),
        state_shape=tuple(state.shape),
        state_dtype=str(state.dtype).removeprefix("torch."),
        loop=loop.format(max_symbols=max_symbols, durations=durations, vocab_size=model.tokenizer.vocab_size),
    )


def by_sherpa(model: Model, layout: SherpaLayout, is_transducer: bool) -> str:
    """Return the example program that recognises with sherpa-onnx."""
    features = {"sample_rate": model.features.sample_rate, "features_dim": model.features.dim}
    if is_transducer:
        names = {"model_type": layout.transducer_type, "tokens": SHERPA_TOKENS if layout.blank_last else TOKENS}
        if layout.stream is not None:
            opened = _SHERPA_TRANSDUCER.format(reader="OnlineRecognizer", encoder=SHERPA_STREAM, **names, **features)
            window = Window.of(cast(StreamingEncoder, model.encoder)).size * model.features.hop
            seconds = SILENCE_SECONDS + window / model.features.sample_rate
            return _SHERPA.format(recognizer=opened, rest=_STREAMED.format(silence_seconds=seconds))
        opened = _SHERPA_TRANSDUCER.format(reader="OfflineRecognizer", encoder=SHERPA_ENCODER, **names, **features)
    else:
        opened = _SHERPA_CTC.format(reader=layout.ctc_reader, **features)
    return _SHERPA.format(recognizer=opened, rest=_WHOLE)


def of_stream(model: Model) -> str:
    """Return the example program that recognises a stream."""
    features, encoder = model.features, cast(StreamingEncoder, model.encoder)
    chunk = chunk_frames(encoder)
    return STREAM.format(
        hop=features.hop,
        samples_ahead=features.samples_ahead,
        frames_before=features.frames_before,
        chunk=chunk * model.encoder.stride,
        chunk_seconds=chunk * model.frame_seconds,
        right=encoder.right_frames * model.encoder.stride,
        unread=encoder.stride - encoder.first_frames,
        features_dim=features.dim,
        sample_rate=features.sample_rate,
        block=features.sample_rate // 10,
    )
