"""Examination of a corpus, or a sample of it, without a model: headers of audio files, then audio, then texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from asr.apps.doctor import headers, sound, texts
from asr.apps.doctor.finding import Case, Fact, Finding, Progress, Severity, Splits
from asr.apps.doctor.headers import Header, audio_of, read_header
from asr.apps.doctor.sound import Measured, listen
from asr.base.storage.location import is_url
from asr.base.system.parallel import in_parallel
from asr.base.system.seeds import derive_seed
from asr.base.text.numbers import counted
from asr.core.build import build_features
from asr.core.data.corpus import Corpus
from asr.core.data.index_cache import IndexCache, is_index
from asr.core.data.manifest import Utterance, read_good_lines
from asr.core.data.utterances import Utterances
from asr.core.run.settings import RunSettings
from asr.errors import InputError


class Manifests:
    """Reads manifests line by line, skips faulty lines and collects their errors.

    Args:
        cache: opens indexes, which do not contain faulty lines.
    """

    def __init__(self, cache: IndexCache) -> None:
        self._cache = cache
        self.problems: list[InputError] = []

    def __call__(self, path: str, labels: Sequence[str] = ()) -> Utterances:
        if is_index(path):
            return self._cache.utterances(path, labels)
        utterances, problems = read_good_lines(path, labels=labels)
        self.problems += problems
        return Utterances.of(utterances)

    def findings(self) -> list[Finding]:
        """Report the lines that are not valid utterances."""
        if not self.problems:
            return []
        first = "; ".join(map(str, self.problems[:3])) + (" ..." if len(self.problems) > 3 else "")
        message = f"{counted(len(self.problems), 'line')} that asr.train rejects: {first}"
        return [Finding("manifest", Severity.ERROR, message, "Correct the lines, or remove them.")]


@dataclass(frozen=True)
class Bounds:
    """Limits of an examination.

    Args:
        sample_rate: sample rate of the features, in Hz.
        max_bad_fraction: the setting `data.max_bad_fraction`.
        listen_hours: maximum hours of audio to decode; None: all audio.
        seed: seed for the choice of utterances to decode if the corpus has more than `listen_hours` of audio.
    """

    sample_rate: int
    max_bad_fraction: float
    listen_hours: float | None
    seed: int


def bounds_of(settings: RunSettings) -> Bounds:
    """Return the limits of an examination for the settings of a training run."""
    sample_rate = build_features(settings.components).sample_rate
    return Bounds(sample_rate, settings.data.max_bad_fraction, settings.doctor.listen_hours, settings.seed)


@dataclass(frozen=True)
class Examination:
    """Result of an examination.

    Args:
        findings: findings, in the order of the checks.
        facts: what was examined: pairs of a name and a description.
        measured: readable utterances and their measures, by split.
    """

    findings: list[Finding]
    facts: list[tuple[str, str]]
    measured: Measured


def splits_of(corpus: Corpus) -> Splits:
    """Return the utterances of train, valid and each test manifest, by the name of the split."""
    splits = {"train": corpus.train, "valid": corpus.valid, **corpus.all_tests}
    return {name: list(utterances) for name, utterances in splits.items()}


def examine(corpus: Corpus, bounds: Bounds, progress: Progress) -> Examination:
    """Examine a corpus: all headers of its files, at most `bounds.listen_hours` of audio, and all texts."""
    splits = splits_of(corpus)
    read = _read_headers(splits, progress)
    unusable = headers.unusable(splits, read)
    measured = _listen(_sample(splits, unusable, bounds), read, progress)
    for kind, cases in sound.unreadable(measured).items():
        unusable.setdefault(kind, []).extend(cases)
    findings = headers.unusable_findings(unusable, splits, bounds.max_bad_fraction)
    findings += headers.rate_findings(splits, read, bounds.sample_rate)
    measured = sound.readable(measured)
    findings += sound.sound_findings(measured, bounds.sample_rate)
    findings += sound.speed_findings(measured)
    findings += sound.duplicate_findings(measured)
    findings += texts.text_findings(splits)
    findings += texts.pace_findings(splits)
    findings += texts.leak_findings(splits)
    return Examination(findings, _facts(splits, read, measured), measured)


def _read_headers(splits: Splits, progress: Progress) -> dict[str, Header]:
    files = {audio_of(utterance): utterance for utterances in splits.values() for utterance in utterances}
    on_progress = progress("reading headers", len(files))
    read = {}
    for header in in_parallel(read_header, list(files.values())):
        read[header.path] = header
        on_progress(1)
    return read


def _sample(splits: Splits, unusable: Mapping[str, Sequence[Case]], bounds: Bounds) -> dict[str, list[Utterance]]:
    """Draw the utterances to decode: the same fraction of each split, in the order of the manifest."""
    bad = {id(case.utterance) for cases in unusable.values() for case in cases}
    usable = {
        split: [utterance for utterance in utterances if id(utterance) not in bad]
        for split, utterances in splits.items()
    }
    hours = sum(utterance.duration for utterances in usable.values() for utterance in utterances) / 3600
    if bounds.listen_hours is None or hours <= bounds.listen_hours:
        return usable
    generator = torch.Generator().manual_seed(derive_seed(bounds.seed, "sample"))
    sample = {}
    for split, utterances in usable.items():
        count = int(len(utterances) * bounds.listen_hours / hours)
        chosen = torch.randperm(len(utterances), generator=generator)[:count].sort().values.tolist()
        sample[split] = [utterances[index] for index in chosen]
    return sample


def _listen(sample: Mapping[str, Sequence[Utterance]], read: Mapping[str, Header], progress: Progress) -> Measured:
    on_progress = progress(
        "listening", sum(utterance.duration for utterances in sample.values() for utterance in utterances)
    )
    measured: dict[str, list[tuple[Utterance, sound.Sound]]] = {}
    for split, utterances in sample.items():
        infos = [read[audio_of(utterance)].info for utterance in utterances]
        segments = [(utterance, info) for utterance, info in zip(utterances, infos, strict=True) if info is not None]
        measured[split] = []
        for (utterance, _), measures in zip(segments, in_parallel(listen, segments), strict=True):
            measured[split].append((utterance, measures))
            on_progress(utterance.duration)
    return measured


def _facts(splits: Splits, read: Mapping[str, Header], measured: Measured) -> list[tuple[str, str]]:
    facts = []
    for split, utterances in splits.items():
        hours = sum(utterance.duration for utterance in utterances) / 3600
        speakers = {utterance.speaker for utterance in utterances} - {None}
        size = f"{counted(len(utterances), 'utterance')}, {hours:.2f} h"
        facts.append((split, size + (f", {counted(len(speakers), 'speaker')}" if speakers else "")))
    total = sum(map(len, splits.values()))
    decoded = sum(map(len, measured.values()))
    scope = f"the headers of {counted(len(read), 'file')}, the audio of {decoded:,} of {counted(total, 'utterance')}"
    return [*facts, ("looked at", scope)]


def sampled(corpus: Corpus, max_utterances: int | None, seed: int) -> tuple[Corpus, list[Fact]]:
    """Choose the utterances to examine, and describe how many were chosen.

    Splits in shards or at URLs are sampled: their rows are divided into `max_utterances` equal ranges, and one
    utterance of each range is drawn. This spreads the sample evenly over the shards. Equal seeds give equal samples.

    Args:
        corpus: the whole corpus.
        max_utterances: maximum number of utterances to choose from a split in shards or at URLs; None: all utterances.
        seed: the run's seed.
    """
    facts: list[Fact] = []

    def choose(name: str, utterances: Utterances) -> Utterances:
        if max_utterances is None or len(utterances) <= max_utterances or not _is_far(utterances):
            return utterances
        chosen = utterances.select(_spread(len(utterances), max_utterances, derive_seed(seed, "doctor", name)))
        facts.append((f"{name}, sampled", _described(chosen, utterances, max_utterances, seed)))
        return chosen

    return _each(corpus, choose), facts


def _each(corpus: Corpus, change: Callable[[str, Utterances], Utterances]) -> Corpus:
    tests, also_tests = (
        {name: change(name, utterances) for name, utterances in given.items()}
        for given in (corpus.tests, corpus.also_tests)
    )
    return Corpus(change("train", corpus.train), change("valid", corpus.valid), tests, also_tests)


def _is_far(utterances: Utterances) -> bool:
    """Return whether some audio is in shards or at URLs, where reading an utterance costs a request."""
    return any(part.index.shards or is_url(part.folder) for part in utterances.parts)


def _spread(number: int, max_utterances: int, seed: int) -> np.ndarray:
    """Draw one position from each of `max_utterances` equal ranges of `number` positions; return int64, ascending."""
    edges = np.arange(max_utterances + 1) * number // max_utterances
    return np.random.default_rng(seed).integers(edges[:-1], edges[1:])


def _described(chosen: Utterances, utterances: Utterances, max_utterances: int, seed: int) -> str:
    of_all = f"{len(chosen):,} of {counted(len(utterances), 'utterance')}, {utterances.hours:.2f} h"
    shards = sum(len(part.index.shards) for part in utterances.parts)
    touched = len({utterance.audio_filepath for utterance in chosen if utterance.extent is not None})
    where = f", from {touched:,} of {counted(shards, 'shard')}" if shards else ""
    unseen = "audio, texts and speakers of the other utterances were not examined"
    return f"{of_all}{where} (doctor.max_utterances={max_utterances}, seed={seed}); {unseen}"
