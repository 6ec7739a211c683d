"""Convert a caller's audio files and waveforms to utterances without text."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asr.base.audio.load import MAX_SAMPLE, MAX_SAMPLE_RATE, MIN_SAMPLE_RATE, unusable_samples
from asr.base.audio.resampling import resample
from asr.base.settings.rule import whole
from asr.core.data.manifest import Utterance
from asr.core.data.recordings import whole_file
from asr.errors import InputError, shown

Recording = str | PathLike[str] | Tensor | np.ndarray[Any, Any] | Mapping[str, Any]
WAVEFORM = "a float tensor or array (S,) in [-1, 1]"
SAMPLE_RATE = whole(MIN_SAMPLE_RATE, MAX_SAMPLE_RATE)


def is_single(recordings: Recording | Iterable[Recording]) -> bool:
    """Return whether the argument is a single recording; an array of any shape counts as one recording."""
    return isinstance(recordings, str | PathLike | Tensor | np.ndarray | Mapping)


def as_utterances(
    recordings: Sequence[Recording], given_rate: int | None, sample_rate: int
) -> tuple[list[Utterance], dict[str, Tensor]]:
    """Convert recordings to utterances whose ids are their positions.

    Args:
        recordings: audio files, waveforms (S,) in [-1, 1], or mappings of `array` to a waveform and of `sampling_rate`
            to its rate in Hz, which the library datasets makes.
        given_rate: sample rate of the waveforms, in Hz; None: all recordings are files.
        sample_rate: sample rate to which waveforms are resampled, in Hz.

    Returns:
        The utterances, and the resampled waveforms, float32 on the CPU, by utterance id.
    """
    if given_rate is not None:
        SAMPLE_RATE.check("sample_rate", given_rate)
    utterances: list[Utterance] = []
    waveforms: dict[str, Tensor] = {}
    for number, recording in enumerate(recordings):
        rate = given_rate
        if isinstance(recording, Mapping) and {"array", "sampling_rate"} <= recording.keys():
            recording, rate = recording["array"], recording["sampling_rate"]
            SAMPLE_RATE.check(f"sampling_rate of recording {number}", rate)
        if isinstance(recording, str | PathLike):
            utterances.append(whole_file(Path(recording), str(number)))
            continue
        waveform = as_waveform(recording, f"recording {number}: must be a path, or {WAVEFORM}").float()
        if rate is None:
            must = f"sample_rate must be given with waveforms, such as recording {number}; got None"
            raise InputError(f"{must}. Give the rate in Hz at which they were recorded.")
        utterances.append(Utterance(f"recording {number}", len(waveform) / rate, "", str(number)))
        waveforms[str(number)] = resample(waveform, rate, sample_rate)
    return utterances, waveforms


def as_waveform(samples: object, must: str) -> Tensor:
    """Check a caller's waveform and convert it to a tensor.

    Args:
        samples: a float tensor or array (S,) in [-1, 1].
        must: first part of the error message, which states what must hold.

    Returns:
        (S,) on the CPU; an array becomes float32, a tensor keeps its dtype.
    """
    if not isinstance(samples, Tensor | np.ndarray):
        raise InputError(f"{must}; got {shown(samples)}, a {type(samples).__name__}.")
    kind = str(samples.dtype).removeprefix("torch.")
    if "float" not in kind:
        scale = " Divide them by 32768." if kind == "int16" else " Scale them."
        raise InputError(f"{must}; got samples of type {kind}.{scale}")
    if samples.ndim != 1:
        raise InputError(f"{must}; got the shape {tuple(samples.shape)}. Give one channel, or the mean of all.")
    if isinstance(samples, np.ndarray):
        samples = torch.from_numpy(samples.astype(np.float32))  # copied: torch rejects read-only and reversed arrays
    waveform = samples.detach().cpu()
    num_bad = len(unusable_samples(waveform))
    if num_bad:
        raise InputError(f"{must}; {num_bad} samples are NaN or beyond {MAX_SAMPLE:.0f}.")
    return waveform
