"""examples.jsonl: hypotheses of a few utterances at each validation."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from asr.base.system.files import write_whole_text
from asr.core.data.manifest import Utterance

NUMBER = 8


@dataclass(frozen=True, slots=True)
class ValidationSample:
    """An utterance at one validation; both texts are normalised.

    Args:
        step: completed optimizer steps.
        epoch: number of the epoch, counted from 1; 0 before the first step.
        id: id of the utterance.
        reference: correct text of the utterance.
        hypothesis: recognised text of the utterance.
    """

    step: int
    epoch: int
    id: str
    reference: str
    hypothesis: str


class SamplesFile:
    """Stores the hypotheses of the same utterances at each validation, in the order of the manifest.

    Args:
        path: path of the file.
        ids: ids of the utterances.
    """

    def __init__(self, path: Path, ids: Sequence[str]) -> None:
        self.path = path
        self.ids = tuple(ids)

    def cut(self, done: int) -> None:
        """Remove an incomplete last line, and validations after step `done`, which will be repeated."""
        if self.path.is_file():
            samples = read_samples(self.path)
            write_whole_text(self.path, "".join(_line(sample) for sample in samples if sample.step <= done))

    def append(self, samples: Iterable[ValidationSample]) -> None:
        """Append the samples of one validation, given in any order."""
        rows = {name: row for row, name in enumerate(self.ids)}
        lines = [_line(sample) for sample in sorted(samples, key=lambda sample: rows[sample.id])]
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))


def choose_samples(utterances: Sequence[Utterance], number: int = NUMBER) -> list[str]:
    """Choose the ids of `number` utterances, evenly spaced from the first to the last of the manifest."""
    if len(utterances) <= number:
        return [utterance.id for utterance in utterances]
    return [utterances[index * (len(utterances) - 1) // (number - 1)].id for index in range(number)]


def read_samples(path: Path) -> list[ValidationSample]:
    """Read the complete lines of the file; [] without a file."""
    if not path.is_file():
        return []
    samples = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            sample = ValidationSample(**json.loads(line))
        except (ValueError, TypeError):  # the process was killed while it wrote the line
            continue
        texts = (sample.id, sample.reference, sample.hypothesis)
        if isinstance(sample.step, int) and all(isinstance(text, str) for text in texts):
            samples.append(sample)
    return samples


def _line(sample: ValidationSample) -> str:
    return json.dumps(asdict(sample)) + "\n"
