"""The manifests of a fine-tuning run: recordings with texts are read, split, and written as manifests."""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from asr.cli.command import complain

if TYPE_CHECKING:
    from asr.data.manifest import Utterance
    from asr.run.initialization import Initialization

DATA = "data"  # folder of the manifests
TEST = "test"

Say = Callable[[str], None]  # prints and stores a line


class Parts(NamedTuple):
    """The utterances of a run; those of `also` show what the model forgets."""

    train: "list[Utterance]"
    valid: "list[Utterance]"
    test: "list[Utterance]"
    also: "list[list[Utterance]]"


def parts_of(options: argparse.Namespace, say: Say) -> Parts:
    """Read DATA, --test and --also-test, and split DATA."""
    from asr.checkpoint.address import DATASETS
    from asr.data.split import describe, describe_shared, num_shared_texts, split
    from asr.interchange.hub import download_dataset
    from asr.run.finetuning import expected_width
    from asr.sources.collect import collect
    from asr.sources.options import source_options

    def read(given: str, name: str, form: str | None = None) -> "list[Utterance]":
        path = download_dataset(given) if given.startswith(DATASETS) else Path(given)
        collected = collect(path, source_options(options, options.output / DATA / name), form, complain)
        say(collected.description)
        return collected.utterances

    data = read(options.data, "audio", options.format)
    if options.test is None:
        parts = split(data, options.seed)
        train, valid, test = parts.train, parts.valid, parts.test
        for line in describe(parts):
            say(line)
    else:
        train, valid, test = data, [], read(options.test, "test_audio")
        if shared := num_shared_texts((each.text for each in train), (each.text for each in test)):
            say(describe_shared(shared, len(test)))
    num_words = sum(len(utterance.text.split()) for utterance in test)
    width = 100 * expected_width(num_words)
    say(f"the test has {num_words:,} words: expect a 95 % interval of its WER of about {width:.0f} points")
    also = [read(path, f"also_audio_{number}") for number, path in enumerate(options.also_test, start=1)]
    return Parts(train, valid, test, also)


class WrittenCorpus(NamedTuple):
    """The manifests of a run.

    Args:
        settings: overrides that name the manifests.
        durations: durations of the training utterances in seconds.
        has_valid: whether there is a validation set.
    """

    settings: list[str]
    durations: list[float]
    has_valid: bool


def write_corpus(parts: Parts, start: "Initialization", folder: Path, say: Say) -> WrittenCorpus:
    """Write the manifests; training texts lose the characters that the model cannot spell."""
    from asr.data.manifest import write_manifest
    from asr.run.finetuning import spelt
    from asr.text.normalize import get_normalizer

    normalize, encode = get_normalizer(start.bundle.config["normalizer"]), start.tokenizer().encode
    train, valid, test = (spelt(part, normalize, encode) for part in parts[:3])
    for part, name in ((train, "training"), (valid, "validation")):
        if part.lost:
            say(part.describe(name))
    if test.lost:
        say(f"{test.describe(TEST)} in training; the test keeps them, and counts them as errors")
    also = {f"also_{number}": each for number, each in enumerate(parts.also, start=1)}
    manifests = {"train": train.utterances, "valid": valid.utterances, TEST: parts.test, **also}
    folder.mkdir(parents=True, exist_ok=True)
    for name, utterances in manifests.items():
        if utterances:
            absolute = (replace(each, audio_filepath=os.path.abspath(each.audio_filepath)) for each in utterances)
            write_manifest(folder / f"{name}.jsonl", absolute)
    of_splits = {"train": ["train"], "valid": ["valid"] if parts.valid else []}
    # The tokens need not cover the texts of also_test.
    of_splits |= {"test": [], "also_test": [TEST, *also]} if test.lost else {"test": [TEST], "also_test": [*also]}
    settings = [f"corpus.{key}=[{','.join(f'{name}.jsonl' for name in names)}]" for key, names in of_splits.items()]
    return WrittenCorpus(settings, [each.duration for each in parts.train], bool(parts.valid))
