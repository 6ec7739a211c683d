"""Checks of an utterance's samples: clipping, DC offset, silence, missing bands, byte order, speed, duplicates."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from asr.apps.doctor.finding import Case, Finding, Severity
from asr.apps.doctor.headers import problem_kind
from asr.apps.doctor.texts import MIN_CHARACTERS, MIN_PACED
from asr.base.audio.load import CANCELLED, AudioInfo, cancelled_power
from asr.base.text.numbers import counted
from asr.core.data.dataset import fetch, load_utterance
from asr.core.data.manifest import Utterance
from asr.errors import AudioError

FRAME_SECONDS = 0.032
BAND_HZ = 250.0
EMPTY_DB = -60.0  # a band is empty if its level, relative to the loudest band, is lower than this
# The level of a band is this quantile of its levels in the frames. The quantile is high, because the upper bands are
# loud only in a few frames, such as those of an s.
LOUD_QUANTILE = 0.95
FULL_SCALE = 0.999
PLATEAU = 3  # this many consecutive samples at the highest level do not occur in natural sound
NEIGHBOURS = 10  # the two highest levels are compared with this number of levels below them
# Audio is clipped if the two highest levels together have at least this many times as many samples as each of these
# lower levels.
STANDS_OUT = 8

MAX_CLIPPED = 0.001  # maximum fraction of samples that are clipped
MAX_OFFSET = 0.02  # maximum absolute mean of the samples, relative to full scale
MIN_LEVEL_DB = -60.0  # minimum level of the loudest frame, relative to full scale
MAX_CANCELLED = 1 - CANCELLED / 2  # maximum share of the channels' power that is lost when the channels are averaged
# Maximum kurtosis with the two bytes of each sample exchanged, divided by the kurtosis of the unchanged samples. This
# ratio was at most 0.69 in 1,074 recordings of speech. In recordings of speech with exchanged bytes, it was at least
# 1.45, and at least 2.3 in 99 % of these recordings.
MAX_SWAPPED = 1.4
SPEED_OCTAVES = 0.4  # maximum deviation of duration and of bandwidth from their values at exactly half or double speed
MIN_BANDWIDTH = 0.6  # minimum bandwidth, relative to half the sample rate; telephone speech at 16 kHz has 0.43


@dataclass(frozen=True, slots=True)
class Sound:
    """Measurements of the audio of an utterance.

    Args:
        sample_rate: sample rate of the file, in Hz.
        clipped: share of samples at full scale, or in runs of `PLATEAU` or more samples at the highest or lowest level.
        offset: mean of the samples, relative to full scale.
        level: level of the loudest frame, in dB relative to full scale.
        bandwidth: highest frequency with sound, in Hz.
        cancelled: share of the channels' power that is lost when the channels are averaged, from 0 to 1.
        swapped: kurtosis after exchanging the bytes of each sample, divided by the kurtosis before.
        digest: hash of the samples after rounding them to 16 bits.
        kind: kind of the problem in reading the audio; empty if there is none.
        problem: description of the problem.
    """

    sample_rate: int
    clipped: float = 0.0
    offset: float = 0.0
    level: float = 0.0
    bandwidth: float = 0.0
    cancelled: float = 0.0
    swapped: float = 0.0
    digest: bytes = b""
    kind: str = ""
    problem: str = ""

    @property
    def silent(self) -> bool:
        """Return whether the level of the loudest frame is below `MIN_LEVEL_DB`."""
        return self.level < MIN_LEVEL_DB


def listen(segment: tuple[Utterance, AudioInfo]) -> Sound:
    """Decode an utterance at the sample rate of its file, and measure it.

    Raises:
        StoreError: a shard or URL cannot be read.
    """
    utterance, info = segment
    [utterance] = fetch([utterance])
    try:
        waveform = load_utterance(utterance, info.sample_rate)
    except AudioError as error:
        return Sound(info.sample_rate, kind=problem_kind(error), problem=str(error))
    sound = measure(waveform, info.sample_rate)
    if info.num_channels == 1:
        return sound
    start = 0.0 if utterance.extent is not None else utterance.offset or 0.0
    lost = cancelled_power(utterance.audio_filepath, start, utterance.duration, utterance.content)
    return replace(sound, cancelled=lost)


def measure(waveform: torch.Tensor, sample_rate: int) -> Sound:
    """Compute the measures of a waveform (S,)."""
    samples: NDArray[np.float32] = waveform.numpy()
    width = max(64, round(FRAME_SECONDS * sample_rate))
    frames = np.pad(samples, (0, -len(samples) % width)).reshape(-1, width)  # (frames, width)
    offset = float(samples.mean())
    energy = ((frames - offset) ** 2).mean(axis=1).max()
    rounded: NDArray[np.int16] = (samples * 32768).round().clip(-32768, 32767).astype("<i2")
    return Sound(
        sample_rate,
        clipped=_clipped(samples, rounded),
        offset=offset,
        level=float(10 * np.log10(energy + 1e-20)),
        bandwidth=_bandwidth(frames - offset, sample_rate),
        swapped=_swapped(rounded),
        digest=hashlib.sha256(rounded.tobytes()).digest()[:16],
    )


def _swapped(samples: NDArray[np.int16]) -> float:
    """Return the kurtosis after exchanging the bytes of each sample, divided by the kurtosis before.

    Speech with exchanged bytes is noise, whose kurtosis is low. So the ratio is high if the byte order is wrong.
    """
    return _kurtosis(samples.byteswap()) / max(_kurtosis(samples), 1.0)


def _kurtosis(samples: NDArray[np.int16]) -> float:
    """Return the fourth moment divided by the square of the second; 0 if all samples are equal."""
    values = samples.astype(np.float64)
    values -= values.mean()
    power = float(np.square(values).mean())
    return float((values**4).mean()) / power**2 if power > 0 else 0.0


def _clipped(samples: NDArray[np.float32], rounded: NDArray[np.int16]) -> float:
    """Return the share of samples clipped at full scale, or at a lower level if the audio was scaled after clipping."""
    clipped = np.abs(samples) >= FULL_SCALE
    for sign in (1, -1):
        levels = sign * rounded.astype(np.int32)
        if _stands_out(np.bincount(levels + 32768, minlength=65537)):
            clipped |= _in_runs(levels >= levels.max() - 1)
    return float(clipped.mean())


def _stands_out(counts: NDArray[np.int64]) -> bool:
    """Return whether the two highest levels together have far more samples than each of the next lower levels.

    Two levels are considered, because clipped audio with few levels (mu-law) has many samples at each of the two.
    """
    occurring = np.flatnonzero(counts)
    top = occurring[-1] - 1
    below = counts[occurring[occurring < top][-NEIGHBOURS:]]
    return bool(counts[top:].sum() >= STANDS_OUT * below.max(initial=1))


def _in_runs(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Select the samples of `mask` that are in runs of at least `PLATEAU` samples."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    selected = np.zeros(len(mask), dtype=bool)
    for start, end in edges.reshape(-1, 2):
        selected[start:end] = end - start >= PLATEAU
    return selected


def _bandwidth(frames: NDArray[Any], sample_rate: int) -> float:
    """Return the upper edge, in Hz, of the highest band that is not empty (`EMPTY_DB`)."""
    width = frames.shape[1]
    power = np.abs(np.fft.rfft(frames * np.hanning(width).astype(np.float32), axis=1)) ** 2  # (frames, bins)
    bins = max(1, round(BAND_HZ * width / sample_rate))
    bands = power[:, : power.shape[1] // bins * bins].reshape(len(power), -1, bins).mean(axis=2)
    loud = np.quantile(bands, LOUD_QUANTILE, axis=0)
    filled = np.flatnonzero(loud >= loud.max() * 10 ** (EMPTY_DB / 10))
    return float((filled[-1] + 1) * bins * sample_rate / width)


Measured = Mapping[str, Sequence[tuple[Utterance, Sound]]]  # utterances and their measures, by split


@dataclass(frozen=True, slots=True)
class SoundCheck:
    """A limit of a measure, and the finding that reports the utterances beyond this limit.

    Args:
        kind: name of the finding.
        measure: returns the measure of a sound; greater values are worse.
        limit: largest value of the measure that is not reported.
        write: describes the measure of a sound.
        meaning: end of the message, after the number of utterances.
        advice: what to do.
        needs: selects the sounds that the check applies to.
    """

    kind: str
    measure: Callable[[Sound], float]
    limit: float
    write: Callable[[Sound], str]
    meaning: str
    advice: str
    needs: Callable[[Sound], bool] = lambda sound: not sound.silent


def checks(sample_rate: int) -> list[SoundCheck]:
    """Return the checks of single utterances; `sample_rate` is the sample rate of the features, in Hz."""
    narrow = MIN_BANDWIDTH * sample_rate / 2
    return [
        SoundCheck(
            "clipping",
            measure=lambda sound: sound.clipped,
            limit=MAX_CLIPPED,
            write=lambda sound: f"{sound.clipped:.2%} of the samples",
            meaning=f"have {MAX_CLIPPED:.1%} or more of their samples at the highest level.",
            advice="Record or convert them again at a lower level; clipped samples cannot be restored.",
            needs=lambda sound: not sound.silent and sound.swapped <= MAX_SWAPPED,
        ),
        SoundCheck(
            "DC offset",
            measure=lambda sound: abs(sound.offset),
            limit=MAX_OFFSET,
            write=lambda sound: f"{sound.offset:+.1%} of full scale",
            meaning=f"have a mean beyond {MAX_OFFSET:.0%} of full scale, which leaks into the lowest bands.",
            advice="Subtract the mean, and find the device that adds it.",
        ),
        SoundCheck(
            "opposite phase",
            measure=lambda sound: sound.cancelled,
            limit=MAX_CANCELLED,
            write=lambda sound: f"averaging the channels loses {sound.cancelled:.2%} of their power",
            meaning="have channels that cancel each other out, as they do if one of them is inverted.",
            advice="Write one of the channels to a separate file.",
            needs=lambda sound: True,
        ),
        SoundCheck(
            "byte order",
            measure=lambda sound: sound.swapped,
            limit=MAX_SWAPPED,
            write=lambda sound: f"kurtosis {sound.swapped:.1f} times as large with the bytes of each sample exchanged",
            meaning="are noise, but become speech if the two bytes of each sample are exchanged.",
            advice="Read the samples in the other byte order, and write them again.",
        ),
        SoundCheck(
            "silence",
            measure=lambda sound: -sound.level,
            limit=-MIN_LEVEL_DB,
            write=lambda sound: f"at most {sound.level:.0f} dB",
            meaning=f"have no sound above {MIN_LEVEL_DB:.0f} dB.",
            advice="Remove them from the manifest, unless their texts are empty.",
            needs=lambda sound: sound.cancelled <= MAX_CANCELLED,
        ),
        SoundCheck(
            "band-limited audio",
            measure=lambda sound: -sound.bandwidth,
            limit=-narrow,
            write=lambda sound: f"nothing above {sound.bandwidth:,.0f} Hz",
            meaning=f"have nothing above {narrow:,.0f} Hz (within {-EMPTY_DB:.0f} dB of their loudest band), as from a "
            f"telephone or a muffled microphone; the features reach {sample_rate // 2:,} Hz.",
            advice="Check that train and test have the same bands, or choose a features.sample_rate for all audio.",
            needs=lambda sound: not sound.silent and sound.sample_rate >= sample_rate,
        ),
    ]


def sound_findings(measured: Measured, sample_rate: int) -> list[Finding]:
    """Report utterances with faulty sound.

    Args:
        measured: readable utterances and their measures.
        sample_rate: sample rate of the features, in Hz.
    """
    decoded = sum(map(len, measured.values()))
    findings = []
    for check in checks(sample_rate):
        beyond = [
            (check.measure(sound), Case(split, utterance, check.write(sound)))
            for split, pairs in measured.items()
            for utterance, sound in pairs
            if check.needs(sound) and check.measure(sound) > check.limit
        ]
        cases = [case for _, case in sorted(beyond, key=lambda pair: -pair[0])]
        if cases:
            message = f"{len(cases):,} of {decoded:,} decoded utterances {check.meaning}"
            findings.append(Finding(check.kind, Severity.WARNING, message, check.advice, cases))
    return findings


def speed_findings(measured: Measured) -> list[Finding]:
    """Report utterances that are played at half or double speed.

    Two measures must show this speed: the duration, compared with the length of the text, and the highest frequency.

    Args:
        measured: readable utterances with normalised texts, and their measures.
    """
    pairs = [(split, *pair) for split, split_pairs in measured.items() for pair in split_pairs]
    spoken = [
        (split, utterance, sound)
        for split, utterance, sound in pairs
        if len(utterance.text) >= MIN_CHARACTERS and sound.bandwidth
    ]
    if len(spoken) < MIN_PACED:
        return []
    pace = median(utterance.duration / len(utterance.text) for _, utterance, _ in spoken)
    band = median(sound.bandwidth for _, _, sound in spoken)
    cases = []
    for split, utterance, sound in spoken:
        slower, narrower = utterance.duration / (pace * len(utterance.text)), band / sound.bandwidth
        for factor, speed in ((2.0, "half"), (0.5, "double")):
            if max(abs(math.log2(slower / factor)), abs(math.log2(narrower / factor))) < SPEED_OCTAVES:
                detail = (
                    f"takes {slower:.1f} times the expected time, "
                    f"nothing above {sound.bandwidth:,.0f} Hz: {speed} speed"
                )
                cases.append(Case(split, utterance, detail))
    if not cases:
        return []
    message = f"{len(cases):,} of {len(spoken):,} decoded utterances are played at half or double speed."
    advice = "Correct the sample rate in the headers of their files."
    return [Finding("wrong speed", Severity.WARNING, message, advice, cases)]


def unreadable(measured: Measured) -> dict[str, list[Case]]:
    """Return the utterances that could not be decoded, by the kind of problem."""
    cases: dict[str, list[Case]] = {}
    for split, pairs in measured.items():
        for utterance, sound in pairs:
            if sound.kind:
                cases.setdefault(sound.kind, []).append(Case(split, utterance, sound.problem))
    return cases


def readable(measured: Measured) -> Measured:
    """Return the utterances that could be decoded."""
    return {split: [pair for pair in pairs if not pair[1].kind] for split, pairs in measured.items()}


def duplicate_findings(measured: Measured) -> list[Finding]:
    """Report utterances with identical samples, except silent utterances, which are all equal.

    Args:
        measured: readable utterances and their measures; the split train comes first.
    """
    first: dict[bytes, Case] = {}
    twins: dict[str, list[Case]] = {"train": [], "valid": [], "test": []}
    for split, pairs in measured.items():
        for utterance, sound in pairs:
            if sound.silent:
                continue
            earlier = first.setdefault(sound.digest, Case(split, utterance))
            if earlier.utterance is utterance:
                continue
            other = "" if earlier.utterance.text == utterance.text else ", but with a different text"
            case = Case(split, utterance, f"the same samples as {earlier.split}: {earlier.utterance.id}{other}")
            crosses = earlier.split == "train" and split != "train"
            twins[("valid" if split == "valid" else "test") if crosses else "train"].append(case)
    kinds = (
        ("test", "test audio in train", Severity.ERROR, "with audio from train: the WER is meaningless."),
        ("valid", "validation audio in train", Severity.WARNING, "with audio from train: the WER is too low."),
        ("train", "duplicate audio", Severity.WARNING, "with the same samples as another utterance."),
    )
    advice = "Keep one copy of each, with the correct text."
    return [
        Finding(kind, severity, f"{counted(len(twins[group]), 'utterance')} {meaning}", advice, twins[group])
        for group, kind, severity, meaning in kinds
        if twins[group]
    ]
