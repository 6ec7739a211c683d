"""Checks of headers of audio files: missing, unreadable and truncated files, wrong durations, sample rates."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from asr.apps.doctor.finding import Case, Finding, Severity, Splits, share
from asr.base.audio.load import END_TOLERANCE_SECONDS, AudioInfo, audio_info
from asr.base.storage.location import is_url, printable_url
from asr.core.data.dataset import fetch, is_as_long
from asr.core.data.manifest import Utterance
from asr.errors import AudioError, TruncatedError

MISSING, UNREADABLE, TRUNCATED, DURATION = "missing audio", "unreadable audio", "truncated audio", "wrong duration"
MEANINGS = {
    MISSING: (
        "the file does not exist",
        "Restore the files, or remove their lines from the manifest: asr.train does not start without them.",
    ),
    UNREADABLE: ("the file cannot be read as audio", "Copy or convert the files again, or remove their lines."),
    TRUNCATED: (
        "the file is shorter than its header says, and is skipped",
        "Copy the files again, or remove their lines from the manifest.",
    ),
    DURATION: (
        "the file's length contradicts the manifest; the utterance is skipped",
        "Correct `duration` (and `offset`) in the manifest; durations determine the batches.",
    ),
}


@dataclass(frozen=True, slots=True)
class Header:
    """Result of reading an audio file's header.

    Args:
        path: name of the audio, as returned by `audio_of`.
        info: sample rate, channels and length; None if there is a problem.
        kind: kind of the problem; empty if there is none.
        problem: description of the problem.
    """

    path: str
    info: AudioInfo | None
    kind: str = ""
    problem: str = ""


def audio_of(utterance: Utterance) -> str:
    """Return the name of an utterance's audio: the file, or the shard and the position of the audio's first byte."""
    path = utterance.audio_filepath
    return path if utterance.extent is None else f"{path}, byte {utterance.extent.start}"


def read_header(utterance: Utterance) -> Header:
    """Read the header of an utterance's file; Ogg and MP3 files are read completely to determine their length.

    Raises:
        StoreError: a shard or URL cannot be read.
    """
    name, path = audio_of(utterance), utterance.audio_filepath
    if utterance.extent is None and not is_url(path) and not os.path.exists(path):
        return Header(name, None, MISSING, path)
    [fetched] = fetch([utterance])
    try:
        return Header(name, audio_info(path if fetched.content is None else printable_url(name), fetched.content))
    except AudioError as error:
        return Header(name, None, problem_kind(error), str(error))


def problem_kind(error: AudioError) -> str:
    """Return the kind of problem for an error in reading audio: `TRUNCATED` or `UNREADABLE`."""
    return TRUNCATED if isinstance(error, TruncatedError) else UNREADABLE


def unusable(splits: Splits, headers: Mapping[str, Header]) -> dict[str, list[Case]]:
    """Return the utterances with unusable audio, by the kind of problem."""
    cases: dict[str, list[Case]] = {}
    for split, utterances in splits.items():
        for utterance in utterances:
            header = headers[audio_of(utterance)]
            kind, problem = header.kind, header.problem
            if header.info is not None:
                kind, problem = DURATION, wrong_duration(utterance, header.info)
            if problem:
                cases.setdefault(kind, []).append(Case(split, utterance, problem))
    return cases


def wrong_duration(utterance: Utterance, info: AudioInfo) -> str:
    """Describe how the manifest contradicts the length of the file; return "" if loading accepts the utterance."""
    seconds = info.num_samples / info.sample_rate
    if utterance.offset is None or utterance.extent is not None:
        if is_as_long(utterance, seconds):
            return ""
        return f"the manifest says {utterance.duration:.2f} s, the file has {seconds:.2f} s"
    end = utterance.offset + utterance.duration
    if end <= seconds + END_TOLERANCE_SECONDS:
        return ""
    return f"the manifest says {utterance.offset:.2f} to {end:.2f} s, the file has {seconds:.2f} s"


def unusable_findings(cases: Mapping[str, list[Case]], splits: Splits, max_bad_fraction: float) -> list[Finding]:
    """Report unusable audio.

    Missing files are errors. Other problems are warnings; they become errors if more than `max_bad_fraction` of the
    split train is unusable.

    Args:
        cases: utterances with unusable audio, by the kind of problem.
        splits: all utterances.
        max_bad_fraction: the setting `data.max_bad_fraction`: training stops at a larger fraction of unusable audio.
    """
    bad = sum(case.split == "train" for kind_cases in cases.values() for case in kind_cases)
    too_many = bad > max_bad_fraction * len(splits["train"])
    findings = []
    for kind, (meaning, advice) in MEANINGS.items():
        if kind_cases := cases.get(kind):
            severity = Severity.ERROR if kind == MISSING or too_many else Severity.WARNING
            message = f"{share(kind_cases, splits)}: {meaning}."
            if too_many and kind != MISSING:
                message += f" Training stops above data.max_bad_fraction={max_bad_fraction:g}."
            findings.append(Finding(kind, severity, message, advice, kind_cases))
    return findings


def rate_findings(splits: Splits, headers: Mapping[str, Header], sample_rate: int) -> list[Finding]:
    """Report different sample rates, rates below the rate of the features, and files with several channels.

    Args:
        splits: all utterances.
        headers: headers of the utterances' files.
        sample_rate: sample rate of the features, in Hz.
    """
    infos = [header.info for header in headers.values() if header.info is not None]
    rates = Counter(info.sample_rate for info in infos)
    usual = rates.most_common(1)[0][0] if rates else sample_rate
    listed = ", ".join(f"{rate:,} Hz ({count:,} files)" for rate, count in rates.most_common())
    low = [rate for rate in rates if rate < sample_rate]
    findings = []
    if len(rates) > 1:
        others = _with_rates(splits, headers, set(rates) - {usual})
        message = f"{listed}; all are resampled to the features' {sample_rate:,} Hz."
        if low:
            message += f" Files of lower rates leave the bands above {max(low) // 2:,} Hz empty."
        advice = "Check that train and test have the same kinds of audio; a model may use empty bands as a cue."
        severity = Severity.WARNING if low else Severity.NOTE
        findings.append(Finding("mixed sample rates", severity, message, advice, others))
    elif low:
        message = f"all files are at {usual:,} Hz; the upper bands of the features ({sample_rate:,} Hz) remain empty."
        advice = f"Set features.sample_rate={usual}, unless the model must recognise {sample_rate:,} Hz audio too."
        findings.append(Finding("low sample rate", Severity.NOTE, message, advice))
    if count := sum(info.num_channels > 1 for info in infos):
        message = f"{count:,} of {len(infos):,} files have several channels, which are mixed to one."
        advice = "If each channel is a speaker, as in telephone calls, write each channel to its own file."
        findings.append(Finding("several channels", Severity.NOTE, message, advice))
    return findings


def _with_rates(splits: Splits, headers: Mapping[str, Header], rates: set[int]) -> list[Case]:
    cases = []
    for split, utterances in splits.items():
        for utterance in utterances:
            info = headers[audio_of(utterance)].info
            if info is not None and info.sample_rate in rates:
                cases.append(Case(split, utterance, f"{info.sample_rate:,} Hz"))
    return cases
