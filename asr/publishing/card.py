"""README.md of an exported model: what the files are, and programs that use them."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, cast

from asr.interfaces import StreamingEncoder
from asr.onnx.names import ENCODER, ENCODER_WAVEFORM, SHERPA_ENCODER, STEP, WAVEFORM
from asr.onnx.names import SHERPA as SHERPA_PROGRAM
from asr.onnx.transducer import parts_of
from asr.publishing.examples import by_sherpa, of_ctc, of_stream, of_transducer
from asr.publishing.program import OPSET
from asr.publishing.sherpa_transducer import MAX_SYMBOLS, has_sherpa_durations
from asr.recognition.model import Model
from asr.recognition.recognizer import Recognizer

if TYPE_CHECKING:
    from onnx import ModelProto

MANY = 5  # inputs, the features and a state: too many for a line

NO_SHERPA = """sherpa-onnx computes features of its own (80 mels as in Slaney's toolbox, of 16 kHz, each bin normalised
over the utterance), and this model takes others: there is no program for it here. `{waveform}` needs nobody else's
features.
"""

NO_SHERPA_DURATIONS = """There is no program for it here: sherpa-onnx reads durations of 0, 1, 2 and so on alone, and
this model has {durations}.
"""

_OF_CTC = "`log_probs` are natural logarithms; token 0 is CTC's blank."

_OF_TRANSDUCER = """`encoder.onnx` gives `encoder_out`, the joiner's input{of_ctc}.
`predictor.onnx` reads a token, and gives the joiner's input and the state after the token; `joiner.onnx` gives the
`log_probs` of the next token, from a frame and the tokens before it{of_durations}.
Logarithms are natural; token 0 is the blank, and stands before the first token."""
_OF_CTC_HEAD = ", and\n`log_probs` of a CTC head beside the transducer, which tell when a token was spoken"
_OF_DURATIONS = ",\nfollowed by those of the durations {durations}, in frames"

_STREAMED = """
## As a stream

    pip install numpy onnxruntime soundfile
    python stream.py recording.wav

where `stream.py`, which prints the text while it hears, lies beside the other files and is

```python
{python}```

`step.onnx` takes a chunk of features and the state, and gives `log_probs` and the state behind the chunk, each tensor
by its name with `next.` before it. All are zeros at first. A chunk has any number of frames, a multiple of {stride} but
for the last; behind it stand {right} more, which are only seen, and begin the next chunk. `feature_lengths` counts what
is there of both: at the end anything may stand in the place of frames that do not come.
"""

_CARD = """# {name}

A speech recogniser exported to ONNX (opset {opset}) by `python -m asr.export` from {source}.

{table}

What has a name instead of a number, as `batch` does, may be any number. Lengths are int64: of samples, or of frames,
that are not padding. What stands in the padding changes nothing. {outputs}
A frame of what comes out is {frame_seconds:g} s. What a pass needs of memory grows with the square of a recording's
length: cut those of minutes. `asr.transcribe` and `asr.evaluate` keep silence and steady noise from the net, which may
read words into them; the programs below do not.

{compared}

{figures}## In Python, without torch

    pip install numpy onnxruntime soundfile
    python transcribe.py recording.wav

where `transcribe.py` lies beside the other files and is

```python
{python}```
{streamed}
## By sherpa-onnx

{sherpa}
## By asr

`python -m asr.transcribe FOLDER AUDIO...` and `python -m asr.evaluate FOLDER MANIFEST...` take this folder as a model;
config.json and the tokenizer's file are for them. They need `pip install '.[onnx]'` in a checkout of asr.
{before}"""

_SHERPA = """It computes the features itself, a little differently: a few texts may differ.{limit}

    pip install sherpa-onnx soundfile
    python transcribe_sherpa.py recording.wav

where `transcribe_sherpa.py` is

```python
{python}```
"""
_SHERPA_LIMIT = " It writes at most {limit} tokens\nin a frame."


def card(
    recognizer: Recognizer,
    max_symbols: int | None,
    name: str,
    source: str,
    programs: Sequence[tuple[str, int, str]],
    compared: str,
    figures: str,
    model_card: str,
) -> str:
    """Write README.md.

    Args:
        recognizer: that was exported.
        max_symbols: tokens in a frame, at most, of a transducer.
        name: of the folder.
        source: of the model.
        programs: the name, size in bytes and inputs of each.
        compared: how the programs were compared with the model.
        figures: what was measured, if anything.
        model_card: of the bundle.
    """
    rows = [f"| `{name}` | {size / 1e6:.1f} MB | {inputs} |" for name, size, inputs in programs]
    table = "\n".join(["| file | size | from |", "|---|---|---|", *rows])
    names, model = {name for name, _, _ in programs}, recognizer.model
    is_transducer = ENCODER in names
    return _CARD.format(
        name=name,
        source=source,
        opset=OPSET,
        table=table,
        frame_seconds=model.frame_seconds,
        outputs=_outputs(model) if is_transducer else _OF_CTC,
        compared=compared,
        figures=f"{figures}\n" if figures else "",
        python=of_transducer(model, max_symbols) if is_transducer else of_ctc(model),
        streamed=_streamed(model) if STEP in names else "",
        sherpa=_by_sherpa(model, names),
        before=_quoted(model_card),
    )


def _outputs(model: Model) -> str:
    """Describe the outputs of a transducer's programs."""
    durations = parts_of(model.head).durations
    return _OF_TRANSDUCER.format(
        of_ctc=_OF_CTC_HEAD if model.head.frame_head is not None else "",
        of_durations=_OF_DURATIONS.format(durations=list(durations)) if durations else "",
    )


def _by_sherpa(model: Model, names: Collection[str]) -> str:
    """Write the part on sherpa-onnx."""
    if ENCODER not in names:
        there = SHERPA_PROGRAM in names
        return _SHERPA.format(limit="", python=by_sherpa(False)) if there else NO_SHERPA.format(waveform=WAVEFORM)
    durations = parts_of(model.head).durations
    if not has_sherpa_durations(model.head):
        return NO_SHERPA_DURATIONS.format(durations=list(durations))
    if SHERPA_ENCODER not in names:
        return NO_SHERPA.format(waveform=ENCODER_WAVEFORM)
    limit = _SHERPA_LIMIT.format(limit=MAX_SYMBOLS[bool(durations)])
    return _SHERPA.format(limit=limit, python=by_sherpa(True))


def _streamed(model: Model) -> str:
    """The part on streams."""
    encoder = cast(StreamingEncoder, model.encoder)
    right = encoder.right_frames * encoder.stride
    return _STREAMED.format(python=of_stream(model), stride=encoder.stride, right=right)


def described(program: "ModelProto") -> str:
    """Write a program's inputs and their dimensions."""
    written = []
    for value in program.graph.input:
        dimensions = [d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim]
        written.append(f"`{value.name}` ({', '.join(dimensions)})")
    shown, others = (written, 0) if len(written) < MANY else (written[:2], len(written) - 2)
    return ", ".join(shown) + (f", and {others} tensors of the state" if others else "")


def _quoted(model_card: str) -> str:
    """What was said of the model that was exported."""
    if not model_card.strip():
        return ""
    lines = "\n".join(f"> {line}".rstrip() for line in model_card.strip().splitlines())
    return f"\n## The card of the model that was exported\n\n{lines}\n"
