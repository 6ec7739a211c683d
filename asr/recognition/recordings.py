"""What may be recognised: whole audio files and waveforms, as utterances without text."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from asr.audio.load import SAMPLES_MUST, audio_info, unusable_samples
from asr.data.manifest import Utterance
from asr.errors import InputError


def whole_file(path: str | Path, utterance_id: str) -> Utterance:
    """Make a whole audio file an utterance without text.

    Raises:
        AudioError: the file cannot be read.
    """
    sample_rate, _, num_samples = audio_info(path)
    return Utterance(str(path), num_samples / sample_rate, "", utterance_id)


def as_utterances(
    recordings: Sequence[str | Path | Tensor], sample_rate: int
) -> tuple[list[Utterance], dict[str, Tensor]]:
    """Make recordings utterances, numbered from 0; return them, and the waveforms among them by their ids.

    Args:
        recordings: audio files, or waveforms (S,) in [-1, 1].
        sample_rate: of the waveforms, in Hz.

    Raises:
        InputError: naming the first recording that cannot be used.
    """
    if isinstance(recordings, str | Path | Tensor):
        raise InputError(f"recordings must be a list of paths and waveforms; got one {type(recordings).__name__}.")
    utterances: list[Utterance] = []
    waveforms: dict[str, Tensor] = {}
    for number, recording in enumerate(recordings):
        if isinstance(recording, str | Path):
            utterances.append(whole_file(recording, str(number)))
        else:
            waveform = _checked_waveform(recording, number)
            utterances.append(Utterance(f"recording {number}", len(waveform) / sample_rate, "", str(number)))
            waveforms[str(number)] = waveform
    return utterances, waveforms


def _checked_waveform(recording: object, number: int) -> Tensor:
    must = f"recording {number}: must be a path, or a float tensor (S,) in [-1, 1]"
    if not isinstance(recording, Tensor):
        raise InputError(f"{must}; got {type(recording)!r}.")
    if recording.ndim != 1 or not recording.is_floating_point():
        raise InputError(f"{must}; got {tuple(recording.shape)} {recording.dtype}.")
    waveform = recording.detach().to("cpu", torch.float32)
    num_bad = len(unusable_samples(waveform))
    if num_bad:
        raise InputError(f"recording {number}: {SAMPLES_MUST}; {num_bad} do not.")
    return waveform
