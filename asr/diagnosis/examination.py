"""All that can be told of a corpus without a model: of its headers, then its audio, then its texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from asr.build import build_features
from asr.data.corpus import Corpus
from asr.data.index_cache import IndexCache, is_index
from asr.data.manifest import Utterance, read_good_lines
from asr.data.parallel import in_parallel
from asr.data.seeds import derive_seed
from asr.data.utterances import Utterances
from asr.diagnosis import headers, sound, texts
from asr.diagnosis.finding import Case, Finding, Progress, Severity, Splits
from asr.diagnosis.headers import Header, audio_of, read_header
from asr.diagnosis.sound import Heard, listen
from asr.errors import InputError
from asr.run.settings import RunSettings
from asr.text.numbers import counted


class Manifests:
    """Reads manifests line by line; faults of lines are collected, and the other lines are read.

    Args:
        cache: opens indexes, which have no faulty lines.
    """

    def __init__(self, cache: IndexCache) -> None:
        self._cache = cache
        self.problems: list[InputError] = []

    def __call__(self, path: str) -> Utterances:
        if is_index(path):
            return self._cache.utterances(path)
        utterances, problems = read_good_lines(path)
        self.problems += problems
        return Utterances.of(utterances)

    def findings(self) -> list[Finding]:
        """Say which lines are no utterances."""
        if not self.problems:
            return []
        first = "; ".join(map(str, self.problems[:3])) + (" ..." if len(self.problems) > 3 else "")
        what = f"{counted(len(self.problems), 'line')} that asr.train does not take: {first}"
        return [Finding("manifest", Severity.ERROR, what, "Correct the lines, or take them out.")]


@dataclass(frozen=True)
class Bounds:
    """What an examination goes by.

    Args:
        sample_rate: of the features, in Hz.
        max_bad_fraction: `data.max_bad_fraction`.
        listen_hours: of audio that is decoded, at most; None: all.
        seed: of the sample, where it is not all.
    """

    sample_rate: int
    max_bad_fraction: float
    listen_hours: float | None
    seed: int


def bounds_of(settings: RunSettings) -> Bounds:
    """Take the bounds of an examination from the settings of a training."""
    sample_rate = build_features(settings.components).sample_rate
    return Bounds(sample_rate, settings.data.max_bad_fraction, settings.doctor.listen_hours, settings.seed)


@dataclass(frozen=True)
class Examination:
    """What was found.

    Args:
        findings: in the order in which they were made.
        facts: what was looked at, by name.
        heard: utterances that can be read, and their measures.
    """

    findings: list[Finding]
    facts: list[tuple[str, str]]
    heard: Heard


def splits_of(corpus: Corpus) -> Splits:
    """Return the utterances of each split and test manifest by its name."""
    splits = {"train": corpus.train, "valid": corpus.valid, **corpus.all_tests}
    return {name: list(utterances) for name, utterances in splits.items()}


def examine(corpus: Corpus, bounds: Bounds, progress: Progress) -> Examination:
    """Look at the headers of all files of a corpus, at the samples of as much of it as is allowed, and at its texts."""
    splits = splits_of(corpus)
    read = _read_headers(splits, progress)
    unusable = headers.unusable(splits, read)
    heard = _listen(_sample(splits, unusable, bounds), read, progress)
    for kind, cases in sound.unreadable(heard).items():
        unusable.setdefault(kind, []).extend(cases)
    findings = headers.unusable_findings(unusable, splits, bounds.max_bad_fraction)
    findings += headers.rate_findings(splits, read, bounds.sample_rate)
    heard = sound.readable(heard)
    findings += sound.sound_findings(heard, bounds.sample_rate)
    findings += sound.speed_findings(heard)
    findings += sound.duplicate_findings(heard)
    findings += texts.text_findings(splits)
    findings += texts.pace_findings(splits)
    findings += texts.leak_findings(splits)
    return Examination(findings, _facts(splits, read, heard), heard)


def _read_headers(splits: Splits, progress: Progress) -> dict[str, Header]:
    files = {audio_of(one): one for utterances in splits.values() for one in utterances}
    advance = progress("reading headers", len(files))
    read = {}
    for header in in_parallel(read_header, list(files.values())):
        read[header.path] = header
        advance(1)
    return read


def _sample(splits: Splits, unusable: Mapping[str, Sequence[Case]], bounds: Bounds) -> dict[str, list[Utterance]]:
    """Choose what is listened to: of each split an equal part, in the order of the manifest."""
    bad = {id(case.utterance) for cases in unusable.values() for case in cases}
    usable = {split: [one for one in utterances if id(one) not in bad] for split, utterances in splits.items()}
    hours = sum(one.duration for utterances in usable.values() for one in utterances) / 3600
    if bounds.listen_hours is None or hours <= bounds.listen_hours:
        return usable
    generator = torch.Generator().manual_seed(derive_seed(bounds.seed, "sample"))
    sample = {}
    for split, utterances in usable.items():
        count = int(len(utterances) * bounds.listen_hours / hours)
        chosen = torch.randperm(len(utterances), generator=generator)[:count].sort().values.tolist()
        sample[split] = [utterances[position] for position in chosen]
    return sample


def _listen(sample: Mapping[str, Sequence[Utterance]], read: Mapping[str, Header], progress: Progress) -> Heard:
    advance = progress("listening", sum(one.duration for utterances in sample.values() for one in utterances))
    heard: dict[str, list[tuple[Utterance, sound.Sound]]] = {}
    for split, utterances in sample.items():
        infos = [read[audio_of(one)].info for one in utterances]
        stretches = [(one, info) for one, info in zip(utterances, infos, strict=True) if info is not None]
        heard[split] = []
        for (utterance, _), measures in zip(stretches, in_parallel(listen, stretches), strict=True):
            heard[split].append((utterance, measures))
            advance(utterance.duration)
    return heard


def _facts(splits: Splits, read: Mapping[str, Header], heard: Heard) -> list[tuple[str, str]]:
    facts = []
    for split, utterances in splits.items():
        hours = sum(one.duration for one in utterances) / 3600
        speakers = {one.speaker for one in utterances} - {None}
        said = f"{counted(len(utterances), 'utterance')}, {hours:.2f} h"
        facts.append((split, said + (f", {counted(len(speakers), 'speaker')}" if speakers else "")))
    total = sum(map(len, splits.values()))
    listened = sum(map(len, heard.values()))
    said = f"the headers of {counted(len(read), 'file')}, the audio of {listened:,} of {counted(total, 'utterance')}"
    return [*facts, ("looked at", said)]
