"""Compare the times of the words that two files have in common.

python -m asr.evaluate MODEL test.jsonl --output-dir out
python -m asr.align MODEL test.jsonl > aligned.jsonl
python -m recipes.finetune.word_times out/test.utterances.jsonl aligned.jsonl
"""

import argparse
import sys
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np

from asr.core.data.manifest import named_lines, parse_object
from asr.errors import InputError
from recipes.command import AddOption, run_recipe

Words = Sequence[dict[str, Any]]  # text, start and end in seconds


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.finetune.word_times", __doc__, _add_options, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    first, second = (read_words(path) for path in options.files)
    differences = [pair for name in first.keys() & second.keys() for pair in compare(first[name], second[name])]
    if not differences:
        names = ", ".join(map(str, options.files))
        raise InputError(f"{names}: utterances with the same id must have words in common; no word is in both files.")
    print(f"{len(differences)} words in common")
    for edge, seconds in zip(("starts", "ends"), np.abs(differences).T, strict=True):
        median, largest = np.quantile(seconds, (0.5, 0.95))
        near = 100 * np.mean(seconds < 0.1)
        differ = f"{edge} differ by {median:.3f} s (median), {largest:.3f} s (95th percentile)"
        print(f"{differ}; {near:.1f} % of the words differ by less than 0.1 s")


def read_words(path: Path) -> dict[str, Words]:
    """Return a dict from the id of each utterance to its words.

    Raises:
        InputError: a line has no id or no words.
    """
    utterances: dict[str, Words] = {}
    for where, line in named_lines(path, "file of words"):
        entry = parse_object(line, where)
        if not {"id", "words"} <= entry.keys():
            raise InputError(f"{where}: a line must have the keys id and words; it has {', '.join(entry)}.")
        utterances[entry["id"]] = entry["words"]
    return utterances


def compare(first: Words, second: Words) -> list[tuple[float, float]]:
    """Pair equal words in order; return the differences of starts and of ends in each pair, first minus second (s)."""
    texts, other_texts = ([word["text"] for word in words] for words in (first, second))
    blocks = SequenceMatcher(None, texts, other_texts, autojunk=False).get_matching_blocks()
    pairs = [(first[a + number], second[b + number]) for a, b, length in blocks for number in range(length)]
    return [(word["start"] - other["start"], word["end"] - other["end"]) for word, other in pairs]


def _add_options(add: AddOption) -> None:
    add("files", type=Path, nargs=2, metavar="JSONL", help="one utterance per line, with its id and words")


if __name__ == "__main__":
    sys.exit(main())
