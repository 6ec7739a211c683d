"""The evaluation of a recogniser on a manifest: hypotheses, references, errors, and wall time."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asr.base.text.normalize import Normalizer
from asr.base.text.numbers import percent
from asr.base.text.word_errors import ErrorCounts, total
from asr.core.data.batch import Rejected
from asr.core.data.manifest import Utterance
from asr.core.evaluation.analysis import rates
from asr.core.evaluation.utterances import Scored, score, show_writing, unspaced
from asr.core.recognition.inference import INFERENCE, Inference
from asr.core.recognition.recognizer import Recognizer

CHARACTER_COUNTS = ("substitutions", "insertions", "deletions", "reference_length")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scored and the unreadable utterances of one or several manifests, in the order of the manifests.

    Args:
        scored: utterances with their errors.
        rejected: unreadable utterances with the reason.
        wall_seconds: duration of the evaluation, including reading.
        normalizer: name of the normaliser of references and hypotheses.
    """

    scored: list[Scored]
    rejected: list[Rejected]
    wall_seconds: float
    normalizer: str

    @property
    def counts(self) -> ErrorCounts:
        """Word errors summed over the scored utterances."""
        return total(result.counts for result in self.scored)

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of results.json: rates, intervals, and the numbers of scored and unreadable utterances.

        `unspaced`: the CER is the rate to compare, see `asr.core.evaluation.utterances.unspaced`.
        """
        figures = rates(self.scored)
        words, characters, raw = figures["words"], figures["characters"], figures["raw_words"]
        return {
            "wer": words["rate"],
            "wer_interval": words["interval"],
            "wer_speaker_interval": words["speaker_interval"],
            "substitutions": words["substitutions"],
            "insertions": words["insertions"],
            "deletions": words["deletions"],
            "reference_words": words["reference_length"],
            "unspaced": unspaced(self.scored),
            "cer": characters["rate"],
            "cer_interval": characters["interval"],
            "cer_speaker_interval": characters["speaker_interval"],
            "characters": {key: characters[key] for key in CHARACTER_COUNTS},
            "raw_wer": raw["rate"],
            "raw_wer_interval": raw["interval"],
            "wordless": self.wordless,
            "normalizer": self.normalizer,
            "utterances": len(self.scored),
            "speakers": len({result.utterance.speaker for result in self.scored} - {None}),
            "not_scored": len(self.rejected),
        }

    @property
    def wordless(self) -> dict[str, Any] | None:
        """Count the words recognised in utterances with an empty reference; None if there are no such utterances."""
        results = [result for result in self.scored if result.counts.reference_length == 0]
        if not results:
            return None
        words = sum(result.counts.insertions for result in results)
        seconds = sum(result.utterance.duration for result in results)
        sums = {"utterances": len(results), "seconds": seconds, "words": words}
        return sums | {"words_an_hour": 3600 * words / seconds}

    def summary(self) -> str:
        """Describe the WER, that of texts as written if it differs, and unreadable utterances.

        For a script without spaces, the CER is first.
        """
        counts = self.counts
        raw = total(result.raw_counts for result in self.scored) if show_writing(self.scored) else counts
        wer = percent(counts.rate, 2)
        wer += f" ({percent(raw.rate, 2)} as written)" if raw.errors != counts.errors else ""
        missing = f"; {len(self.rejected)} utterances could not be read" if self.rejected else ""
        if unspaced(self.scored):
            characters = total(result.characters for result in self.scored)
            cer = f"CER {percent(characters.rate, 2)} of {characters.reference_length} characters"
            return f"{cer}, which are written without spaces between words (WER {wer}){missing}"
        return f"WER {wer} of {counts.reference_length} words{missing}"

    @property
    def audio_seconds(self) -> float:
        """Seconds of audio in the scored utterances."""
        return sum(result.utterance.duration for result in self.scored)

    @property
    def real_time_factor(self) -> float:
        """Wall seconds per second of audio, including reading."""
        return self.wall_seconds / self.audio_seconds if self.audio_seconds else math.nan


def together(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Join the evaluations of several manifests by one recogniser."""
    return Evaluation(
        [scored for evaluation in evaluations for scored in evaluation.scored],
        [rejected for evaluation in evaluations for rejected in evaluation.rejected],
        sum(evaluation.wall_seconds for evaluation in evaluations),
        evaluations[0].normalizer,
    )


def evaluate(
    recognizer: Recognizer,
    subset: str,
    utterances: Sequence[Utterance],
    options: Inference = INFERENCE,
    on_progress: Callable[[float], None] = lambda seconds: None,
    normalize: Normalizer | None = None,
) -> Evaluation:
    """Recognise utterances and count their errors.

    Args:
        recognizer: recogniser in eval mode.
        subset: name of the manifest.
        utterances: utterances with the texts as written in the manifest.
        options: see `asr.core.recognition.inference`.
        on_progress: called with the seconds of audio recognised since the last call.
        normalize: normaliser applied to references and hypotheses before errors are counted; None: `Model.scored_by`.
    """
    normalize = recognizer.model.scored_by if normalize is None else normalize
    started = time.monotonic()
    scored: dict[str, Scored] = {}
    rejected: dict[str, Rejected] = {}
    for result in recognizer.recognize(utterances, options, on_progress):
        if isinstance(result, Rejected):
            rejected[result.utterance.id] = result
        else:
            utterance, written = result
            reference, transcript = normalize(utterance.text), written.normalized(normalize)
            scored[utterance.id] = score(utterance, subset, reference, transcript, written.text)
    return Evaluation(
        [scored[utterance.id] for utterance in utterances if utterance.id in scored],
        [rejected[utterance.id] for utterance in utterances if utterance.id in rejected],
        time.monotonic() - started,
        normalize.__name__,
    )
