"""Artificial scored utterances for tests."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from asr.core.data.manifest import Utterance
from asr.core.evaluation.utterances import Scored, score
from asr.core.recognition.transcript import Transcript, Word

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "left", "right"]


def scored(
    reference: str,
    hypothesis: str,
    *,
    name: str = "1",
    subset: str = "test",
    speaker: str | None = None,
    duration: float = 2.0,
    text: str | None = None,
    confidences: Sequence[float] = (),
) -> Scored:
    """Make a scored utterance; its words are half a second apart, with confidence 0.5 by default."""
    words = tuple(
        Word(word, number / 2, number / 2 + 0.4, confidences[number] if confidences else 0.5)
        for number, word in enumerate(hypothesis.split())
    )
    utterance = Utterance(f"/audio/{name}.wav", duration, reference if text is None else text, name, None, speaker)
    return score(utterance, subset, reference, Transcript(words, (), duration))


def simulated(count: int, seed: int, *, error_rate: float = 0.1, reference_seed: int = 0) -> list[Scored]:
    """Make utterances of 20 words by 20 speakers; random words are wrong and have lower confidence on average."""
    spoken, draw = random.Random(reference_seed), random.Random(seed)
    utterances = []
    for number in range(count):
        reference = [spoken.choice(WORDS) for _ in range(20)]
        hypothesis, confidences = [], []
        for word in reference:
            chance = draw.random()
            if chance < error_rate / 4:
                continue
            hypothesis.append(draw.choice(WORDS) if chance < error_rate else word)
            confidences.append(draw.uniform(0.0, 0.7) if chance < error_rate else draw.uniform(0.3, 1.0))
        utterances.append(
            scored(
                " ".join(reference),
                " ".join(hypothesis),
                name=f"utterance-{number}",
                speaker=f"speaker {number % 20}",
                duration=spoken.uniform(4, 12),
                confidences=confidences,
            )
        )
    return utterances


def write_scored(path: Path, rows: Iterable[Scored]) -> Path:
    """Write NAME.utterances.jsonl as `asr.evaluate` does."""
    lines = "".join(json.dumps(row.as_dict(), ensure_ascii=False) + "\n" for row in rows)
    path.write_text(lines, encoding="utf-8", errors="surrogateescape")
    return path
