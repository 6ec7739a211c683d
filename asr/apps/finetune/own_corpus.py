"""The manifests of a fine-tuning run: recordings with texts are read, split, and written as manifests."""

import argparse
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from asr.base.text.numbers import counted
from asr.core.cli.command import complain
from asr.errors import InputError, shown

if TYPE_CHECKING:
    from asr.core.data.manifest import Utterance
    from asr.interfaces import Tokenizer

DATA = "data"  # folder of the manifests
TEST, KEEP = "test", "keep"
MIN_CLIPS_WITH_CHOICE = 20  # with fewer training utterances, no share of the initial model is chosen
MAX_KEEP_SECONDS = 600.0  # of --keep, so that its recognition takes a bounded time

Say = Callable[[str], None]  # prints and stores a line


class Parts(NamedTuple):
    """The utterances of a run; those of `also`, by the name of their data, show what it forgets; `keep` limits that."""

    train: "list[Utterance]"
    valid: "list[Utterance]"
    test: "list[Utterance]"
    keep: "list[Utterance]"
    also: "dict[str, list[Utterance]]"


def parts_of(options: argparse.Namespace, say: Say) -> Parts:
    """Read DATA, --test and --also-test, and split DATA."""
    from asr.core.data.split import describe, split

    data = _collected(options, options.data, "audio", say)
    parts = split(data, options.seed, with_test=options.test is None)
    for line in describe(parts):
        say(line)
    test = parts.test
    if options.test is not None:
        test = _others(options, options.test, "test_audio", say)
        _check_apart("--test", test, "DATA", data)
    also = {
        name: _others(options, given, f"{name}_audio", say)
        for name, given in zip(names_of_tests(options.also_test), options.also_test, strict=True)
    }
    for utterances in also.values():
        _check_apart("--also-test", utterances, "the training part of DATA", parts.train)
    keep: list[Utterance] = []
    if options.keep is not None:
        given = _others(options, options.keep, f"{KEEP}_audio", say)
        for of, others in {"DATA": data, "the test": test, **also}.items():
            _check_apart("--keep", given, of, others)
        keep = bounded(given, MAX_KEEP_SECONDS)
        if len(keep) < len(given):
            say(f"--keep: the losses of {len(keep):,} of {counted(len(given), 'utterance')} are compared, to save time")
    for name, utterances in {"training": [*parts.train, *parts.valid], TEST: test, **also}.items():
        for line in _faults(name, utterances):
            say(line)
    return Parts(parts.train, parts.valid, test, keep, also)


def bounded(utterances: "Sequence[Utterance]", max_seconds: float) -> "list[Utterance]":
    """Choose utterances at equal distances, of about `max_seconds` in all."""
    seconds = sum(each.duration for each in utterances)
    return [*utterances[:: max(1, math.ceil(seconds / max_seconds))]]


def kept_speech(output: Path) -> "list[Utterance]":
    """Read the utterances of --keep that a run has written; [] without --keep."""
    from asr.core.data.manifest import read_manifest

    path = output / DATA / f"{KEEP}.jsonl"
    return read_manifest(path) if path.is_file() else []


def _faults(name: str, utterances: "Sequence[Utterance]") -> Iterator[str]:
    """Describe the faults that the characters of texts show, such as marks; `name` is the name of the part."""
    from asr.base.text.faults import failed_checks

    for check, faults in failed_checks([each.text for each in utterances]):
        first = min(faults)
        message = f"{len(faults):,} of {counted(len(utterances), f'{name} text')} {check.meaning}"
        yield f"{check.kind}: {message} The first: {faults[first]} ({utterances[first].id}). {check.advice}"


def names_of_tests(given: "Sequence[str]") -> list[str]:
    """Return a name for each test, for its manifest and its column of results: the name of its data if that is free."""
    names: list[str] = []
    for number, path in enumerate(given, start=1):
        name = re.sub(r"[^\w-]+", "_", Path(path).stem, flags=re.ASCII).strip("_-")
        taken = {"", "train", "valid", TEST, KEEP, "half_1", "half_2", *(each.lower() for each in names)}
        names.append(f"also_{number}" if name.lower() in taken or name.lower().startswith("also_") else name)
    return names


def _collected(options: argparse.Namespace, given: str, name: str, say: Say) -> "list[Utterance]":
    from asr.apps.finetune.collect import collect
    from asr.apps.finetune.options import source_options

    source = source_options(options, options.output / DATA / name)
    collected = collect(_path(given), source, options.format, complain)
    say(collected.description)
    return collected.utterances


def _others(options: argparse.Namespace, given: str, name: str, say: Say) -> "list[Utterance]":
    """Read data for a test; the options of DATA's format are not for it."""
    from asr.apps.finetune.collect import collect
    from asr.apps.finetune.entry import SourceOptions

    source = SourceOptions(audio_dir=options.output / DATA / name, skip_bad=options.skip_bad)
    collected = collect(_path(given), source, options.test_format, complain, format_option="--test-format")
    say(collected.description)
    return collected.utterances


def _path(given: str) -> Path:
    from asr.core.checkpoint.address import DATASETS
    from asr.core.hub.download import download_dataset

    return download_dataset(given) if given.startswith(DATASETS) else Path(given)


def _check_apart(option: str, test: "Sequence[Utterance]", of: str, data: "Sequence[Utterance]") -> None:
    """Check that the test of an option has other recordings than `data`, whose name is `of`."""
    places = {(os.path.realpath(each.audio_filepath), each.offset) for each in data}
    common = [each.id for each in test if (os.path.realpath(each.audio_filepath), each.offset) in places]
    if common:
        must = f"{option} must have other recordings than {of}"
        raise InputError(f"{must}; {len(common):,} of its {len(test):,} are in both, such as {shown(common[0])}.")


class WrittenCorpus(NamedTuple):
    """The manifests of a run.

    Args:
        settings: overrides that name the manifests.
        durations: durations of the utterances that are trained on, in seconds.
        has_valid: whether there is a validation set.
    """

    settings: list[str]
    durations: list[float]
    has_valid: bool


def write_corpus(
    parts: Parts, tokenizer: "Tokenizer", normalizer: str, max_seconds: float, folder: Path, say: Say
) -> WrittenCorpus:
    """Write the manifests; training texts lose the characters that the tokenizer cannot spell.

    Args:
        parts: the utterances.
        tokenizer: the tokenizer of the run.
        normalizer: name of the text normaliser of the run.
        max_seconds: duration of the longest utterance that is trained on.
        folder: folder of the manifests.
        say: called with each line about what is lost.
    """
    from asr.apps.finetune.settings import expected_width, spelt
    from asr.base.text.normalize import get_normalizer
    from asr.base.text.scripts import without_spaces
    from asr.core.data.manifest import write_manifest
    from asr.core.data.split import describe_shared, num_shared_texts

    normalize = get_normalizer(normalizer)
    train, valid, test, keep = (spelt(part, normalize, tokenizer.encode) for part in parts[:4])
    for part, name in ((train, "training"), (valid, "validation"), (keep, "--keep")):
        if part.lost:
            say(part.describe(name))
    if test.lost:
        say(f"{test.describe(TEST)} in training; the test keeps them, and counts them as errors")
    texts = [each.text for each in train.utterances], [each.text for each in test.utterances]
    if shared := num_shared_texts(*texts):
        say(describe_shared(shared, len(parts.test)))
    words = [word for text in texts[1] for word in text.split()]
    if words and not without_spaces(" ".join(words)):
        width = 100 * expected_width(len(words))
        say(f"the test has {len(words):,} words: expect a 95 % interval of its WER of about {width:.0f} points")
    durations = _usable(train.utterances, max_seconds, say)
    manifests = {
        "train": train.utterances,
        "valid": valid.utterances,
        TEST: parts.test,
        KEEP: keep.utterances,
        **parts.also,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, utterances in manifests.items():
        (folder / f"{name}.jsonl").unlink(missing_ok=True)  # of an earlier command, such as one with --dry-run
        if utterances:
            absolute = (replace(each, audio_filepath=os.path.abspath(each.audio_filepath)) for each in utterances)
            write_manifest(folder / f"{name}.jsonl", absolute)
    of_splits = {"train": ["train"], "valid": ["valid"] if parts.valid else []}
    # The tokens need not cover the texts of also_test.
    tests = ([], [TEST, *parts.also]) if test.lost else ([TEST], [*parts.also])
    of_splits |= dict(zip(("test", "also_test"), tests, strict=True))
    settings = [f"corpus.{key}=[{','.join(f'{name}.jsonl' for name in names)}]" for key, names in of_splits.items()]
    return WrittenCorpus(settings, durations, bool(parts.valid))


def _usable(utterances: "Sequence[Utterance]", max_seconds: float, say: Say) -> list[float]:
    """Return the durations of the utterances that are trained on; count the others."""
    with_text = [each for each in utterances if each.text.strip()]
    if not with_text:
        must = "the model must have tokens for the letters of the training texts"
        raise InputError(f"{must}; it has none for those of {counted(len(utterances), 'text')}. Take another model.")
    durations = [each.duration for each in with_text if each.duration <= max_seconds]
    if num_empty := len(utterances) - len(with_text):
        say(f"not trained on: {counted(num_empty, 'utterance')} without a text")
    if num_long := len(with_text) - len(durations):
        cure = "cut them with python -m asr.align MODEL MANIFEST --segments FILE"
        say(f"not trained on: {counted(num_long, 'utterance')} longer than {max_seconds:g} s; {cure}")
    if not durations:
        raise InputError(
            f"a training utterance must have at most {max_seconds:g} s; all are longer. They can be cut, see above."
        )
    return durations
