"""What a recogniser makes of a manifest: hypotheses beside references, errors, and the time it took."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asr.data.batch import Rejected
from asr.manifest import Utterance
from asr.recognizer import INFERENCE, Inference, Recognizer
from asr.score import ErrorCounts, count_errors, total
from asr.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Scored:
    """One utterance beside what was recognised in it; both texts normalised."""

    utterance: Utterance
    reference: str
    transcript: Transcript
    counts: ErrorCounts

    def as_dict(self) -> dict[str, Any]:
        """A line of <manifest>.utterances.jsonl."""
        errors = {key: value for key, value in self.counts.as_dict().items() if key not in ("wer", "utterances")}
        about = {"id": self.utterance.id, "speaker": self.utterance.speaker, "duration": self.utterance.duration}
        texts = {"reference": self.reference, "hypothesis": self.transcript.text}
        words = self.transcript.as_dict()
        return about | texts | errors | {"confidence": words["confidence"], "words": words["words"]}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A manifest's utterances, in its order: the scored ones, and those that could not be read."""

    scored: list[Scored]
    rejected: list[Rejected]
    wall_seconds: float

    @property
    def counts(self) -> ErrorCounts:
        """Errors summed over the scored utterances."""
        return total(one.counts for one in self.scored)

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the counts, and how many utterances are not in them, under the names of results.json."""
        return {**self.counts.as_dict(), "not_scored": len(self.rejected)}

    def summary(self) -> str:
        """Say the WER, and what it is not of."""
        counts = self.counts
        wer = f"{100 * counts.wer:.2f} %" if counts.utterances else "not measured"
        missing = f"; {len(self.rejected)} utterances could not be read" if self.rejected else ""
        return f"WER {wer} of {counts.reference_words} words{missing}"

    @property
    def audio_seconds(self) -> float:
        """Seconds of audio scored."""
        return sum(one.utterance.duration for one in self.scored)

    @property
    def real_time_factor(self) -> float:
        """Wall seconds a second of audio, reading it included."""
        return self.wall_seconds / self.audio_seconds if self.audio_seconds else float("nan")


def evaluate(
    recognizer: Recognizer,
    utterances: Sequence[Utterance],
    how: Inference = INFERENCE,
    advance: Callable[[float], None] = lambda seconds: None,
) -> Evaluation:
    """Recognise utterances and count their errors.

    Args:
        recognizer: in eval mode.
        utterances: with their texts as written.
        how: see `asr.recognizer`.
        advance: told how many seconds of audio were done, as they are.
    """
    started = time.monotonic()
    scored: dict[str, Scored] = {}
    rejected: dict[str, Rejected] = {}
    for result in recognizer.recognize(utterances, how, advance):
        if isinstance(result, Rejected):
            rejected[result.utterance.id] = result
        else:
            scored[result[0].id] = _compare(recognizer, *result)
    return Evaluation(
        [scored[one.id] for one in utterances if one.id in scored],
        [rejected[one.id] for one in utterances if one.id in rejected],
        time.monotonic() - started,
    )


def _compare(recognizer: Recognizer, utterance: Utterance, transcript: Transcript) -> Scored:
    reference = recognizer.normalize(utterance.text)
    return Scored(utterance, reference, transcript, count_errors(reference, transcript.text))
