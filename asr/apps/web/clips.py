"""Recordings in a page: compressed audio, features, and the most probable tokens of each frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from asr.base.audio.encode import encode_audio
from asr.core.data.batch import Rejected
from asr.core.data.dataset import load_utterance
from asr.core.data.manifest import Utterance
from asr.core.recognition.inference import INFERENCE, Inference
from asr.core.recognition.recognizer import Recognizer
from asr.errors import AudioError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from asr.interfaces import Features

OPUS_RATES = (8000, 12000, 16000, 24000, 48000)  # all sample rates that Opus supports, in Hz
SPEECH_RATE = 16000  # sample rate in Hz if there is no model to determine it
USUAL_BYTES = 4000  # bytes per second of speech in Opus: 32 kbit/s, hard to distinguish from the original
TOP = 4  # number of tokens stored for each frame
PROBABLE = np.dtype([("token", "<u2"), ("probability", "u1")])  # the probability 1 is stored as 255
MAX_TOKENS = 2**16
LEVELS = 16  # number of levels of a feature in the log-mel picture; a byte stores two values
DARKEST, BRIGHTEST = 0.05, 0.995  # quantiles of a recording's features that map to the lowest and highest level
RANGE_FRAMES = 1000  # maximum number of frames from which the quantiles are computed

# Shows the progress of a named step over utterances; the callback receives the seconds of audio since its last call.
Progress = Callable[[str, Iterable[Utterance]], AbstractContextManager[Callable[[float], None]]]


@dataclass(frozen=True, slots=True)
class Posterior:
    """The most probable tokens of each frame of an utterance.

    Args:
        starts: beginning of each segment, in seconds.
        counts: number of frames of each segment.
        top: TOP entries of PROBABLE for each frame, most probable token first.
    """

    starts: list[float]
    counts: list[int]
    top: bytes


@dataclass(frozen=True, slots=True)
class Clips:
    """Recordings of some utterances, by their position in the list given to `record`.

    Args:
        audio: Ogg Opus files.
        problems: reasons for missing recordings.
        log_mel: features of the utterances, packed by `levels`.
        posteriors: posteriors of the utterances, where available.
        tokens: text of each token id in the posteriors, "" for the blank.
        frame_seconds: seconds from one frame of the posteriors to the next.
        features: sample_rate, num_mel_bins, window and shift of `log_mel`; None without `log_mel`.
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
        """Size in a page, in bytes."""
        tops = [posterior.top for posterior in self.posteriors.values()]
        return sum(base64_bytes(len(content)) for content in (*self.audio.values(), *self.log_mel.values(), *tops))


NO_CLIPS = Clips({}, problems={}, log_mel={}, posteriors={}, tokens=[], frame_seconds=0.0, features=None)


@contextmanager
def no_progress(step: str, utterances: Iterable[Utterance]) -> Iterator[Callable[[float], None]]:
    """Show no progress."""
    yield lambda seconds: None


def record(
    utterances: Sequence[Utterance],
    order: Iterable[int],
    budget: float,
    sample_rate: int = SPEECH_RATE,
    second_bytes: float = 0.0,
    on_progress: Callable[[float], None] = lambda seconds: None,
) -> Clips:
    """Compress utterances until the budget is used up; skip utterances that exceed the remaining budget.

    Args:
        utterances: utterances with their audio files.
        order: positions of the utterances to record, most important utterance first.
        budget: maximum bytes of all recordings in base64.
        sample_rate: sample rate in Hz; recordings have this rate, or the next higher rate that Opus supports.
        second_bytes: additional base64 bytes for each second of a recording.
        on_progress: called with the seconds of audio compressed since the last call.
    """
    rate = min((rate for rate in OPUS_RATES if rate >= sample_rate), default=OPUS_RATES[-1])
    audio: dict[int, bytes] = {}
    problems: dict[int, str] = {}
    seconds, spent = 1.0, base64_bytes(USUAL_BYTES)  # as if one second of the usual size had already been recorded
    left = budget
    for index in order:
        utterance = utterances[index]
        if utterance.duration * (0.8 * spent / seconds + second_bytes) > left:
            continue
        try:
            compressed = opus(load_utterance(utterance, rate), rate)
        except AudioError as error:
            problems[index] = str(error)
            continue
        size = base64_bytes(len(compressed))
        seconds, spent = seconds + utterance.duration, spent + size
        size += utterance.duration * second_bytes
        if size <= left:
            audio[index] = compressed
            left -= size
            on_progress(utterance.duration)
    return replace(NO_CLIPS, audio=audio, problems=problems)


def record_with_features(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    order: Iterable[int],
    budget: float,
    options: Inference = INFERENCE,
    progress: Progress = no_progress,
) -> Clips:
    """Record utterances like `record`, and add features and posteriors, for which the model runs again.

    Args:
        recognizer: provides features and model.
        utterances, order, budget: arguments of `record`.
        options: inference options for the posteriors.
        progress: shows the progress of the steps "recordings" and "pictures".
    """
    features, frame_seconds = recognizer.model.features, recognizer.model.frame_seconds
    fits = recognizer.model.head.frame_head is not None and recognizer.model.tokenizer.vocab_size <= MAX_TOKENS
    second_bytes = base64_bytes(features.dim / 2 * features.sample_rate / features.hop)
    second_bytes += base64_bytes(TOP * PROBABLE.itemsize) / frame_seconds if fits else 0.0
    with progress("recordings", utterances) as on_progress:
        clips = record(utterances, order, budget, features.sample_rate, second_bytes, on_progress)
    log_mel = {}
    probable: dict[int, Posterior] = {}
    with progress("pictures", [utterances[index] for index in clips.audio]) as on_progress:
        for index in clips.audio:
            with suppress(AudioError):  # the file was removed or damaged since it was recorded
                waveform = load_utterance(utterances[index], features.sample_rate)
                log_mel[index] = levels(features_in_parts(features, waveform, options.chunks.chunk_seconds))
        if fits:
            probable = posteriors(recognizer, utterances, list(clips.audio), options, on_progress)
    return replace(
        clips,
        log_mel=log_mel,
        posteriors=probable,
        tokens=[*recognizer.model.tokenizer.names],
        frame_seconds=frame_seconds,
        features={
            "sample_rate": features.sample_rate,
            "num_mel_bins": features.dim,
            "window": features.window,
            "shift": features.hop,
        },
    )


def features_in_parts(features: Features, waveform: Tensor, seconds: float) -> Tensor:
    """Compute the features (T, F) of a waveform (S,), in parts if it is longer than `seconds`.

    Recognition splits a long recording into parts of about this length and normalises each part separately.
    """
    num_samples = max(1, int(seconds * features.sample_rate) // features.hop) * features.hop
    overlap = features.window - features.hop  # so that no frame of the waveform is lost between two parts
    starts = range(0, max(1, len(waveform) - overlap), num_samples)
    return torch.cat([features(waveform[start : start + num_samples + overlap]) for start in starts])


def levels(features: Tensor) -> bytes:
    """Quantise features (T, F) to LEVELS levels, frame by frame; pack two values into a byte, low half first."""
    frames = features[:: len(features) // RANGE_FRAMES + 1].numpy()
    dark, bright = np.quantile(frames, (DARKEST, BRIGHTEST)) if len(frames) else (0.0, 1.0)
    shares = ((features.numpy() - dark) / max(bright - dark, 1e-6)).clip(0, 1).ravel()
    level = (shares * (LEVELS - 1)).round().astype(np.uint8)
    pairs = np.pad(level, (0, len(level) % 2)).reshape(-1, 2)
    return (pairs[:, 0] | pairs[:, 1] << 4).tobytes()


def posteriors(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    indices: Sequence[int],
    options: Inference,
    on_progress: Callable[[float], None],
) -> dict[int, Posterior]:
    """Run the model over the utterances at these positions; skip utterances that are no longer readable."""
    chosen = [replace(utterances[index], id=str(index)) for index in indices]  # ids may repeat
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
        except InputError:  # a long recording is only read in the loop above, so it can still be unreadable
            continue
        starts, tops, counts = [part[0] for part in parts], [part[1] for part in parts], [part[2] for part in parts]
        by_position[int(utterance.id)] = Posterior(starts, counts, b"".join(tops))
        on_progress(utterance.duration)
    return by_position


def most_probable(log_probs: Tensor) -> bytes:
    """Return the TOP most probable tokens of each frame of log_probs (T', V); if V < TOP, pad with probability 0."""
    best = torch.topk(log_probs.float().exp(), min(TOP, log_probs.shape[1]), dim=1)
    top = np.zeros((len(log_probs), TOP), dtype=PROBABLE)
    number = best.indices.shape[1]
    top["token"][:, :number] = best.indices.numpy()
    top["probability"][:, :number] = (best.values * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    return top.tobytes()


def opus(waveform: Tensor, sample_rate: int) -> bytes:
    """Compress a waveform (S,) at one of OPUS_RATES to an Ogg file."""
    return encode_audio(waveform.clamp(-1, 1).numpy(), sample_rate, "OGG", "OPUS")


def base64_bytes(size: float) -> float:
    """Return the number of bytes that `size` bytes take in base64."""
    return 4 * math.ceil(size / 3)
