"""examples.jsonl: how a few validation utterances were recognised, validation after validation."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from asr.data.manifest import Utterance
from asr.system.files import write_whole_text

NUMBER = 8


@dataclass(frozen=True, slots=True)
class ValidationSample:
    """One utterance at one validation; both texts normalised.

    Args:
        step: optimizer steps done.
        epoch: from 1; 0 before the first step.
        id: of the utterance.
        reference: its text.
        hypothesis: what was recognised.
    """

    step: int
    epoch: int
    id: str
    reference: str
    hypothesis: str


class SamplesFile:
    """Keep what the run's weights made of the same utterances each time, in the order of the manifest.

    Args:
        path: of the file.
        ids: of the utterances that are followed.
    """

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self.path = path
        self.ids = tuple(ids)

    def cut(self, done: int) -> None:
        """Forget the validations behind step `done`, which will be done again, and what a kill has left of a line."""
        if self.path.is_file():
            samples = read_samples(self.path)
            write_whole_text(self.path, "".join(_line(sample) for sample in samples if sample.step <= done))

    def append(self, samples: Iterable[ValidationSample]) -> None:
        """Add the samples of one validation, which may come in any order."""
        places = {name: place for place, name in enumerate(self.ids)}
        lines = [_line(sample) for sample in sorted(samples, key=lambda sample: places[sample.id])]
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))


def choose_samples(utterances: Sequence[Utterance], number: int = NUMBER) -> list[str]:
    """Choose the ids of `number` utterances, evenly spread from the first to the last of the manifest."""
    if len(utterances) <= number:
        return [utterance.id for utterance in utterances]
    return [utterances[place * (len(utterances) - 1) // (number - 1)].id for place in range(number)]


def read_samples(path: Path) -> list[ValidationSample]:
    """Read the file as far as its lines are whole; none where there is no file."""
    if not path.is_file():
        return []
    samples = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            sample = ValidationSample(**json.loads(line))
        except (ValueError, TypeError):  # cut short by a kill
            continue
        texts = (sample.id, sample.reference, sample.hypothesis)
        if isinstance(sample.step, int) and all(isinstance(text, str) for text in texts):
            samples.append(sample)
    return samples


def _line(sample: ValidationSample) -> str:
    return json.dumps(asdict(sample)) + "\n"
