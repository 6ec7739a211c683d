"""A corpus config's manifests: made where they are absent and can be made, and read."""

import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from asr.data.dataset import Reference, load_utterance
from asr.data.index import manifest_name
from asr.data.index_cache import check_shards
from asr.data.mixture import repeats
from asr.data.settings import TESTS, CorpusSettings
from asr.data.token_counts import count_tokens
from asr.data.utterances import Part, Utterances, with_known_ids
from asr.errors import AudioError, InputError
from asr.settings.conf import default_settings, names
from asr.storage.location import file_name, is_url, printable_url
from asr.system.processes import die_with_parent
from asr.text.normalize import Normalizer
from asr.text.printable import printable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """What to train on, to validate on, and to test on.

    Args:
        train: utterances to train on; texts normalised, as in all the others.
        valid: utterances to validate on.
        tests: utterances to test on, by the manifest's name.
        also_tests: utterances to test on that a tokenizer of the training texts need not spell.
    """

    train: Utterances
    valid: Utterances
    tests: dict[str, Utterances]
    also_tests: dict[str, Utterances]

    @property
    def all_tests(self) -> dict[str, Utterances]:
        """What is tested on at the end, by the manifest's name."""
        return self.tests | self.also_tests

    def only(self, utterances: Utterances) -> "Corpus":
        """Return the corpus in which these utterances are trained on, validated on and tested on."""
        return Corpus(utterances, utterances, {"train": utterances}, {})

    def normalized(self, normalize: Normalizer) -> "Corpus":
        """Return the corpus with its texts normalised."""
        tests, also_tests = (
            {name: utterances.normalized(normalize) for name, utterances in given.items()}
            for given in (self.tests, self.also_tests)
        )
        return Corpus(self.train.normalized(normalize), self.valid.normalized(normalize), tests, also_tests)

    def check_audio(self) -> None:
        """Check that every audio file is there, before an epoch finds out; files at URLs are not checked.

        Raises:
            InputError: naming one, and how many are not.
        """
        paths: dict[str, str] = {}
        for part in self._parts():
            if not part.parts[0].index.shards:
                paths.update(zip(part.audio_paths(), part.ids, strict=True))
        absent = [path for path in paths if not is_url(path) and not os.path.isfile(path)]
        if absent:
            more = f" and {len(absent) - 1} more of {len(paths)} files" if len(absent) > 1 else ""
            raise InputError(f"{absent[0]}: audio file not found (id {paths[absent[0]]!r}){more}.")

    def check_shards(self) -> None:
        """Check that every shard is there and that of its index; from then on no other version is read.

        Raises:
            StoreError: one is not.
        """
        for part in self._parts():
            check_shards(part.parts[0].index, part.parts[0].folder)

    def _parts(self) -> Iterator[Utterances]:
        for utterances in (self.train, self.valid, *self.all_tests.values()):
            yield from utterances.split()

    def note_conversion(self, sample_rate: int) -> None:
        """Read an utterance, so that a conversion is noted here: processes that read audio keep quiet."""
        with suppress(AudioError):  # the epoch that reads it says so
            load_utterance(self.train[0], sample_rate)

    def check_coverage(self, reference: Reference) -> None:
        """Check that the tokenizer can spell every text of `valid` and `tests`; `count_tokens` checks `train`.

        Raises:
            InputError: naming split, utterance and character.
        """
        for split, utterances in {"valid": self.valid, **self.tests}.items():
            count_tokens(utterances, reference, split)


def read_corpus(
    settings: CorpusSettings,
    normalize: Normalizer,
    read: Callable[[str], Utterances],
    known: Callable[[Sequence[Part]], set[int]] = with_known_ids,
) -> Corpus:
    """Read the manifests of a corpus and normalise their texts: from here on there is no other text.

    Args:
        settings: of the corpus.
        normalize: a text as written to what is learnt and scored.
        read: opens a manifest (`IndexCache.utterances`).
        known: `with_known_ids`, or `IndexCache.with_known_ids`, which computes it once for all processes.

    Raises:
        InputError: a manifest is not there or not right, or two test manifests have the same name.
        StoreError: what a URL names cannot be read.
    """
    paths = [path for split in TESTS for path in settings.manifests(split)]
    names = [manifest_name(path) for path in paths]
    if repeated := [file_name(path) for path in paths if names.count(manifest_name(path)) > 1]:
        must = "corpus.test and corpus.also_test must name manifests of different file names"
        raise InputError(f"{must}; got {repeated[0]} twice.")
    tests, also_tests = ({manifest_name(path): read(path) for path in settings.manifests(split)} for split in TESTS)
    train, valid = (_read_all(settings, split, read, known) for split in ("train", "valid"))
    return Corpus(train, valid, tests, also_tests).normalized(normalize)


def prepare_if_absent(settings: CorpusSettings) -> None:
    """Run the module that makes the corpus, with its options, in a process of its own, if a manifest is not there.

    Raises:
        InputError: the corpus is absent and cannot be made here; what to do about it.
    """
    manifests = [path for split in ("train", "valid", *TESTS) for path in settings.manifests(split)]
    absent = [path for path in manifests if not is_url(path) and not os.path.isfile(path)]
    if not absent:
        return
    there = [path for path in manifests if path not in absent]
    if there:
        must = f"corpus {settings.name}: its manifests must all be there, or none of them; {absent[0]} is not"
        raise InputError(f"{must}, and {there[0]} is. Correct the name in corpus.train, .valid, .test or .also_test.")
    how = settings.prepare
    if how is None:
        hint = settings.how_to_prepare or "Give the manifests by corpus.dir, corpus.train, corpus.valid, corpus.test."
        raise InputError(f"corpus {settings.name}: {absent[0]} must be there; it is not. {hint}")
    _check_declared(settings, how, absent[0])
    module, *options = how.split() or [how]
    if not module.startswith("recipes.") or importlib.util.find_spec("recipes") is None:
        checkout = "which is part of the source checkout, not of the installed package: run this from a clone"
        raise InputError(f"corpus {settings.name}: {absent[0]} is not there; it is made by {module}, {checkout}.")
    logger.info("corpus %s is not there yet: running python -m %s", settings.name, how)
    command = [sys.executable, "-m", module, *options, "--output-dir", settings.dir]
    made = subprocess.run(command, check=False, preexec_fn=partial(die_with_parent, os.getpid()))
    if made.returncode != 0:
        raise InputError(f"corpus {settings.name}: {module} ended with status {made.returncode}; its message is above.")


def _check_declared(settings: CorpusSettings, how: str, absent: str) -> None:
    """Check that `prepare` was not left over from another corpus, whose audio and texts it would make.

    Raises:
        InputError: conf/corpus declares it for another corpus.
    """
    declared = {name: default_settings("corpus", name).get("prepare") for name in names("corpus")}
    owners = [name for name, prepare in declared.items() if prepare == how]
    if owners and settings.name not in owners:
        must = f"corpus.prepare must be null, or make the corpus {settings.name}; got {how}, which makes {owners[0]}"
        raise InputError(f"{must}. Give corpus.prepare=null, and manifests that are there: {absent} is not.")


def _read_all(
    settings: CorpusSettings,
    split: str,
    read: Callable[[str], Utterances],
    known: Callable[[Sequence[Part]], set[int]],
) -> Utterances:
    """Read the manifests of one split as one."""
    weighted = settings.weighted(split)
    paths = [manifest.path for manifest in weighted]
    if twice := [path for place, path in enumerate(paths) if path in paths[:place]]:
        must = f"corpus.{split} must name each manifest once; got {printable_url(twice[0])} twice"
        raise InputError(f"{must}. Give it a weight of 2 to train on it twice.")
    parts = [part for path in paths for part in read(path).parts]
    means = [1.0] * len(parts)
    if split == "train":
        hours = [Utterances([part]).hours for part in parts]
        means = repeats(hours, [manifest.weight for manifest in weighted], settings.temperature)
    names = [manifest_name(path) for path in paths]
    names = [name if names.count(name) == 1 else f"{name}-{place}" for place, name in enumerate(names)]
    shared = known(parts)
    return Utterances(
        [
            replace(part, name=printable(name), repeats=mean, prefix=f"{name}:" if place in shared else "")
            for place, (part, name, mean) in enumerate(zip(parts, names, means, strict=True))
        ]
    )
