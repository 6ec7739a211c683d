"""README.md of an exported model: what the files are, and programs that use them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asr.onnx.names import SHERPA as SHERPA_PROGRAM
from asr.onnx.program import OPSET

if TYPE_CHECKING:
    from onnx import ModelProto

PYTHON = """import sys

import numpy as np
import onnxruntime
import soundfile

waveform, sample_rate = soundfile.read(sys.argv[1], dtype="float32", always_2d=True)
assert sample_rate == {sample_rate}, "the model hears {sample_rate} Hz: resample the recording first"
waveform = waveform.mean(axis=1)

model = onnxruntime.InferenceSession("model-waveform.onnx")
inputs = {{"waveforms": waveform[None], "sample_counts": np.array([len(waveform)], dtype=np.int64)}}
log_probs, lengths = model.run(None, inputs)

best = log_probs[0, : lengths[0]].argmax(axis=1).tolist()  # the best token of each frame, 0 for none
tokens = [token for token, before in zip(best, [0, *best]) if token not in (before, 0)]
pieces = [line.rsplit(" ", 1)[0] for line in open("tokens.txt", encoding="utf-8")]
print(" ".join("".join(pieces[token] for token in tokens).replace("\\u2581", " ").split()))
"""

SHERPA = """import sys

import sherpa_onnx
import soundfile

waveform, sample_rate = soundfile.read(sys.argv[1], dtype="float32", always_2d=True)
recognizer = sherpa_onnx.OfflineRecognizer.from_nemo_ctc(model="model-sherpa.onnx", tokens="tokens.txt")
stream = recognizer.create_stream()
stream.accept_waveform(sample_rate, waveform.mean(axis=1))
recognizer.decode_stream(stream)
print(stream.result.text)
"""

NO_SHERPA = """sherpa-onnx computes features of its own (80 mels as in Slaney's toolbox, of 16 kHz, each bin normalised
over the utterance), and this model hears others: there is no program for it here. `model-waveform.onnx` needs nobody
else's features.
"""

_CARD = """# {name}

A speech recogniser exported to ONNX (opset {opset}) by `python -m asr.export` from {source}.

{table}

`batch`, and what stands second, may be any number. Lengths are int64: of samples, or of frames, that are not padding.
What stands in the padding changes nothing. `log_probs` are natural logarithms; token 0 is CTC's blank. A frame of them
is {frame_seconds:g} s. What a pass needs of memory grows with the square of a recording's length: cut those of minutes.

{compared}

{figures}## In Python, without torch

    pip install numpy onnxruntime soundfile
    python transcribe.py recording.wav

where `transcribe.py` lies beside the other files and is

```python
{python}```

## By sherpa-onnx

{sherpa}
## By asr

`python -m asr.transcribe FOLDER AUDIO...` and `python -m asr.evaluate FOLDER MANIFEST...` take this folder as a model;
config.json and the tokenizer's file are for them. They need `pip install '.[onnx]'` in a checkout of asr.
{before}"""

_SHERPA = """It computes the features itself, a little differently: a few texts may differ.

    pip install sherpa-onnx soundfile
    python transcribe_sherpa.py recording.wav

where `transcribe_sherpa.py` is

```python
{python}```
"""


def card(
    name: str,
    source: str,
    programs: Sequence[tuple[str, int, str]],
    sample_rate: int,
    frame_seconds: float,
    compared: str,
    figures: str,
    model_card: str,
) -> str:
    """Write README.md.

    Args:
        name: of the folder.
        source: of the model.
        programs: the name, size in bytes and inputs of each.
        sample_rate: in Hz, that the model hears.
        frame_seconds: from one frame of log_probs to the next.
        compared: how the programs were compared with the model.
        figures: what was measured, if anything.
        model_card: of the bundle.
    """
    rows = [f"| `{name}` | {size / 1e6:.1f} MB | {inputs} |" for name, size, inputs in programs]
    table = "\n".join(["| file | size | from |", "|---|---|---|", *rows])
    has_sherpa = any(name == SHERPA_PROGRAM for name, _, _ in programs)
    return _CARD.format(
        name=name,
        source=source,
        opset=OPSET,
        table=table,
        frame_seconds=frame_seconds,
        compared=compared,
        figures=f"{figures}\n" if figures else "",
        python=PYTHON.format(sample_rate=sample_rate),
        sherpa=_SHERPA.format(python=SHERPA) if has_sherpa else NO_SHERPA,
        before=_quoted(model_card),
    )


def described(program: "ModelProto") -> str:
    """Write a program's inputs and their dimensions."""
    written = []
    for value in program.graph.input:
        dimensions = [d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim]
        written.append(f"`{value.name}` ({', '.join(dimensions)})")
    return ", ".join(written)


def _quoted(model_card: str) -> str:
    """What was said of the model that was exported."""
    if not model_card.strip():
        return ""
    lines = "\n".join(f"> {line}".rstrip() for line in model_card.strip().splitlines())
    return f"\n## The card of the model that was exported\n\n{lines}\n"
