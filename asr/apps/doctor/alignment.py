"""Check for texts that disagree with the words that a model recognises in their audio."""

import math

from asr.apps.doctor.finding import Case, Finding, Progress, Severity
from asr.apps.doctor.sound import Measured
from asr.core.data.manifest import Utterance
from asr.core.recognition.aligned_segments import align_utterances, segment_score
from asr.core.recognition.inference import INFERENCE
from asr.core.recognition.recognizer import Recognizer

MIN_SCORE = -1.0  # texts with a lower score are reported; asr.align --min-score has the same default
MAX_HOURS = 1.0  # maximum hours of audio to align with the model; this takes minutes on a CPU


def alignment_findings(recognizer: Recognizer, measured: Measured, progress: Progress) -> list[Finding]:
    """Report texts with a poor score when a model aligns them with their audio.

    Args:
        recognizer: a trained model with a frame head.
        measured: readable utterances, by split.
        progress: called with the name of the task and the duration of its audio in seconds; returns a callback that
            advances the task.
    """
    sample = to_align(measured)
    on_progress = progress(
        "aligning", sum(utterance.duration for utterances in sample.values() for utterance in utterances)
    )
    cases: list[tuple[float, Case]] = []
    total = 0
    for split, utterances in sample.items():
        for utterance, aligned in align_utterances(recognizer, utterances, INFERENCE, on_progress):
            if isinstance(aligned, str):  # an empty text, or a text too long for its audio; other checks report both
                continue
            total += 1
            score = segment_score(aligned.deficits, recognizer.model.frame_seconds)
            if score < MIN_SCORE:
                cases.append((score, Case(split, utterance, f"score {score:.2f}: {utterance.text}")))
    if not cases:
        return []
    ordered = [case for _, case in sorted(cases, key=lambda pair: pair[0])]
    message = f"{len(cases):,} of {total:,} aligned texts score below {MIN_SCORE:g}: the model recognises other words."
    advice = "Listen to the worst utterances; asr.align lists all. A poor model gives low scores to correct texts, too."
    return [Finding("texts that disagree with the model", Severity.WARNING, message, advice, ordered)]


def to_align(measured: Measured) -> dict[str, list[Utterance]]:
    """Choose every n-th measured utterance of each split for alignment, at most about `MAX_HOURS` in total."""
    hours = sum(utterance.duration for pairs in measured.values() for utterance, _ in pairs) / 3600
    stride = max(1, math.ceil(hours / MAX_HOURS))
    return {split: [utterance for utterance, _ in pairs[::stride]] for split, pairs in measured.items()}
