"""Plan of the corpus before synthesis: sentences, voices, and manner of speaking."""

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from recipes.mini.casting import cast
from recipes.mini.grammar import sentences
from recipes.mini.language import Language

SPLITS = ("train", "valid", "test")
_HELD_OUT = {"valid": 100, "test": 200}  # number of utterances if there is at least an hour of training speech
_TALKS = 0.4  # share of training utterances with several sentences; without them, models recognise words in pauses
_MAX_SENTENCES = 5
_MAX_PAUSE_SECONDS = 0.8
_SILENCES = 0.3  # share of single-sentence training utterances with silence around them, so that models ignore silence
_MAX_SILENCE_SECONDS = 2.0  # at each end


@dataclass(frozen=True, slots=True)
class Line:
    """Plan of an utterance: sentences, voice, and manner of speaking."""

    id: str
    split: str
    sentences: tuple[str, ...]
    pauses: tuple[float, ...]  # seconds before each sentence
    silences: tuple[float, float]  # seconds before and after the recording
    voice: str
    words_per_minute: int
    pitch: int
    pitch_range: int
    seed: int

    @property
    def text(self) -> str:
        """The text of all sentences."""
        return " ".join(self.sentences)

    @property
    def audio_path(self) -> str:
        """Path of the audio, relative to the output folder."""
        return f"audio/{self.split}/{self.id}.flac"

    @property
    def estimated_seconds(self) -> float:
        """Expected duration in seconds, accurate to a few per cent on average."""
        return 0.13 + sum(self.pauses) + sum(self.silences) + len(self.text) * 9.4 / self.words_per_minute


def plan(hours: float, seed: int, language: Language) -> list[Line]:
    """Plan all utterances of the corpus.

    Splits share neither voices nor sentences. Train contains every word of valid and test, and is longer than `hours`
    if this takes more sentences. With less than an hour of training speech, valid and test shrink in proportion.
    """
    used: set[str] = set()
    held_out: list[Line] = []
    for split in ("test", "valid"):  # planned first, so that they are identical for any `hours` of 1 or more
        lines = _lines(split, used, seed, language)
        held_out += [next(lines) for _ in range(max(10, round(_HELD_OUT[split] * min(hours, 1.0))))]
        used |= {sentence for line in held_out for sentence in line.sentences}
    missing = {word for text in used for word in text.split()}
    train: list[Line] = []
    lines, seconds = _lines("train", used, seed, language), 0.0
    while seconds < hours * 3600 or missing:
        line = next(lines)
        train.append(line)
        seconds += line.estimated_seconds
        missing -= set(line.text.split())
    return train + held_out


def _lines(split: str, used: set[str], seed: int, language: Language) -> Iterator[Line]:
    """Yield an endless sequence of lines of a split, without sentences that are already used."""
    dice = random.Random(f"{seed} {split} delivery")
    turns = cycle(cast(split, language.accents, f"{seed} {split} voices"))
    unused = (text for text in sentences(language, f"{seed} {split} sentences") if text not in used)
    talks = random.Random(f"{seed} {split} talks")
    silences = random.Random(f"{seed} {split} silences")
    for number, voice in enumerate(turns, start=1):
        name = f"{split}-{number:05d}"
        is_talk = split == "train" and talks.random() < _TALKS
        count = talks.randint(2, _MAX_SENTENCES) if is_talk else 1
        is_padded = split == "train" and not is_talk and silences.random() < _SILENCES
        longest = _MAX_SILENCE_SECONDS if is_padded else 0.0
        yield Line(
            id=name,
            split=split,
            sentences=tuple(islice(unused, count)),
            pauses=tuple(round(talks.uniform(0, _MAX_PAUSE_SECONDS), 2) if is_talk else 0.0 for _ in range(count)),
            silences=(round(silences.uniform(0, longest), 2), round(silences.uniform(0, longest), 2)),
            voice=voice,
            words_per_minute=dice.randint(150, 190),
            pitch=dice.randint(35, 65),
            pitch_range=dice.randint(35, 65),
            seed=zlib.crc32(f"{seed} {name}".encode()),
        )
