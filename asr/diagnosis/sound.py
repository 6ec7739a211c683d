"""What the samples of an utterance tell: clipping, an offset, silence, missing bands, and whether it is there twice."""

import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import soundfile
import torch
from numpy.typing import NDArray

from asr.audio.load import CANCELLED, AudioInfo
from asr.data.dataset import fetch, load_utterance
from asr.data.manifest import Utterance
from asr.diagnosis.finding import Case, Finding, Severity
from asr.diagnosis.headers import problem_kind
from asr.diagnosis.texts import MIN_CHARACTERS, MIN_PACED
from asr.errors import AudioError
from asr.text.numbers import counted

FRAME_SECONDS = 0.032
BAND_HZ = 250.0
EMPTY_DB = -60.0  # of a band, below the loudest: nothing is said there
LOUD_QUANTILE = 0.95  # of a band's frames: an s is in few of them
FULL_SCALE = 0.999
PLATEAU = 3  # samples in a row at the highest level: no sound stays there
NEIGHBOURS = 10  # levels below the highest
STANDS_OUT = 8  # times as many samples as at any of them

MAX_CLIPPED = 0.001  # of the samples
MAX_OFFSET = 0.02  # of full scale
MIN_LEVEL_DB = -60.0  # of the loudest frame, below full scale
MAX_CANCELLED = 1 - CANCELLED / 2  # of the channels' power
# Kurtosis with bytes exchanged over that without: of 1,074 recordings of speech at most 0.69, and once their bytes are
# exchanged at least 1.45, 2.3 in 99 % of them.
MAX_SWAPPED = 1.4
SPEED_OCTAVES = 0.4  # by which the time of a text, and the highest band, may miss a half or a double
MIN_BANDWIDTH = 0.6  # of what the features hear: telephones carry 0.43 of 8 kHz


@dataclass(frozen=True, slots=True)
class Sound:
    """The measures of an utterance.

    Args:
        sample_rate: of the file, in Hz.
        clipped: part of the samples that stand at an extreme for `PLATEAU` samples or more, or at full scale.
        offset: mean of the samples, of full scale.
        level: of the loudest frame, in dB below full scale.
        bandwidth: highest frequency at which anything is said, in Hz.
        cancelled: part of the channels' power that their mean has lost, from 0 to 1.
        swapped: kurtosis of the samples with their two bytes exchanged, over that of the samples.
        digest: the same for the same samples, at 16 bits.
        kind: of a problem that reading found; empty where there is none.
        problem: in words.
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
        """Whether nothing can be heard."""
        return self.level < MIN_LEVEL_DB


def listen(stretch: tuple[Utterance, AudioInfo]) -> Sound:
    """Read an utterance at the sample rate of its file, and measure it.

    Raises:
        StoreError: a shard, or what a URL names, cannot be read.
    """
    utterance, info = stretch
    [utterance] = fetch([utterance])
    try:
        waveform = load_utterance(utterance, info.sample_rate)
    except AudioError as error:
        return Sound(info.sample_rate, kind=problem_kind(error), problem=str(error))
    sound = measure(waveform, info.sample_rate)
    return replace(sound, cancelled=_cancelled(utterance)) if info.num_channels > 1 else sound


def _cancelled(utterance: Utterance) -> float:
    """Return the part of the channels' power that their mean does not have."""
    try:
        content = utterance.content
        with soundfile.SoundFile(utterance.audio_filepath if content is None else io.BytesIO(content)) as file:
            offset = 0.0 if utterance.extent is not None else utterance.offset or 0.0
            file.seek(round(offset * file.samplerate))
            channels = file.read(round(utterance.duration * file.samplerate), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError:  # some formats cannot seek there; `load_utterance`, which can, has read it
        return 0.0
    if not len(channels):
        return 0.0
    separate = float(np.square(channels).mean())
    return 1.0 - float(np.square(channels.mean(axis=1)).mean()) / separate if separate > 0 else 0.0


def measure(waveform: torch.Tensor, sample_rate: int) -> Sound:
    """Measure a waveform (S,)."""
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
    """Return how much more the samples peak, as those of speech do, once the two bytes of each are exchanged."""
    return _kurtosis(samples.byteswap()) / max(_kurtosis(samples), 1.0)


def _kurtosis(samples: NDArray[np.int16]) -> float:
    """Return the fourth moment relative to the square of the second; 0 for a constant."""
    values = samples.astype(np.float64)
    values -= values.mean()
    power = float(np.square(values).mean())
    return float((values**4).mean()) / power**2 if power > 0 else 0.0


def _clipped(samples: NDArray[np.float32], rounded: NDArray[np.int16]) -> float:
    """Return the part of the samples that is clipped, at full scale or at whatever level the file was scaled to."""
    clipped = np.abs(samples) >= FULL_SCALE
    for sign in (1, -1):
        levels = sign * rounded.astype(np.int32)
        if _stands_out(np.bincount(levels + 32768, minlength=65537)):
            clipped |= _in_runs(levels >= levels.max() - 1)
    return float(clipped.mean())


def _stands_out(counts: NDArray[np.int64]) -> bool:
    """Tell whether far more samples have the highest level, or the one below, than any of the next ones that occur.

    In audio of few levels, as from mu-law, many samples are at the highest one, and as many at the next.
    """
    occurring = np.flatnonzero(counts)
    top = occurring[-1] - 1
    below = counts[occurring[occurring < top][-NEIGHBOURS:]]
    return bool(counts[top:].sum() >= STANDS_OUT * below.max(initial=1))


def _in_runs(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep what is True for PLATEAU samples in a row."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0))
    kept = np.zeros(len(mask), dtype=bool)
    for start, end in edges.reshape(-1, 2):
        kept[start:end] = end - start >= PLATEAU
    return kept


def _bandwidth(frames: NDArray[Any], sample_rate: int) -> float:
    """Find the highest band whose loud frames come within `EMPTY_DB` of the loudest band's."""
    width = frames.shape[1]
    power = np.abs(np.fft.rfft(frames * np.hanning(width).astype(np.float32), axis=1)) ** 2  # (frames, bins)
    bins = max(1, round(BAND_HZ * width / sample_rate))
    bands = power[:, : power.shape[1] // bins * bins].reshape(len(power), -1, bins).mean(axis=2)
    loud = np.quantile(bands, LOUD_QUANTILE, axis=0)
    said = np.flatnonzero(loud >= loud.max() * 10 ** (EMPTY_DB / 10))
    return float((said[-1] + 1) * bins * sample_rate / width)


Heard = Mapping[str, Sequence[tuple[Utterance, Sound]]]  # by split


@dataclass(frozen=True, slots=True)
class SoundCheck:
    """What is said of utterances whose measure is beyond a limit.

    Args:
        kind: what it is called.
        measure: of a sound; the greater, the worse.
        limit: up to which nothing is said.
        write: what a measure is, in words.
        meaning: of all of them.
        advice: what to do.
        needs: which sounds it can judge.
    """

    kind: str
    measure: Callable[[Sound], float]
    limit: float
    write: Callable[[Sound], str]
    meaning: str
    advice: str
    needs: Callable[[Sound], bool] = lambda sound: not sound.silent


def checks(sample_rate: int) -> list[SoundCheck]:
    """Return the checks of single utterances, for features of this sample rate in Hz."""
    narrow = MIN_BANDWIDTH * sample_rate / 2
    return [
        SoundCheck(
            "clipping",
            lambda sound: sound.clipped,
            MAX_CLIPPED,
            lambda sound: f"{sound.clipped:.2%} of the samples",
            f"stand at their highest level for {MAX_CLIPPED:.1%} of the time or more.",
            "Record or convert them at a lower level; what was cut off cannot be restored.",
            needs=lambda sound: not sound.silent and sound.swapped <= MAX_SWAPPED,
        ),
        SoundCheck(
            "DC offset",
            lambda sound: abs(sound.offset),
            MAX_OFFSET,
            lambda sound: f"{sound.offset:+.1%} of full scale",
            f"have a mean beyond {MAX_OFFSET:.0%} of full scale, which leaks into the lowest bands.",
            "Subtract the mean, and look for the device that adds it.",
        ),
        SoundCheck(
            "opposite phase",
            lambda sound: sound.cancelled,
            MAX_CANCELLED,
            lambda sound: f"the mean of the channels has lost {sound.cancelled:.2%} of their power",
            "have channels that cancel each other out, as they do if one of them is inverted.",
            "Write one of the channels to a file of its own.",
            needs=lambda sound: True,
        ),
        SoundCheck(
            "byte order",
            lambda sound: sound.swapped,
            MAX_SWAPPED,
            lambda sound: f"kurtosis {sound.swapped:.1f} times as large with the bytes of each sample exchanged",
            "are noise, and speech once the two bytes of each sample are exchanged.",
            "Read the samples in the other byte order, and write them anew.",
        ),
        SoundCheck(
            "silence",
            lambda sound: -sound.level,
            -MIN_LEVEL_DB,
            lambda sound: f"at most {sound.level:.0f} dB",
            f"have no sound above {MIN_LEVEL_DB:.0f} dB.",
            "Take them out of the manifest, unless their texts are empty.",
            needs=lambda sound: sound.cancelled <= MAX_CANCELLED,
        ),
        SoundCheck(
            "band-limited audio",
            lambda sound: -sound.bandwidth,
            -narrow,
            lambda sound: f"nothing above {sound.bandwidth:,.0f} Hz",
            f"have nothing above {narrow:,.0f} Hz (within {-EMPTY_DB:.0f} dB of their loudest band), as over a "
            f"telephone or a muffled microphone; the features hear {sample_rate // 2:,} Hz.",
            "See that train and test agree in this, or choose a features.sample_rate that suits all of the audio.",
            needs=lambda sound: not sound.silent and sound.sample_rate >= sample_rate,
        ),
    ]


def sound_findings(heard: Heard, sample_rate: int) -> list[Finding]:
    """Say what is wrong with the sound of utterances.

    Args:
        heard: utterances that could be read, and their measures.
        sample_rate: of the features, in Hz.
    """
    listened = sum(map(len, heard.values()))
    findings = []
    for check in checks(sample_rate):
        beyond = [
            (check.measure(sound), Case(split, utterance, check.write(sound)))
            for split, pairs in heard.items()
            for utterance, sound in pairs
            if check.needs(sound) and check.measure(sound) > check.limit
        ]
        cases = [case for _, case in sorted(beyond, key=lambda pair: -pair[0])]
        if cases:
            what = f"{len(cases):,} of {listened:,} utterances listened to {check.meaning}"
            findings.append(Finding(check.kind, Severity.WARNING, what, check.advice, cases))
    return findings


def speed_findings(heard: Heard) -> list[Finding]:
    """Say which utterances are played at half or double speed: a text's time and the highest band both tell.

    Args:
        heard: utterances that could be read, with normalised texts, and their measures.
    """
    pairs = [(split, *pair) for split, several in heard.items() for pair in several]
    spoken = [(split, one, sound) for split, one, sound in pairs if len(one.text) >= MIN_CHARACTERS and sound.bandwidth]
    if len(spoken) < MIN_PACED:
        return []
    pace = median(one.duration / len(one.text) for _, one, _ in spoken)
    band = median(sound.bandwidth for _, _, sound in spoken)
    cases = []
    for split, one, sound in spoken:
        slower, narrower = one.duration / (pace * len(one.text)), band / sound.bandwidth
        for factor, speed in ((2.0, "half"), (0.5, "double")):
            if max(abs(math.log2(slower / factor)), abs(math.log2(narrower / factor))) < SPEED_OCTAVES:
                detail = (
                    f"{slower:.1f} times the time of its text, nothing above {sound.bandwidth:,.0f} Hz: {speed} speed"
                )
                cases.append(Case(split, one, detail))
    if not cases:
        return []
    what = f"{len(cases):,} of {len(spoken):,} utterances listened to are played at half or double speed."
    advice = "Correct the sample rate in the headers of their files."
    return [Finding("wrong speed", Severity.WARNING, what, advice, cases)]


def unreadable(heard: Heard) -> dict[str, list[Case]]:
    """List what turned out unreadable when it was decoded, by what is wrong."""
    cases: dict[str, list[Case]] = {}
    for split, pairs in heard.items():
        for utterance, sound in pairs:
            if sound.kind:
                cases.setdefault(sound.kind, []).append(Case(split, utterance, sound.problem))
    return cases


def readable(heard: Heard) -> Heard:
    """Leave out what could not be read."""
    return {split: [pair for pair in pairs if not pair[1].kind] for split, pairs in heard.items()}


def duplicate_findings(heard: Heard) -> list[Finding]:
    """Say which utterances have the same samples; silence, which is the same everywhere, does not count.

    Args:
        heard: utterances that could be read, and their measures; train first.
    """
    first: dict[bytes, Case] = {}
    twins: dict[str, list[Case]] = {"train": [], "valid": [], "test": []}
    for split, pairs in heard.items():
        for utterance, sound in pairs:
            if sound.silent:
                continue
            earlier = first.setdefault(sound.digest, Case(split, utterance))
            if earlier.utterance is utterance:
                continue
            other = "" if earlier.utterance.text == utterance.text else ", which has another text"
            case = Case(split, utterance, f"the same samples as {earlier.split}: {earlier.utterance.id}{other}")
            crosses = earlier.split == "train" and split != "train"
            twins[("valid" if split == "valid" else "test") if crosses else "train"].append(case)
    kinds = (
        ("test", "test audio in train", Severity.ERROR, "that are trained on: the WER on them tells nothing."),
        ("valid", "validation audio in train", Severity.WARNING, "that are trained on: their WER will be too good."),
        ("train", "duplicate audio", Severity.WARNING, "with the samples of another one."),
    )
    advice = "Keep one of each, with the text that is right."
    return [
        Finding(kind, severity, f"{counted(len(twins[place]), 'utterance')} {meaning}", advice, twins[place])
        for place, kind, severity, meaning in kinds
        if twins[place]
    ]
