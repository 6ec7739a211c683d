"""Check that an exported program computes the same log_probs and texts as the model."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.apps.export.program import SHERPA_INPUTS, Net
from asr.base.audio.load import audio_info, load_waveform
from asr.base.onnx.names import FRONT_END_INPUTS, NET_INPUTS
from asr.base.onnx.session import run_net, session
from asr.core.recognition.model import Model
from asr.core.recognition.pieces import joined_rows
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.interfaces import Features

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# Maximum difference of log_probs: ten times the difference between float32 and float64 in a network of 16 blocks.
TOLERANCE = 0.01
SECONDS = (0.3, 1.0, 3.7, 11.2)  # lengths of synthetic audio
MAX_SECONDS = 30.0  # maximum length of a recording to compare
JUNK = float("nan")  # padding after an utterance's end


class Form(NamedTuple):
    """Format of a program's input.

    Args:
        inputs: names of the batch and of its lengths.
        of_waveform: converts a waveform (S,) to a row of the batch; the row's first dimension is time.
        arranged: converts the padded batch to the program's layout.
    """

    inputs: tuple[str, str]
    of_waveform: Callable[[Features, Tensor], Tensor]
    arranged: Callable[[Tensor], Tensor]


OF_FEATURES = Form(NET_INPUTS, lambda features, waveform: features(waveform), lambda batch: batch)
OF_WAVEFORMS = Form(FRONT_END_INPUTS, lambda features, waveform: waveform, lambda batch: batch)
OF_SHERPA = Form(SHERPA_INPUTS, lambda features, waveform: features(waveform), lambda batch: batch.transpose(1, 2))


class ProgramDifference(NamedTuple):
    """The largest difference between a program and the model.

    Args:
        largest: largest absolute difference of log_probs, or of other outputs of the program.
        where: the recording, whether it was alone or in a batch, and the position in seconds.
        texts: number of texts that differ from the model's texts.
        recordings: number of recordings compared, each alone and in a batch.
    """

    largest: float
    where: str
    texts: int
    recordings: int


class EncoderProgram(NamedTuple):
    """How an encoder's program is compared with the model.

    Args:
        file: name of the program.
        names: names of its inputs and outputs.
        outputs: returns the joiner's inputs for a waveform (S,), computed by the program and by the model, (1, T', J).
    """

    file: str
    names: tuple[Sequence[str], Sequence[str]]
    outputs: "Callable[[Model, InferenceSession, Tensor], tuple[Tensor, Tensor]]"


def made_audio(sample_rate: int) -> dict[str, Tensor]:
    """Return synthetic sounds of several lengths, by name: voice-like harmonics that swell and fade, and noise."""
    generator = torch.Generator().manual_seed(0)
    made = {}
    for seconds in SECONDS:
        time = torch.arange(round(seconds * sample_rate)) / sample_rate
        pitch = 100 + 100 * torch.rand(1, generator=generator)
        voice = sum((6.2832 * pitch * harmonic * time).sin() / harmonic for harmonic in range(1, 12))
        loudness = (6.2832 * 3 * time).sin().square()
        made[f"made audio of {seconds:g} s"] = (
            0.1 * loudness * voice + 0.01 * torch.randn(len(time), generator=generator)
        ).clamp(-1, 1)
    return made


def recordings(features: Features, paths: Sequence[str]) -> dict[str, Tensor]:
    """Return the audio to compare programs on, by name: synthetic audio, and the files in `paths`."""
    audio = made_audio(features.sample_rate)
    for path in paths:
        info = audio_info(path)
        is_long = info.num_samples > MAX_SECONDS * info.sample_rate
        offset, duration = (0.0, MAX_SECONDS) if is_long else (None, None)
        audio[path] = load_waveform(path, features.sample_rate, offset=offset, duration=duration)
        if features.num_frames(len(audio[path])) == 0:
            raise InputError(
                f"--audio must be recordings of at least one frame; {path} has {len(audio[path])} samples."
            )
    return audio


@torch.inference_mode()
def difference(
    expected: Recognizer, actual: Recognizer, program: Path | bytes, form: Form, audio: Mapping[str, Tensor], net: Net
) -> ProgramDifference:
    """Compare a program with the network from which it was exported.

    Args:
        expected: the model's recogniser.
        actual: a recogniser whose decoder takes the program's output.
        program: the program's file or contents. It runs on each recording alone, and on a batch of all recordings with
            junk as padding.
        form: format of the program's input.
        audio: waveforms (S,) by name.
        net: network that was exported.
    """
    opened = session(program, form.inputs, net.outputs)
    features = expected.model.features
    given = [form.of_waveform(features, waveform) for waveform in audio.values()]
    worst = ProgramDifference(0.0, "nowhere", 0, len(audio))
    batches = [[number] for number in range(len(given))] + ([list(range(len(given)))] if len(given) > 1 else [])
    references: list[ExpectedOutput] = []
    for members in batches:
        batch = pad_sequence([given[number] for number in members], batch_first=True, padding_value=JUNK)
        lengths = torch.tensor([len(given[number]) for number in members])
        outs, out_lengths = run_net(opened, form.arranged(batch), lengths)
        for number, out, length in zip(members, outs, out_lengths.tolist(), strict=True):
            if len(members) == 1:
                references.append(_reference(expected, net, features(list(audio.values())[number])))
            name = list(audio)[number] + ("" if len(members) == 1 else f", in a batch of {len(members)}")
            worst = _worse(worst, name, references[number], out[:length], actual)
    return worst


def check(program: str, difference: ProgramDifference) -> None:
    """Check that the difference between a program and its model is within the tolerance."""
    if not (difference.largest <= TOLERANCE and difference.texts == 0):  # NaN also fails
        must = f"{program} must compute the model's output within {TOLERANCE}, and the model's texts"
        raise InputError(
            f"{must}; outputs differ by {difference.largest:.3g} ({difference.where}), and {difference.texts} texts "
            f"differ. Nothing was written: this is a fault of asr, of torch, or of ONNX Runtime."
        )


class ExpectedOutput(NamedTuple):
    """Expected result for a recording: all outputs, concatenated to (T', ...), and the text that they decode to."""

    out: Tensor
    text: str


def _reference(recognizer: Recognizer, net: Net, features: Tensor) -> ExpectedOutput:
    """Return the expected output for features (T, F)."""
    encoded = recognizer.model(features[None], torch.tensor([len(features)]))
    length = int(encoded.lengths[0])
    out = torch.cat(net.of_encoded(encoded), dim=-1)[0, :length]
    return ExpectedOutput(out, _text(recognizer, encoded.out[0, :length]))


def _worse(
    worst: ProgramDifference, name: str, expected: ExpectedOutput, out: Tensor, recognizer: Recognizer
) -> ProgramDifference:
    """Compare a recording's output with the expected output; return the largest difference so far."""
    if out.shape != expected.out.shape:
        return worst._replace(largest=float("inf"), where=f"{name}: {len(out)} frames, not {len(expected.out)}")
    worst = worst._replace(texts=worst.texts + (_text(recognizer, out) != expected.text))
    by_frame = (out - expected.out).abs().nan_to_num(float("inf")).amax(dim=1) if len(out) else out.new_zeros(1)
    largest = float(by_frame.max())
    if largest <= worst.largest:
        return worst
    seconds = int(by_frame.argmax()) * recognizer.model.frame_seconds
    return worst._replace(largest=largest, where=f"{name}, at {seconds:.2f} s")


def _text(recognizer: Recognizer, encoder_out: Tensor) -> str:
    [hypotheses] = recognizer.hypotheses(joined_rows([encoder_out]))
    return recognizer.text(hypotheses[0])
