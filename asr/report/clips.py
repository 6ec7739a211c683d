"""Recordings that a page carries: compressed audio, and what the net heard in each frame."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import soundfile
import torch

from asr.data.batch import Rejected
from asr.data.dataset import load_utterance
from asr.data.manifest import Utterance
from asr.errors import AudioError, InputError
from asr.recognition.inference import INFERENCE, Inference
from asr.recognition.recognizer import Recognizer

if TYPE_CHECKING:
    from torch import Tensor

    from asr.interfaces import Features

OPUS_RATES = (8000, 12000, 16000, 24000, 48000)  # Hz; Opus knows no others
SPEECH_RATE = 16000  # Hz, where no model says another
USUAL_BYTES = 4000  # a second of speech, as libsndfile has Opus compress it: 32 kbit/s, hard to tell from the original
TOP = 4  # tokens kept of each frame
PROBABLE = np.dtype([("token", "<u2"), ("probability", "u1")])  # 255 is a probability of 1
MOST_TOKENS = 2**16
LEVELS = 16  # of a feature in the log-mel picture: two to a byte
DARKEST, BRIGHTEST = 0.05, 0.995  # quantiles of a recording's features that get the lowest level, and the highest
RANGE_FRAMES = 1000  # that the quantiles are taken of, at most

# Shows the progress of a step, named, over utterances; called with the seconds of audio that are done, as they are.
Progress = Callable[[str, Iterable[Utterance]], AbstractContextManager[Callable[[float], None]]]


@dataclass(frozen=True, slots=True)
class Posterior:
    """The most probable tokens of each frame of an utterance.

    Args:
        starts: when each segment begins, in seconds.
        counts: frames of each segment.
        top: for each frame TOP times PROBABLE, the most probable first.
    """

    starts: list[float]
    counts: list[int]
    top: bytes


@dataclass(frozen=True, slots=True)
class Clips:
    """Recordings of some utterances, which are named by their position in the list that `record` was given.

    Args:
        audio: Ogg Opus files.
        problems: why there is no recording where there should be one.
        log_mel: the features that the net heard, as `levels` gives them, of utterances that have some.
        posteriors: of utterances that have one.
        tokens: what the numbers in the posteriors spell, "" for the blank.
        frame_seconds: from one frame of the posteriors to the next.
        features: of what the frames of `log_mel` are (sample_rate, num_mel_bins, window, shift), if there are any.
    """

    audio: dict[int, bytes]
    problems: dict[int, str]
    log_mel: dict[int, bytes]
    posteriors: dict[int, Posterior]
    tokens: list[str]
    frame_seconds: float
    features: dict[str, int] | None
    top: int = TOP

    @property
    def size(self) -> float:
        """Bytes in a page."""
        tops = [posterior.top for posterior in self.posteriors.values()]
        return sum(base64_bytes(len(content)) for content in (*self.audio.values(), *self.log_mel.values(), *tops))


NO_CLIPS = Clips({}, {}, {}, {}, [], 0.0, None)


@contextmanager
def no_progress(step: str, utterances: Iterable[Utterance]) -> Iterator[Callable[[float], None]]:
    """Show nothing."""
    yield lambda seconds: None


def record(
    utterances: Sequence[Utterance],
    order: Iterable[int],
    budget: float,
    sample_rate: int = SPEECH_RATE,
    second_bytes: float = 0.0,
    advance: Callable[[float], None] = lambda seconds: None,
) -> Clips:
    """Compress utterances until the budget is used up; an utterance that is larger than what is left is skipped.

    Args:
        utterances: with their audio files.
        order: positions of those wanted, the most important first.
        budget: bytes that the recordings may take in base64.
        sample_rate: Hz; that of the recordings is this, or the next that Opus knows.
        second_bytes: what else each second of a recording takes in base64.
        advance: called with the seconds that were compressed, as they are.
    """
    rate = min((rate for rate in OPUS_RATES if rate >= sample_rate), default=OPUS_RATES[-1])
    audio: dict[int, bytes] = {}
    problems: dict[int, str] = {}
    seconds, spent = 1.0, base64_bytes(USUAL_BYTES)  # as if one second had been recorded: a first guess of their ratio
    left = budget
    for position in order:
        utterance = utterances[position]
        if utterance.duration * (0.8 * spent / seconds + second_bytes) > left:
            continue
        try:
            compressed = opus(load_utterance(utterance, rate), rate)
        except AudioError as error:
            problems[position] = str(error)
            continue
        size = base64_bytes(len(compressed))
        seconds, spent = seconds + utterance.duration, spent + size
        size += utterance.duration * second_bytes
        if size <= left:
            audio[position] = compressed
            left -= size
            advance(utterance.duration)
    return replace(NO_CLIPS, audio=audio, problems=problems)


def record_with_features(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    order: Iterable[int],
    budget: float,
    options: Inference = INFERENCE,
    progress: Progress = no_progress,
) -> Clips:
    """Record as `record` does, with the features, and run the net once more over what was recorded for posteriors.

    Args:
        recognizer: whose features and net.
        utterances, order, budget: as for `record`.
        options: of the run of the net.
        progress: shows the progress of each of the two steps, given its name and its utterances.
    """
    features, frame_seconds = recognizer.model.features, recognizer.model.frame_seconds
    fits = recognizer.model.head.frame_head is not None and recognizer.model.tokenizer.vocab_size <= MOST_TOKENS
    second_bytes = base64_bytes(features.dim / 2 * features.sample_rate / features.hop)
    second_bytes += base64_bytes(TOP * PROBABLE.itemsize) / frame_seconds if fits else 0.0
    with progress("recordings", utterances) as advance:
        clips = record(utterances, order, budget, features.sample_rate, second_bytes, advance)
    log_mel = {}
    probable: dict[int, Posterior] = {}
    with progress("pictures", [utterances[position] for position in clips.audio]) as advance:
        for position in clips.audio:
            with suppress(AudioError):  # it can no longer be read
                waveform = load_utterance(utterances[position], features.sample_rate)
                log_mel[position] = levels(in_stretches(features, waveform, options.chunks.chunk_seconds))
        if fits:
            probable = posteriors(recognizer, utterances, list(clips.audio), options, advance)
    return replace(
        clips,
        log_mel=log_mel,
        posteriors=probable,
        tokens=[recognizer.model.tokenizer.pieces[token] for token in range(recognizer.model.tokenizer.vocab_size)],
        frame_seconds=frame_seconds,
        features={
            "sample_rate": features.sample_rate,
            "num_mel_bins": features.dim,
            "window": features.window,
            "shift": features.hop,
        },
    )


def in_stretches(features: Features, waveform: Tensor, seconds: float) -> Tensor:
    """Compute the features (T, F) of a waveform (S,), stretch by stretch if it is longer than `seconds`.

    The net hears a long recording in parts of about this length, each normalised by itself.
    """
    num_samples = max(1, int(seconds * features.sample_rate) // features.hop) * features.hop
    overlap = features.window - features.hop  # so that frames follow each other as in a whole
    starts = range(0, max(1, len(waveform) - overlap), num_samples)
    return torch.cat([features(waveform[start : start + num_samples + overlap]) for start in starts])


def levels(features: Tensor) -> bytes:
    """Features (T, F) as LEVELS levels, from dark to bright, frame by frame; the first of each byte is its low half."""
    frames = features[:: len(features) // RANGE_FRAMES + 1].numpy()
    dark, bright = np.quantile(frames, (DARKEST, BRIGHTEST)) if len(frames) else (0.0, 1.0)
    shares = ((features.numpy() - dark) / max(bright - dark, 1e-6)).clip(0, 1).ravel()
    level = (shares * (LEVELS - 1)).round().astype(np.uint8)
    pairs = np.pad(level, (0, len(level) % 2)).reshape(-1, 2)
    return (pairs[:, 0] | pairs[:, 1] << 4).tobytes()


def posteriors(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    positions: Sequence[int],
    options: Inference,
    advance: Callable[[float], None],
) -> dict[int, Posterior]:
    """Run the net over the utterances at these positions; one that can no longer be read is left out."""
    chosen = [replace(utterances[position], id=str(position)) for position in positions]  # ids repeat among manifests
    by_position: dict[int, Posterior] = {}
    for result in recognizer.segments(chosen, options.unchecked):
        if isinstance(result, Rejected):
            continue
        utterance, segments = result
        try:
            parts = [
                (start, most_probable(recognizer.log_probs(encoder_out)), len(encoder_out))
                for start, encoder_out in segments
            ]
        except InputError:  # a long recording is read while it is recognised
            continue
        starts, tops, counts = [part[0] for part in parts], [part[1] for part in parts], [part[2] for part in parts]
        by_position[int(utterance.id)] = Posterior(starts, counts, b"".join(tops))
        advance(utterance.duration)
    return by_position


def most_probable(log_probs: Tensor) -> bytes:
    """(T', V) to the TOP most probable tokens of each frame; where there are fewer, probability 0 fills up."""
    best = torch.topk(log_probs.float().exp(), min(TOP, log_probs.shape[1]), dim=1)
    kept = np.zeros((len(log_probs), TOP), dtype=PROBABLE)
    number = best.indices.shape[1]
    kept["token"][:, :number] = best.indices.numpy()
    kept["probability"][:, :number] = (best.values * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    return kept.tobytes()


def opus(waveform: Tensor, sample_rate: int) -> bytes:
    """Compress a waveform (S,) at one of OPUS_RATES to an Ogg file."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", sample_rate, 1, format="OGG", subtype="OPUS") as sound:
        sound.write(waveform.clamp(-1, 1).numpy())
    return file.getvalue()


def base64_bytes(size: float) -> float:
    """Return the length in base64 of `size` bytes."""
    return 4 * math.ceil(size / 3)
