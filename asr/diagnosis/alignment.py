"""Texts that a model hears otherwise."""

import math

from asr.data.manifest import Utterance
from asr.diagnosis.finding import Case, Finding, Progress, Severity
from asr.diagnosis.sound import Heard
from asr.recognition.aligned_segments import align_utterances, segment_score
from asr.recognition.inference import INFERENCE
from asr.recognition.recognizer import Recognizer

MIN_SCORE = -1.0  # as asr.align --min-score
MOST_HOURS = 1.0  # of audio that the model hears: on a processor it takes minutes


def alignment_findings(recognizer: Recognizer, heard: Heard, progress: Progress) -> list[Finding]:
    """Say which texts do not fit what a model hears.

    Args:
        recognizer: a trained model with a frame head.
        heard: utterances that can be read, by split.
        progress: shows how far it has come, in seconds of audio.
    """
    sample = to_align(heard)
    advance = progress("aligning", sum(one.duration for utterances in sample.values() for one in utterances))
    cases: list[tuple[float, Case]] = []
    total = 0
    for split, utterances in sample.items():
        for utterance, aligned in align_utterances(recognizer, utterances, INFERENCE, advance):
            if isinstance(aligned, str):  # empty, or too long for its audio: another check names it
                continue
            total += 1
            score = segment_score(aligned.deficits, recognizer.model.frame_seconds)
            if score < MIN_SCORE:
                cases.append((score, Case(split, utterance, f"score {score:.2f}: {utterance.text}")))
    if not cases:
        return []
    ordered = [case for _, case in sorted(cases, key=lambda pair: pair[0])]
    what = f"{len(cases):,} of {total:,} texts aligned score below {MIN_SCORE:g}: the model hears something else there."
    advice = "Listen to the worst; asr.align names all. Where the model is poor, so are its scores."
    return [Finding("texts unlike what is heard", Severity.WARNING, what, advice, ordered)]


def to_align(heard: Heard) -> dict[str, list[Utterance]]:
    """Choose, of what was listened to, as much as a model is to hear: every so many utterances of each split."""
    hours = sum(utterance.duration for pairs in heard.values() for utterance, _ in pairs) / 3600
    stride = max(1, math.ceil(hours / MOST_HOURS))
    return {split: [utterance for utterance, _ in pairs[::stride]] for split, pairs in heard.items()}
