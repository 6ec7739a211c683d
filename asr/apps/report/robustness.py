"""Robustness to noise and rooms: evaluation of the same utterances under degraded conditions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from asr.base.system.seeds import seeded
from asr.base.text.normalize import Normalizer
from asr.core.build import find_class
from asr.core.data.dataset import load_utterance
from asr.core.data.manifest import Utterance
from asr.core.data.recordings import RecordingList
from asr.core.evaluation.result import Evaluation, evaluate
from asr.core.recognition.inference import Inference
from asr.core.recognition.recognizer import Recognizer

ROOM_METRES, ROOM_HEIGHT_METRES = (3.0, 8.0), (2.4, 3.5)  # typical sizes of rooms in homes and offices


Change = Callable[[Tensor], Tensor]  # returns a changed waveform (S,), like an augmentation


@dataclass(frozen=True)
class Condition:
    """A way of degrading utterances.

    Args:
        name: name of the condition in tables.
        change: applied to each waveform.
        snr_db: signal-to-noise ratio in dB; None for rooms.
    """

    name: str
    change: Change
    snr_db: float | None = None


@dataclass(frozen=True)
class Changed:
    """Loads utterances and degrades them; the degradation depends only on the seed and the utterance's id.

    An utterance therefore gets the same noise segment at each signal-to-noise ratio and for each model, so models are
    compared on equal audio.
    """

    change: Change
    seed: int

    def __call__(self, utterance: Utterance, sample_rate: int) -> Tensor:
        """Return the degraded waveform (S,)."""
        waveform = load_utterance(utterance, sample_rate)
        with seeded(self.seed, utterance.id):
            return self.change(waveform)


def in_noise(recordings: RecordingList, snrs_db: Sequence[float], sample_rate: int) -> list[Condition]:
    """Return a condition for each signal-to-noise ratio; it mixes one of the recordings into each utterance."""
    noise = find_class("augment", "noise")
    return [
        Condition(
            f"noise, {snr_db:g} dB",
            noise(sample_rate, recordings=recordings, probability=1.0, snr_db=[snr_db, snr_db], max_recordings=1),
            snr_db,
        )
        for snr_db in snrs_db
    ]


def in_rooms(responses: RecordingList, sample_rate: int) -> Condition:
    """Return the condition that convolves each utterance with one of the impulse responses."""
    reverberation = find_class("augment", "reverberation")
    return Condition("rooms", reverberation(sample_rate, recordings=responses, probability=1.0))


def in_simulated_rooms(rt60_seconds: float, sample_rate: int) -> Condition:
    """Return the condition that convolves each utterance with the response of a simulated room."""
    metres, height = list(ROOM_METRES), list(ROOM_HEIGHT_METRES)
    rt60 = [rt60_seconds, rt60_seconds]
    simulated_room = find_class("augment", "simulated_room")
    room = simulated_room(sample_rate, probability=1.0, width_metres=metres, height_metres=height, rt60_seconds=rt60)
    return Condition(f"rooms, {rt60_seconds:g} s", room)


@dataclass(frozen=True)
class Harder:
    """An evaluation of degraded utterances."""

    condition: Condition
    evaluation: Evaluation

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of this evaluation in NAME.wer.json."""
        return {"condition": self.condition.name, "snr_db": self.condition.snr_db, **self.evaluation.as_dict()}


def evaluate_in(
    condition: Condition,
    seed: int,
    recognizer: Recognizer,
    subset: str,
    utterances: Sequence[Utterance],
    options: Inference,
    on_progress: Callable[[float], None],
    normalize: Normalizer | None,
) -> Harder:
    """Degrade utterances, and evaluate them by `asr.core.evaluation.result.evaluate`; `seed` seeds the degradation."""
    options = replace(options, load=Changed(condition.change, seed))
    return Harder(condition, evaluate(recognizer, subset, utterances, options, on_progress, normalize))
