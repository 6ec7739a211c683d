"""Scored utterances made up for tests."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from asr.data.manifest import Utterance
from asr.evaluation.utterances import Scored, score
from asr.recognition.transcript import Transcript, Word

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
    """A scored utterance; its words are half a second apart, and sure to 0.5 unless said otherwise."""
    words = tuple(
        Word(word, number / 2, number / 2 + 0.4, confidences[number] if confidences else 0.5)
        for number, word in enumerate(hypothesis.split())
    )
    utterance = Utterance(f"/audio/{name}.wav", duration, reference if text is None else text, name, None, speaker)
    return score(utterance, subset, reference, Transcript(words, (), duration))


def simulated(count: int, seed: int, *, error_rate: float = 0.1, reference_seed: int = 0) -> list[Scored]:
    """Utterances of 20 words by 20 speakers; each word is wrong with a chance, and the less sure if it is."""
    spoken, heard = random.Random(reference_seed), random.Random(seed)
    found = []
    for number in range(count):
        reference = [spoken.choice(WORDS) for _ in range(20)]
        hypothesis, confidences = [], []
        for word in reference:
            chance = heard.random()
            if chance < error_rate / 4:
                continue
            hypothesis.append(heard.choice(WORDS) if chance < error_rate else word)
            confidences.append(heard.uniform(0.0, 0.7) if chance < error_rate else heard.uniform(0.3, 1.0))
        found.append(
            scored(
                " ".join(reference),
                " ".join(hypothesis),
                name=f"utterance-{number}",
                speaker=f"speaker {number % 20}",
                duration=spoken.uniform(4, 12),
                confidences=confidences,
            )
        )
    return found


def write_scored(path: Path, rows: Iterable[Scored]) -> Path:
    """Write NAME.utterances.jsonl as `asr.evaluate` does."""
    lines = "".join(json.dumps(row.as_dict(), ensure_ascii=False) + "\n" for row in rows)
    path.write_text(lines, encoding="utf-8", errors="surrogateescape")
    return path
