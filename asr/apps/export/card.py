"""README.md of an exported model: its files, their size, speed and WER, and programs that use them."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from asr.apps.export.examples import by_sherpa, of_ctc, of_stream, of_transducer
from asr.apps.export.program import OPSET, Net
from asr.apps.export.sherpa_layouts import SherpaLayout
from asr.apps.export.transducer_programs import head_of
from asr.base.onnx.names import DATA, DATA_FILES, ENCODER, NET_INPUTS, STEP
from asr.base.onnx.session import run, session
from asr.base.text.numbers import interval, rate
from asr.core.data.manifest import Utterance
from asr.core.evaluation.result import evaluate
from asr.core.recognition.inference import INFERENCE
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.interfaces import StreamingEncoder

if TYPE_CHECKING:
    from onnx import ModelProto

# For a program with at least this number of inputs, the tensors of the state are counted and not listed, because they
# do not fit into a line.
MANY = 5

NO_SHERPA = """There is no program for sherpa-onnx: {reason}
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

Save this program as `stream.py` in the folder of the other files; it runs from any folder, and prints the text
during recognition.

```python
{python}```

`step.onnx` takes a chunk of features and the state, and returns `log_probs` and the next state. The names of the next
state's tensors have the prefix `next.`. The initial state is all zeros. The number of frames of a chunk is any multiple
of {stride}; the last chunk may have any number. {right} frames of right context follow each chunk; they are also the
first frames of the next chunk. `feature_lengths` is the number of valid frames in the chunk and its right context. At
the end of a stream, the missing frames may have any value. The first chunk of a stream begins with {unread} frames that
the model does not read; they count as valid frames.
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

Save this program as `transcribe.py` in the folder of the other files; it runs from any folder.

```python
{python}```
{streamed}
## With sherpa-onnx

{sherpa}
## With asr

`python -m asr.transcribe FOLDER AUDIO...` and `python -m asr.evaluate FOLDER MANIFEST...` accept this folder as a model
and use config.json and the tokenizer's file. They need `pip install '.[onnx]'` in a checkout of asr.
{before}"""

_SHERPA = """{note}{limit}

    pip install sherpa-onnx soundfile
    python transcribe_sherpa.py recording.wav

Save this program as `transcribe_sherpa.py` in the folder of the other files; it runs from any folder.

```python
{python}```
"""
_SHERPA_LIMIT = " It emits at most {limit}\nper frame."

SECONDS = 10  # length of the recording that `speeds` times
TURNS = 5  # of `speeds`; the median counts
TITLES = ("programs", "MB", "seconds of audio per second", "WER %", "95 % interval")


def card(
    recognizer: Recognizer,
    max_symbols: int | None,
    name: str,
    source: str,
    files: Sequence[tuple[str, int, str]],
    compared: str,
    figures: str,
    no_sherpa: str,
    layout: SherpaLayout | None,
    model_card: str,
) -> str:
    """Return the content of README.md.

    Args:
        recognizer: the exported model.
        max_symbols: maximum number of tokens in a frame, for a transducer.
        name: name of the folder.
        source: name of the original model.
        files: name, size in bytes and inputs of each program; data files have the names of their programs as inputs.
        compared: description of the comparison with the model.
        figures: table of measurements; may be empty.
        no_sherpa: why there is no program for sherpa-onnx, if there is none.
        layout: layout of the programs for sherpa-onnx; None: there are none.
        model_card: model card of the bundle.
    """
    rows = [f"| `{name}` | {size / 1e6:.1f} MB | {inputs} |" for name, size, inputs in files]
    table = "\n".join(["| file | size | from |", "|---|---|---|", *rows])
    names, model = {name for name, _, _ in files}, recognizer.model
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
        sherpa=_by_sherpa(model, layout, is_transducer) if layout else NO_SHERPA.format(reason=no_sherpa),
        before=_quoted(model_card),
    )


def _outputs(model: Model) -> str:
    """Describe the outputs of a transducer's programs."""
    durations = head_of(model).durations
    return _OF_TRANSDUCER.format(
        of_ctc=_OF_CTC_HEAD if model.head.frame_head is not None else "",
        of_durations=_OF_DURATIONS.format(durations=list(durations)) if durations else "",
    )


def _by_sherpa(model: Model, layout: SherpaLayout, is_transducer: bool) -> str:
    """Return how to recognise with sherpa-onnx."""
    limit = ""
    if is_transducer:
        most = layout.max_symbols[bool(head_of(model).durations)]
        limit = _SHERPA_LIMIT.format(limit=f"{most} token{'s' if most > 1 else ''}")
    return _SHERPA.format(note=layout.note, limit=limit, python=by_sherpa(model, layout, is_transducer))


def _streamed(model: Model) -> str:
    """Return the section on streams."""
    encoder = cast(StreamingEncoder, model.encoder)
    right, unread = encoder.right_frames * encoder.stride, encoder.stride - encoder.first_frames
    return _STREAMED.format(python=of_stream(model), stride=encoder.stride, right=right, unread=unread)


def described(name: str, programs: "Mapping[str, ModelProto]") -> str:
    """Describe the inputs of a program and their dimensions, or whose weights a data file contains."""
    if name in DATA_FILES:
        users = [f"`{program}`" for program in programs if DATA.get(program) == name]
        return f"the weights of {', '.join(users)}, which must be in the same folder"
    written = []
    for value in programs[name].graph.input:
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


class Figures(NamedTuple):
    """Measurements of a model's programs.

    Args:
        num_bytes: size of the programs whose input is features.
        speed: seconds of audio processed per second, for a batch of 10 s on one thread.
        wer: word error rate; None: not measured.
        wer_interval: 95 % interval of the WER; None: there is none.
    """

    num_bytes: int
    speed: float
    wer: float | None
    wer_interval: Sequence[float] | None

    def row(self, name: str) -> tuple[str, ...]:
        """Return a row of a table with `TITLES`."""
        wer = "not measured" if self.wer is None else rate(self.wer)
        return name, f"{self.num_bytes / 1e6:.1f}", f"{self.speed:.0f}", wer, interval(self.wer_interval)


def speeds(recognizer: Recognizer, programs: Mapping[str, Path], net: Net) -> dict[str, float]:
    """Time programs alternately, so that other load on the machine affects all programs equally.

    Args:
        recognizer: recogniser whose features are the input.
        programs: ONNX files, by names for the result.
        net: network that was exported as the programs.
    """
    features = recognizer.model.features
    given = features(0.1 * torch.randn(SECONDS * features.sample_rate))[None]
    lengths = torch.tensor([given.shape[1]])
    opened = {name: session(program, NET_INPUTS, net.outputs, num_threads=1) for name, program in programs.items()}
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for turn in range(TURNS + 1):
        for name, program in opened.items():
            start = time.perf_counter()
            run(program, given, lengths)
            if turn:  # the first turn is a warm-up
                taken[name].append(time.perf_counter() - start)
    return {name: SECONDS / median(seconds) for name, seconds in taken.items()}


def measured(
    recognizer: Recognizer,
    num_bytes: int,
    speed: float,
    manifest: str,
    utterances: Sequence[Utterance],
    on_progress: Callable[[float], None],
) -> Figures:
    """Measure a model's programs.

    Args:
        recognizer: recogniser that runs the programs.
        num_bytes: size of the programs.
        speed: as in `Figures`.
        manifest: name of the manifest.
        utterances: utterances of the manifest; without utterances, the WER is not measured.
        on_progress: called with the seconds of audio recognised since the last call.
    """
    if not utterances:
        return Figures(num_bytes, speed, None, None)
    row = evaluate(recognizer, manifest, list(utterances), INFERENCE, on_progress).as_dict()
    return Figures(num_bytes, speed, row["wer"], row["wer_interval"])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (TITLES, ["---"] * len(TITLES), *rows))
