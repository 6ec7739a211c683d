"""Recordings that a page carries: compressed audio, and what the net heard in each frame."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import soundfile
import torch

from asr.data.batch import Rejected
from asr.data.dataset import load_utterance
from asr.data.manifest import Utterance
from asr.errors import AudioError, InputError
from asr.recognition.recognizer import INFERENCE, Inference, Recognizer

if TYPE_CHECKING:
    from torch import Tensor

OPUS_RATES = (8000, 12000, 16000, 24000, 48000)  # Hz; Opus knows no others
SPEECH_RATE = 16000  # Hz, where no model says another
USUAL_BYTES = 4000  # a second of speech, as libsndfile has Opus compress it: 32 kbit/s, hard to tell from the original
TOP = 4  # tokens kept of each frame
PROBABLE = np.dtype([("token", "<u2"), ("probability", "u1")])  # 255 is a probability of 1
MOST_TOKENS = 2**16


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
        posteriors: of utterances that have one.
        tokens: what the numbers in the posteriors spell, "" for the blank.
        frame_seconds: from one frame of the posteriors to the next.
        features: how the model makes its log-mel frames (sample_rate, num_mel_bins, window, shift), if there is one.
    """

    audio: dict[int, bytes]
    problems: dict[int, str]
    posteriors: dict[int, Posterior]
    tokens: list[str]
    frame_seconds: float
    features: dict[str, int] | None
    top: int = TOP


NO_CLIPS = Clips({}, {}, {}, [], 0.0, None)


def record(
    utterances: Sequence[Utterance],
    order: Iterable[int],
    budget: float,
    sample_rate: int = SPEECH_RATE,
    second_bytes: float = 0.0,
    advance: Callable[[float], None] = lambda seconds: None,
) -> Clips:
    """Compress utterances until the budget is used up; one that is too large for what is left is passed over.

    Args:
        utterances: with their audio files.
        order: positions of those wanted, the most important first.
        budget: bytes that the recordings may take in base64.
        sample_rate: Hz; that of the recordings is this, or the next that Opus knows.
        second_bytes: what else each second of a recording takes in base64.
        advance: told how many seconds were compressed, as they are.
    """
    rate = min((one for one in OPUS_RATES if one >= sample_rate), default=OPUS_RATES[-1])
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


def record_with_posteriors(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    order: Iterable[int],
    budget: float,
    how: Inference = INFERENCE,
    advance: Callable[[float], None] = lambda seconds: None,
) -> Clips:
    """Record as `record` does, and run the net once more over what was recorded, to keep what it heard."""
    features = recognizer.model.features
    frame_seconds = recognizer.model.frame_seconds
    fits = recognizer.model.head.frame_head is not None and recognizer.model.tokenizer.vocab_size <= MOST_TOKENS
    second_bytes = base64_bytes(TOP * PROBABLE.itemsize) / frame_seconds if fits else 0.0
    clips = record(utterances, order, budget, features.sample_rate, second_bytes, advance)
    posteriors = hear(recognizer, utterances, list(clips.audio), how) if fits else {}
    pieces = [recognizer.model.tokenizer.pieces[token] for token in range(recognizer.model.tokenizer.vocab_size)]
    settings = {
        "sample_rate": features.sample_rate,
        "num_mel_bins": features.dim,
        "window": features.window,
        "shift": features.hop,
    }
    return replace(clips, posteriors=posteriors, tokens=pieces, frame_seconds=frame_seconds, features=settings)


def hear(
    recognizer: Recognizer, utterances: Sequence[Utterance], positions: Sequence[int], how: Inference
) -> dict[int, Posterior]:
    """Run the net over the utterances at these positions; one that can no longer be read is left out."""
    wanted = [replace(utterances[position], id=str(position)) for position in positions]  # ids repeat among manifests
    heard: dict[int, Posterior] = {}
    for result in recognizer.segments(wanted, how):
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
        heard[int(utterance.id)] = Posterior(starts, counts, b"".join(tops))
    return heard


def most_probable(log_probs: Tensor) -> bytes:
    """(T', V) to the TOP most probable tokens of each frame; those that round to 0 fill up."""
    best = torch.topk(log_probs.float().exp(), min(TOP, log_probs.shape[1]), dim=1)
    kept = np.zeros((len(log_probs), TOP), dtype=PROBABLE)
    found = best.indices.shape[1]
    kept["token"][:, :found] = best.indices.numpy()
    kept["probability"][:, :found] = (best.values * 255).round().clamp(0, 255).to(torch.uint8).numpy()
    return kept.tobytes()


def opus(waveform: Tensor, sample_rate: int) -> bytes:
    """Compress a waveform (S,) at one of OPUS_RATES to an Ogg file."""
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", sample_rate, 1, format="OGG", subtype="OPUS") as sound:
        sound.write(waveform.clamp(-1, 1).numpy())
    return file.getvalue()


def base64_bytes(size: float) -> float:
    """How long so many bytes are in base64."""
    return 4 * math.ceil(size / 3)
