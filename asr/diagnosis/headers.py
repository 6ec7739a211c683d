"""What the headers of audio files tell: what is missing, unreadable or cut off, how long it is, and at what rates."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from asr.audio.load import END_TOLERANCE_SECONDS, AudioInfo, audio_info
from asr.data.dataset import fetch, is_as_long
from asr.data.manifest import Utterance
from asr.diagnosis.finding import Case, Finding, Severity, Splits, share
from asr.errors import AudioError, TruncatedError
from asr.storage.location import is_url, printable_url

MISSING, UNREADABLE, TRUNCATED, DURATION = "missing audio", "unreadable audio", "truncated audio", "wrong duration"
MEANINGS = {
    MISSING: (
        "no file is there",
        "Restore the files, or take their lines out of the manifest: asr.train does not begin without them.",
    ),
    UNREADABLE: ("cannot be read as audio", "Copy or convert the files anew, or take their lines out of the manifest."),
    TRUNCATED: (
        "cannot be read to their end, and are skipped",
        "Copy the files anew, or take their lines out of the manifest.",
    ),
    DURATION: (
        "are not as long as the manifest says, and are skipped",
        "Correct `duration` (and `offset`) in the manifest; batches are planned by it.",
    ),
}


@dataclass(frozen=True, slots=True)
class Header:
    """What a file's header tells.

    Args:
        path: of the file, or of its bytes in a shard (`audio_of`).
        info: rate, channels and length; None where there is a problem.
        kind: of the problem; empty where there is none.
        problem: in words.
    """

    path: str
    info: AudioInfo | None
    kind: str = ""
    problem: str = ""


def audio_of(utterance: Utterance) -> str:
    """Name the audio that an utterance is in: its file, or where it begins in a shard."""
    path = utterance.audio_filepath
    return path if utterance.extent is None else f"{path}, byte {utterance.extent.start}"


def read_header(utterance: Utterance) -> Header:
    """Read what the header of an utterance's file tells; of Ogg and MP3 files this takes all their pages.

    Raises:
        StoreError: a shard, or what a URL names, cannot be read.
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
    """Name what is wrong with a file that cannot be used."""
    return TRUNCATED if isinstance(error, TruncatedError) else UNREADABLE


def unusable(splits: Splits, headers: Mapping[str, Header]) -> dict[str, list[Case]]:
    """Find the utterances whose audio cannot be used, by what is wrong with it."""
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
    """Say how an utterance's stretch differs from its file; empty where it does not, as loading measures it."""
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
    """Say what cannot be used; more of it in an epoch than is tolerated is an error, as it stops training.

    Args:
        cases: by what is wrong.
        splits: all utterances.
        max_bad_fraction: `data.max_bad_fraction`.
    """
    bad = sum(case.split == "train" for several in cases.values() for case in several)
    too_many = bad > max_bad_fraction * len(splits["train"])
    findings = []
    for kind, (meaning, advice) in MEANINGS.items():
        if several := cases.get(kind):
            severity = Severity.ERROR if kind == MISSING or too_many else Severity.WARNING
            what = f"{share(several, splits)}: {meaning}."
            if too_many and kind != MISSING:
                what += f" More than data.max_bad_fraction={max_bad_fraction:g} of an epoch stops the training."
            findings.append(Finding(kind, severity, what, advice, several))
    return findings


def rate_findings(splits: Splits, headers: Mapping[str, Header], sample_rate: int) -> list[Finding]:
    """Say which sample rates there are, if they are several or below that of the features; and channels to mix.

    Args:
        splits: all utterances.
        headers: of their files.
        sample_rate: of the features, in Hz.
    """
    infos = [header.info for header in headers.values() if header.info is not None]
    rates = Counter(info.sample_rate for info in infos)
    usual = rates.most_common(1)[0][0] if rates else sample_rate
    listed = ", ".join(f"{rate:,} Hz ({count:,} files)" for rate, count in rates.most_common())
    low = [rate for rate in rates if rate < sample_rate]
    findings = []
    if len(rates) > 1:
        others = _with_rates(splits, headers, set(rates) - {usual})
        what = f"{listed}; all are resampled to the {sample_rate:,} Hz of the features."
        if low:
            what += f" What has fewer leaves the bands above {max(low) // 2:,} Hz empty."
        advice = (
            "Check that train and test have the same kinds of audio; a net hears an empty band, and may learn from it."
        )
        severity = Severity.WARNING if low else Severity.NOTE
        findings.append(Finding("mixed sample rates", severity, what, advice, others))
    elif low:
        what = f"all files have {usual:,} Hz, and the features {sample_rate:,} Hz: their upper bands stay empty."
        advice = f"Set features.sample_rate={usual}, unless the model is to hear {sample_rate:,} Hz audio as well."
        findings.append(Finding("low sample rate", Severity.NOTE, what, advice))
    if count := sum(info.num_channels > 1 for info in infos):
        what = f"{count:,} of {len(infos):,} files have several channels, which are mixed to one."
        advice = "If each channel is a speaker, as in telephone calls, write each to a file of its own."
        findings.append(Finding("several channels", Severity.NOTE, what, advice))
    return findings


def _with_rates(splits: Splits, headers: Mapping[str, Header], rates: set[int]) -> list[Case]:
    cases = []
    for split, utterances in splits.items():
        for utterance in utterances:
            info = headers[audio_of(utterance)].info
            if info is not None and info.sample_rate in rates:
                cases.append(Case(split, utterance, f"{info.sample_rate:,} Hz"))
    return cases
