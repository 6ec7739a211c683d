"""README.md of an exported model: its files, and programs that use them."""

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

# For a program with at least this number of inputs, the tensors of the state are counted and not listed, because they
# do not fit into a line.
MANY = 5

NO_SHERPA = """There is no program for sherpa-onnx, because sherpa-onnx computes its own features ({mels} as in
Slaney's toolbox, at 16 kHz, each bin normalised over the utterance), and this model needs different features.
`{waveform}` computes the features of this model.
"""

NO_SHERPA_DURATIONS = """There is no program for sherpa-onnx, because it supports only the durations 0, 1, 2 and so on,
and this model has {durations}.
"""

_OF_CTC = "`log_probs` are natural logarithms; token 0 is CTC's blank."

_OF_TRANSDUCER = """`encoder.onnx` returns `encoder_out`, the joiner's first input{of_ctc}.
`predictor.onnx` takes a token and a state, and returns the joiner's second input and the next state. `joiner.onnx`
returns the `log_probs` of the next token{of_durations}.
Logarithms are natural. Token 0 is the blank; it is also the token from which the first token is predicted."""
_OF_CTC_HEAD = ", and\nthe `log_probs` of the model's CTC head, from which the times of tokens can be computed"
_OF_DURATIONS = ",\nfollowed by the `log_probs` of the durations {durations}, in frames"

_STREAMED = """
## As a stream

    pip install numpy onnxruntime soundfile
    python stream.py recording.wav

Save this program as `stream.py` in the folder of the other files. It prints the text during recognition.

```python
{python}```

`step.onnx` takes a chunk of features and the state, and returns `log_probs` and the next state. The names of the next
state's tensors have the prefix `next.`. The initial state is all zeros. The number of frames of a chunk is any multiple
of {stride}; the last chunk may have any number. {right} frames of right context follow each chunk; they are also the
first frames of the next chunk. `feature_lengths` is the number of valid frames in the chunk and its right context. At
the end of a stream, the missing frames may have any value.
"""

_CARD = """# {name}

A speech recogniser exported to ONNX (opset {opset}) by `python -m asr.export` from {source}.

{table}

A dimension with a name, such as `batch`, may have any size. Lengths are int64: the number of samples or frames without
padding. Values in the padding have no effect. {outputs}
An output frame lasts {frame_seconds:g} s. Memory grows with the square of a recording's length: cut recordings of
several minutes into shorter ones. `asr.transcribe` and `asr.evaluate` skip silence and steady noise, because the model
may recognise words in them; the programs below do not skip them.

{compared}

{figures}## In Python, without torch

    pip install numpy onnxruntime soundfile
    python transcribe.py recording.wav

Save this program as `transcribe.py` in the folder of the other files.

```python
{python}```
{streamed}
## With sherpa-onnx

{sherpa}
## With asr

`python -m asr.transcribe FOLDER AUDIO...` and `python -m asr.evaluate FOLDER MANIFEST...` accept this folder as a model
and use config.json and the tokenizer's file. They need `pip install '.[onnx]'` in a checkout of asr.
{before}"""

_SHERPA = """sherpa-onnx computes slightly different features, so a few texts may differ.{limit}

    pip install sherpa-onnx soundfile
    python transcribe_sherpa.py recording.wav

Save this program as `transcribe_sherpa.py` in the folder of the other files.

```python
{python}```
"""
_SHERPA_LIMIT = " It emits at most {limit} tokens\nper frame."


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
    """Return the content of README.md.

    Args:
        recognizer: the exported model.
        max_symbols: maximum number of tokens in a frame, for a transducer.
        name: name of the folder.
        source: name of the original model.
        programs: name, size in bytes and inputs of each program.
        compared: description of the comparison with the model.
        figures: table of measurements; may be empty.
        model_card: model card of the bundle.
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
    """Return the section on sherpa-onnx."""
    if ENCODER not in names:
        if SHERPA_PROGRAM not in names:
            return NO_SHERPA.format(mels="80 mels", waveform=WAVEFORM)
        return _SHERPA.format(limit="", python=by_sherpa(False))
    durations = parts_of(model.head).durations
    if not has_sherpa_durations(model.head):
        return NO_SHERPA_DURATIONS.format(durations=list(durations))
    if SHERPA_ENCODER not in names:
        return NO_SHERPA.format(mels="mels", waveform=ENCODER_WAVEFORM)
    limit = _SHERPA_LIMIT.format(limit=MAX_SYMBOLS[bool(durations)])
    return _SHERPA.format(limit=limit, python=by_sherpa(True))


def _streamed(model: Model) -> str:
    """Return the section on streams."""
    encoder = cast(StreamingEncoder, model.encoder)
    right = encoder.right_frames * encoder.stride
    return _STREAMED.format(python=of_stream(model), stride=encoder.stride, right=right)


def described(program: "ModelProto") -> str:
    """Describe a program's inputs and their dimensions."""
    written = []
    for value in program.graph.input:
        dimensions = [d.dim_param or str(d.dim_value) for d in value.type.tensor_type.shape.dim]
        written.append(f"`{value.name}` ({', '.join(dimensions)})")
    shown, others = (written, 0) if len(written) < MANY else (written[:2], len(written) - 2)
    return ", ".join(shown) + (f", and {others} tensors of the state" if others else "")


def _quoted(model_card: str) -> str:
    """Return the original model's card as a Markdown quotation."""
    if not model_card.strip():
        return ""
    lines = "\n".join(f"> {line}".rstrip() for line in model_card.strip().splitlines())
    return f"\n## The card of the model that was exported\n\n{lines}\n"
