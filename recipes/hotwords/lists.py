"""Write lists of rare words for manifests, to measure hotwords with them.

    python -m recipes.hotwords.lists dev-mini.jsonl --text lm_text_train.txt --words 1000 --output-dir lists

The rare words of a reference are those that are not among the most frequent words of the text. Whether a model gets
them wrong has no influence: lists of a model's errors would improve with any change (Le et al. 2021, arXiv:2104.02194).
A list is filled up to its size with rare words of the text that no reference contains. The command writes
`NAME.hotwords.txt`, one list for the whole manifest, `NAME.absent.txt`, words that no reference contains, and
`NAME.jsonl`, a copy of the manifest whose key `hotwords` is a list for each utterance: its own rare words, and others.
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asr.base.system.files import write_whole_text
from asr.base.text.normalize import get_normalizer
from asr.core.data.manifest import HOTWORDS, Utterance, read_manifest, write_manifest
from asr.errors import InputError
from recipes.command import ROOM, AddOption, run_recipe
from recipes.output import claim

NUM_FREQUENT = 5_000  # the most frequent words of the text are not rare
MIN_LETTERS = 4
SEED = 0


@dataclass(frozen=True)
class RareWords:
    """The rare words of references, and others for their lists.

    Args:
        of_reference: the different rare words of each utterance's reference, by its id.
        others: rare words of the text that no reference contains, in a random order.
    """

    of_reference: dict[str, list[str]]
    others: list[str]

    @property
    def spoken(self) -> list[str]:
        """The different rare words of all references."""
        return list(dict.fromkeys(word for words in self.of_reference.values() for word in words))

    def of_set(self, size: int) -> list[str]:
        """Return one list for all utterances: all spoken rare words, and others up to the size."""
        return _filled(self.spoken, self.others, size)

    def of_utterance(self, utterance_id: str, size: int) -> list[str]:
        """Return the list of an utterance: its rare words, and others up to the size."""
        draw = random.Random(f"{SEED} {utterance_id}")
        own = self.of_reference[utterance_id]
        return _filled(own, draw.sample(self.others, min(size, len(self.others))), size)

    def absent(self, size: int) -> list[str]:
        """Return a list of words that nobody says."""
        return _filled([], self.others, size)


def _filled(words: Sequence[str], others: Sequence[str], size: int) -> list[str]:
    if len(words) + len(others) < size:
        raise InputError(f"--words must be at most {len(words) + len(others):,} with this text; got {size:,}.")
    return [*words, *others[: max(0, size - len(words))]]


def rare_words(
    utterances: Sequence[Utterance],
    lines: Iterable[str],
    normalize: Callable[[str], str],
    num_frequent: int = NUM_FREQUENT,
    excluded: Sequence[str] = (),
) -> RareWords:
    """Find the rare words of references.

    Args:
        utterances: utterances with their references.
        lines: the text that says how frequent words are.
        normalize: text normaliser.
        num_frequent: number of most frequent words of the text that are not rare.
        excluded: words that are never listed.
    """
    counts = Counter(word for line in lines for word in normalize(line).split())
    # Equally frequent words are in alphabetical order, so that the result does not depend on the order of the lines.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    common = {*ranked[:num_frequent], *excluded}

    def is_rare(word: str) -> bool:
        return word not in common and len(word) >= MIN_LETTERS

    spoken = {each.id: list(dict.fromkeys(normalize(each.text).split())) for each in utterances}
    in_references = {word for words in spoken.values() for word in words}
    others = [word for word in ranked if is_rare(word) and word not in in_references]
    random.Random(SEED).shuffle(others)
    return RareWords({name: list(filter(is_rare, words)) for name, words in spoken.items()}, others)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("recipes.hotwords.lists", __doc__, _add_options, _run, arguments, must=ROOM)


def add_words(add: AddOption) -> None:
    """Add the options that choose rare words."""
    add("manifests", metavar="MANIFEST", nargs="+", type=Path, help="utterances with references")
    add("--text", metavar="FILE", type=Path, required=True, help="text that says how frequent words are")
    add("--frequent", metavar="N", type=int, default=NUM_FREQUENT, help="number of words that are not rare (5000)")
    add("--exclude", metavar="WORD", nargs="*", default=[], help="words that are never listed")


def words_of(
    options: argparse.Namespace, utterances: Sequence[Utterance], normalize: Callable[[str], str]
) -> RareWords:
    """Find the rare words of utterances as the options choose."""
    with options.text.open(encoding="utf-8") as lines:
        return rare_words(utterances, lines, normalize, options.frequent, options.exclude)


def _add_options(add: AddOption) -> None:
    add_words(add)
    add("--normalizer", metavar="NAME", default="basic", help="text normaliser of the model (basic)")
    add("--words", metavar="N", type=int, default=1_000, help="words of a list (1000)")
    add("--output-dir", metavar="DIR", type=Path, required=True, help="folder for the lists")


def _run(options: argparse.Namespace) -> None:
    normalize = get_normalizer(options.normalizer)
    names = [path.stem for path in options.manifests]
    claim(options.output_dir, "recipes.hotwords.lists", [f"{name}.jsonl" for name in names])
    for name, path in zip(names, options.manifests, strict=True):
        utterances = read_manifest(path)
        words = words_of(options, utterances, normalize)
        for kind, phrases in ("hotwords", words.of_set(options.words)), ("absent", words.absent(options.words)):
            write_whole_text(options.output_dir / f"{name}.{kind}.txt", "".join(f"{word}\n" for word in phrases))
        lists = ("\n".join(words.of_utterance(each.id, options.words)) for each in utterances)
        listed = [replace(each, labels={HOTWORDS: own}) for each, own in zip(utterances, lists, strict=True)]
        write_manifest(options.output_dir / f"{name}.jsonl", listed)
        counts = Counter(word for each in utterances for word in normalize(each.text).split())
        number = sum(counts[word] for word in words.spoken)
        print(f"{name}: {number:,} of {counts.total():,} words are rare, {len(words.spoken):,} of them different")


if __name__ == "__main__":
    raise SystemExit(main())
