"""The values of labels, such as the languages of the training data, and their ids."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from asr.base.system.learnt import from_json, to_json
from asr.base.text.printable import listed
from asr.core.data.manifest import Utterance
from asr.core.data.utterances import Utterances
from asr.errors import InputError, shown
from asr.interfaces import UNKNOWN_ID

LABELS_FILE = "labels.json"
MAX_ID = 65_536  # largest id of a value
LANGUAGE = "language"  # the label that --language and `language` of the Python interface set


class Labels:
    """The labels that a model reads, with the values that it knows and their ids.

    Several values may have one id, such as "de" and "de-DE". An utterance without a label, or with a value that the
    model does not know, has the id 0, UNKNOWN_ID, which may also have a name, such as "auto".

    Args:
        names: names of the labels. `fit` or `load` sets their values.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._ids: dict[str, dict[str, int]] = {name: {} for name in names}

    @property
    def names(self) -> list[str]:
        """Names of the labels."""
        return list(self._ids)

    def values(self, name: str) -> list[str]:
        """Return the values of a label, in the order of their ids."""
        return sorted(self._ids[name], key=self._ids[name].__getitem__)

    def ids(self, name: str) -> dict[str, int]:
        """Return the ids of a label's values."""
        return dict(self._ids[name])

    def last_id(self, name: str) -> int:
        """Return the largest id of a label's values; 0 before they are known."""
        return max(self._ids[name].values(), default=UNKNOWN_ID)

    def fit(self, utterances: Utterances) -> None:
        """Take the values from training utterances, in alphabetical order."""
        for name in self._ids:
            values = sorted({value for value in utterances.label(name) if value is not None})
            if not values:
                must = f"training utterances must have the label that prompt.label names, {name}"
                raise InputError(f"{must}; none of {len(utterances):,} has it. Add the key to the manifests.")
            self._ids[name] = _numbered(values)

    def files(self) -> dict[str, bytes]:
        """Return the values as a file; without labels, there is no file."""
        return to_json(LABELS_FILE, self._ids) if self._ids else {}

    def load(self, files: Mapping[str, bytes]) -> None:
        """Read the values from the file.

        Raises:
            InputError: the file is damaged.
            KeyError: the file is absent.
        """
        if not self._ids:
            return
        content = from_json(files, LABELS_FILE)
        if (
            not isinstance(content, dict)
            or content.keys() != self._ids.keys()
            or not all(map(_valid, content.values()))
        ):
            must = f"{LABELS_FILE} must have ids by value for {', '.join(self._ids)}"
            raise InputError(f"{must}; got {shown(content)}.")
        self._ids = {name: content[name] for name in self._ids}

    def conditions(self, labels: Sequence[Mapping[str, str]]) -> dict[str, Tensor]:
        """Return the ids of the labels of B utterances, (B,) int64 each, by the label's name."""
        return {
            name: torch.tensor([ids.get(own.get(name, ""), UNKNOWN_ID) for own in labels], dtype=torch.int64)
            for name, ids in self._ids.items()
        }

    def check(self, name: str, value: str, option: str) -> None:
        """Check that the model knows a value of a label; `option` is the user's name for the value."""
        if name not in self._ids:
            must = f"{option} needs a model with a prompt for the label {name}; this model has none"
            raise InputError(f"{must}. Leave out {option}.")
        if value not in self._ids[name]:
            must = f"{option} must be one of {', '.join(self._ids[name])}, which the model was trained with"
            raise InputError(f"{must}; got {shown(value)}. Leave it out if it is unknown.")

    def describe_unknown(self, utterances: Sequence[Utterance]) -> list[str]:
        """Return a line for each label that some utterances lack, or whose value the model does not know."""
        columns, lines = Utterances.of(utterances), []
        for name, ids in self._ids.items():
            unknown = [
                utterance_id
                for utterance_id, value in zip(columns.ids, columns.label(name), strict=True)
                if value not in ids
            ]
            if unknown:
                count = f"{len(unknown):,} of {len(utterances):,} utterances"
                lines.append(f"{count} have no {name} that the model knows: {listed(unknown)}")
        return lines


NO_LABELS = Labels([])


def _numbered(values: Sequence[str]) -> dict[str, int]:
    return {value: number for number, value in enumerate(values, start=UNKNOWN_ID + 1)}


def _valid(ids: Any) -> bool:
    is_whole = isinstance(ids, dict) and all(type(number) is int and 0 <= number <= MAX_ID for number in ids.values())
    return is_whole and "" not in ids and any(ids.values())
