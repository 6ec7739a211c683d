"""Read the manifests of a corpus config; absent manifests are prepared first."""

import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from asr.base.settings.conf import default_settings, names
from asr.base.storage.location import file_name, is_url, printable_url
from asr.base.system.processes import die_with_parent
from asr.base.text.normalize import Normalizer
from asr.base.text.printable import printable
from asr.core.data.dataset import Reference, load_utterance
from asr.core.data.index import manifest_name
from asr.core.data.index_cache import check_shards
from asr.core.data.mixture import repeats
from asr.core.data.settings import TESTS, CorpusSettings
from asr.core.data.token_counts import count_tokens
from asr.core.data.utterances import Part, Utterances, with_known_ids
from asr.errors import AudioError, InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """The utterances for training, validation and test, with normalised texts.

    Args:
        train: training utterances.
        valid: validation utterances.
        tests: test utterances, by the manifest's name.
        also_tests: further test utterances, by the manifest's name; the tokenizer need not cover their texts.
    """

    train: Utterances
    valid: Utterances
    tests: dict[str, Utterances]
    also_tests: dict[str, Utterances]

    @property
    def all_tests(self) -> dict[str, Utterances]:
        """All test utterances, by the manifest's name."""
        return self.tests | self.also_tests

    def only(self, utterances: Utterances) -> "Corpus":
        """Return a corpus that uses these utterances for training, validation and test."""
        return Corpus(utterances, utterances, {"train": utterances}, {})

    def normalized(self, normalize: Normalizer) -> "Corpus":
        """Return the corpus with its texts normalised."""
        tests, also_tests = (
            {name: utterances.normalized(normalize) for name, utterances in given.items()}
            for given in (self.tests, self.also_tests)
        )
        return Corpus(self.train.normalized(normalize), self.valid.normalized(normalize), tests, also_tests)

    def check_audio(self) -> None:
        """Check that all local audio files exist.

        Raises:
            InputError: files are missing; the message contains their number and the first file's name.
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
        """Check that all shards exist and match their index; later reads accept only these versions.

        Raises:
            StoreError: a shard is absent or has another size.
        """
        for part in self._parts():
            check_shards(part.parts[0].index, part.parts[0].folder)

    def _parts(self) -> Iterator[Utterances]:
        for utterances in (self.train, self.valid, *self.all_tests.values()):
            yield from utterances.split()

    def note_conversion(self, sample_rate: int) -> None:
        """Read one utterance in this process, so that a conversion of its audio is logged; workers log only errors."""
        with suppress(AudioError):  # reported when an epoch reads the utterance
            load_utterance(self.train[0], sample_rate)

    def check_coverage(self, reference: Reference) -> None:
        """Check that the tokenizer can encode every text of `valid` and `tests`; `count_tokens` checks `train`.

        Raises:
            InputError: a text cannot be encoded; the message names the split, the utterances and the characters.
        """
        for split, utterances in {"valid": self.valid, **self.tests}.items():
            count_tokens(utterances, reference, split)


def read_corpus(
    settings: CorpusSettings,
    normalize: Normalizer,
    read: Callable[[str, Sequence[str]], Utterances],
    known: Callable[[Sequence[Part]], set[int]] = with_known_ids,
) -> Corpus:
    """Read the manifests of a corpus and normalise their texts.

    Args:
        settings: settings of the corpus.
        normalize: the text normaliser.
        read: function that opens a manifest with the given labels, such as `IndexCache.utterances`.
        known: function that finds the manifests that share ids with earlier ones: `with_known_ids`, or
            `IndexCache.with_known_ids`, which stores the result for all processes.

    Raises:
        InputError: a manifest is absent or invalid, or two test manifests have the same name.
        StoreError: a URL cannot be read.
    """
    paths = [path for split in TESTS for path in settings.manifests(split)]
    names = [manifest_name(path) for path in paths]
    if repeated := [file_name(path) for path in paths if names.count(manifest_name(path)) > 1]:
        must = "manifests in corpus.test and corpus.also_test must have different file names"
        raise InputError(f"{must}; got {repeated[0]} twice.")
    tests, also_tests = (
        {manifest_name(path): read(path, settings.labels) for path in settings.manifests(split)} for split in TESTS
    )
    train, valid = (_read_all(settings, split, read, known) for split in ("train", "valid"))
    return Corpus(train, valid, tests, also_tests).normalized(normalize)


def prepare_if_absent(settings: CorpusSettings) -> None:
    """If a manifest is absent, run the module that prepares the corpus, in a separate process."""
    manifests = [path for split in ("train", "valid", *TESTS) for path in settings.manifests(split)]
    absent = [path for path in manifests if not is_url(path) and not os.path.isfile(path)]
    if not absent:
        return
    present = [path for path in manifests if path not in absent]
    if present:
        must = f"corpus {settings.name}: all manifests must exist; {absent[0]} does not"
        raise InputError(f"{must}, {present[0]} does. Correct the name in corpus.train, .valid, .test or .also_test.")
    command_line = settings.prepare
    if command_line is None:
        hint = settings.how_to_prepare or "Give the manifests by corpus.dir, corpus.train, corpus.valid, corpus.test."
        raise InputError(f"corpus {settings.name}: {absent[0]} must exist; it does not. {hint}")
    _check_declared(settings, command_line, absent[0])
    module, *options = command_line.split() or [command_line]
    if not module.startswith("recipes.") or importlib.util.find_spec("recipes") is None:
        checkout = "which is in the repository but not in the installed package: run this command in a clone"
        raise InputError(f"corpus {settings.name}: {absent[0]} must exist; it is made by {module}, {checkout}.")
    logger.info("corpus %s does not exist yet: running python -m %s", settings.name, command_line)
    command = [sys.executable, "-m", module, *options, "--output-dir", settings.dir]
    made = subprocess.run(command, check=False, preexec_fn=partial(die_with_parent, os.getpid()))
    if made.returncode != 0:
        raise InputError(f"corpus {settings.name}: {module} ended with status {made.returncode}; its message is above.")
    if missing := [path for path in absent if not os.path.isfile(path)]:
        must = f"corpus {settings.name}: corpus.prepare must make the manifests; {module} ended without an error"
        advice = "Correct corpus.prepare, or the names in corpus.train, .valid, .test or .also_test."
        raise InputError(f"{must}, but {missing[0]} does not exist. {advice}")


def _check_declared(settings: CorpusSettings, how: str, absent: str) -> None:
    """Check that the command in `corpus.prepare` does not prepare another corpus."""
    declared = {name: default_settings("corpus", name).get("prepare") for name in names("corpus")}
    owners = [name for name, prepare in declared.items() if prepare == how]
    if owners and settings.name not in owners:
        must = f"corpus.prepare must be null or prepare the corpus {settings.name}; got {how}, which makes {owners[0]}"
        raise InputError(f"{must}. Give corpus.prepare=null and existing manifests; {absent} does not exist.")


def _read_all(
    settings: CorpusSettings,
    split: str,
    read: Callable[[str, Sequence[str]], Utterances],
    known: Callable[[Sequence[Part]], set[int]],
) -> Utterances:
    """Read the manifests of a split and join them."""
    weighted = settings.weighted(split)
    paths = [manifest.path for manifest in weighted]
    if twice := [path for index, path in enumerate(paths) if path in paths[:index]]:
        must = f"corpus.{split} must name each manifest once; got {printable_url(twice[0])} twice"
        raise InputError(f"{must}. To train on it twice, give it a weight of 2.")
    parts = [part for path in paths for part in read(path, settings.labels).parts]
    means = [1.0] * len(parts)
    if split == "train":
        hours = [Utterances([part]).hours for part in parts]
        means = repeats(hours, [manifest.weight for manifest in weighted], settings.temperature)
    names = [manifest_name(path) for path in paths]
    names = [name if names.count(name) == 1 else f"{name}-{index}" for index, name in enumerate(names)]
    shared = known(parts)
    return Utterances(
        [
            replace(part, name=printable(name), repeats=mean, prefix=f"{name}:" if index in shared else "")
            for index, (part, name, mean) in enumerate(zip(parts, names, means, strict=True))
        ]
    )
