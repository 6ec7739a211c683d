"""Examination of a corpus without a model: first the headers of its audio files, then audio, then texts."""

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
from asr.diagnosis.sound import Measured, listen
from asr.errors import InputError
from asr.run.settings import RunSettings
from asr.text.numbers import counted


class Manifests:
    """Reads manifests line by line, skips faulty lines and collects their errors.

    Args:
        cache: opens indexes, which do not contain faulty lines.
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
