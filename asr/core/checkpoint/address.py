"""Addresses on a hub: models, `hf://OWNER/NAME[@REVISION]`; data sets, `hf://datasets/OWNER/NAME[@REVISION][:SPLIT]`."""

import re
from pathlib import Path
from typing import NamedTuple

from asr.errors import InputError

SCHEME = "hf://"
ADDRESS = re.compile(r"hf://([\w.-]+)/([\w.-]+?)(?:@([\w./-]+))?", re.ASCII)
DATASETS = "hf://datasets/"
TRAIN = "train"  # split of a data set whose address names none
MAIN = "main"


class Address(NamedTuple):
    """Owner, name and revision of a model on a hub."""

    owner: str
    name: str
    revision: str

    @property
    def repository(self) -> str:
        """Name of the repository on the hub: OWNER/NAME."""
        return f"{self.owner}/{self.name}"

    def __str__(self) -> str:
        return f"{SCHEME}{self.repository}" + ("" if self.revision == MAIN else f"@{self.revision}")


def parse(text: str) -> Address:
    """Parse an address."""
    match = ADDRESS.fullmatch(text)
    if match is None or ".." in text:
        raise InputError(f"a model's address must be {SCHEME}OWNER/NAME or {SCHEME}OWNER/NAME@REVISION; got {text!r}.")
    return Address(match[1], match[2], match[3] or MAIN)


def parse_dataset(text: str) -> tuple[Address, str]:
    """Parse the address of a data set; return it with the name of the split."""
    whole, _, split = text.removeprefix(DATASETS).partition(":")
    match = ADDRESS.fullmatch(f"{SCHEME}{whole}")
    if not text.startswith(DATASETS) or match is None or ".." in text or not re.fullmatch(r"[\w./-]*", split, re.ASCII):
        must = f"a data set's address must be {DATASETS}OWNER/NAME, optionally with :SPLIT or :CONFIG/SPLIT"
        raise InputError(f"{must}; got {text!r}.")
    return Address(match[1], match[2], match[3] or MAIN), split or TRAIN


def is_address(model: str | Path) -> bool:
    """Return whether a model is given by an address."""
    return isinstance(model, str) and model.startswith(SCHEME)


def hub_hint(path: Path) -> str:
    """Return a hint for the error about an absent path if the path may be a model's OWNER/NAME on a hub; else "".

    A path in an existing folder gets no hint, because it is probably a mistyped path.
    """
    is_name = not path.parent.exists() and ADDRESS.fullmatch(f"{SCHEME}{path}") is not None
    return f" A model on a hub is named {SCHEME}{path}." if is_name else ""
