"""Checks of texts: empty and repeated texts, characters without a token, texts that do not fit their audio."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from asr.apps.doctor.finding import Case, Finding, Severity, Splits, share
from asr.base.text.faults import failed_checks
from asr.base.text.numbers import counted
from asr.core.data.manifest import Utterance
from asr.core.data.round_trip import ADVICE, changed_by
from asr.errors import InputError
from asr.interfaces import Tokenizer

MIN_WORDS = 4  # minimum number of words of a sentence; shorter texts may be repeated by chance

MIN_PACED = 20  # minimum number of utterances for an estimate of the pace
MIN_CHARACTERS = 12  # shorter texts are not reported as too long for their audio: single words may be spoken very fast
FAST, SLOW = 0.4, 3.0  # limits of an utterance's duration, relative to the duration of its text at the median pace
PAUSES_SECONDS = 4.0  # additional silence that is tolerated, because a speaker may pause before or after a word


def text_findings(splits: Splits) -> list[Finding]:
    """Report empty texts, and sentences that a speaker repeats."""
    findings = []
    empty = [
        Case(split, utterance)
        for split, utterances in splits.items()
        for utterance in utterances
        if not utterance.text.strip()
    ]
    if empty:
        message = f"{share(empty, splits)} with an empty text after normalisation; in train they are dropped."
        advice = "Add the texts, or remove the utterances: in a test set, each word recognised in them is an error."
        findings.append(Finding("empty texts", Severity.WARNING, message, advice, empty))
    repeated = [
        Case(split, again, f"same text as {first.id}: {again.text}")
        for split, utterances in splits.items()
        for first, again in _repeated(utterances)
    ]
    if repeated:
        message = f"{share(repeated, splits)} with a sentence that the same speaker has in another utterance."
        advice = "Listen to some: repetition is not a fault, but a text may have been copied to other audio."
        findings.append(Finding("repeated texts", Severity.NOTE, message, advice, repeated))
    return findings


def _repeated(utterances: Sequence[Utterance]) -> list[tuple[Utterance, Utterance]]:
    """Return pairs: a speaker's first utterance of a sentence, and a later utterance that repeats it."""
    first: dict[tuple[str | None, str], Utterance] = {}
    pairs = []
    for utterance in utterances:
        if is_sentence(utterance.text):
            earlier = first.setdefault((utterance.speaker, utterance.text), utterance)
            if earlier is not utterance:
                pairs.append((earlier, utterance))
    return pairs


def is_sentence(text: str) -> bool:
    """Return whether a text is so long (`MIN_WORDS`) that a repetition is not accidental."""
    return len(text.split()) >= MIN_WORDS


def coverage_findings(splits: Splits, tokenizer: Tokenizer, optional: Sequence[str]) -> list[Finding]:
    """Report texts with characters that the tokenizer does not cover.

    Args:
        splits: utterances with normalised texts.
        tokenizer: fitted tokenizer.
        optional: splits whose texts need no tokens, because they are only used for tests.
    """
    findings = []
    for required in (True, False):
        cases = [
            Case(split, utterance, problem)
            for split, utterances in splits.items()
            if (split not in optional) == required
            for utterance in utterances
            if (problem := _uncovered(utterance.text, tokenizer))
        ]
        if cases:
            message = f"{share(cases, splits)} with a character that no token covers."
            advice = "Correct the texts, add the characters to the training texts, or choose another normalizer; with "
            advice += "init.from, give init.extend_tokenizer=texts."
            if required:
                advice = f"asr.train does not start with these texts. {advice}"
            severity = Severity.ERROR if required else Severity.NOTE
            findings.append(Finding("characters without a token", severity, message, advice, cases))
    return findings


def round_trip_findings(splits: Splits, tokenizer: Tokenizer) -> list[Finding]:
    """Report texts that change when they are encoded and decoded."""
    cases = [
        Case(split, utterance, f"{utterance.text} becomes {decoded}")
        for split, utterances in splits.items()
        for utterance in utterances
        if (decoded := changed_by(tokenizer, utterance.text)) is not None
    ]
    if not cases:
        return []
    message = f"{share(cases, splits)} with a text that the tokenizer changes."
    return [Finding("texts that the tokenizer changes", Severity.WARNING, message, f"{ADVICE}.", cases)]


def discarded_findings(old: Sequence[str], new: Sequence[str], source: str) -> list[Finding]:
    """Report that the tokenizer of a run lacks pieces of the initial model, whose weights are lost.

    Args:
        old: names of the initial model's pieces.
        new: names of the run's pieces.
        source: name of the initial model.
    """
    kept = set(new)
    lost = [name for name in dict.fromkeys(old) if name not in kept]
    if not lost:
        return []
    message = f"the run's tokenizer lacks {len(lost):,} of the {len(old):,} pieces of {source}, such as {lost[0]!r}; "
    message += "the weights of their outputs are thrown away."
    advice = "Leave out tokenizer=..., and append the characters that the model lacks: init.extend_tokenizer=texts."
    return [Finding("tokenizer", Severity.WARNING, message, advice)]


def _uncovered(text: str, tokenizer: Tokenizer) -> str:
    try:
        tokenizer.encode(text)
    except InputError as error:
        return str(error)
    return ""


def pace_findings(splits: Splits) -> list[Finding]:
    """Report texts that, at the median pace of all utterances, are far too long or too short for their audio."""
    spoken = {
        split: [utterance for utterance in utterances if utterance.text.strip()] for split, utterances in splits.items()
    }
    paces = [utterance.duration / len(utterance.text) for utterances in spoken.values() for utterance in utterances]
    if len(paces) < MIN_PACED:
        return []
    pace = median(paces)
    cases = []
    for split, utterances in spoken.items():
        for utterance in utterances:
            seconds, length = utterance.duration, len(utterance.text)
            usual = pace * length
            too_long = seconds < FAST * usual and length >= MIN_CHARACTERS
            too_short = seconds > SLOW * usual + PAUSES_SECONDS
            if too_long or too_short:
                detail = f"{seconds:.1f} s for {counted(length, 'character')}, which usually take about {usual:.1f} s"
                cases.append((abs(seconds - usual) / (usual + PAUSES_SECONDS), Case(split, utterance, detail)))
    if not cases:
        return []
    ordered = [case for _, case in sorted(cases, key=lambda pair: -pair[0])]
    message = f"{share(ordered, splits)} with far more or far less text than fits their audio at the median pace."
    advice = "Listen to them: their texts may belong to other audio, or be cut off. With a model, asr.align finds more."
    return [Finding("texts that do not fit", Severity.WARNING, message, advice, ordered)]


def leak_findings(splits: Mapping[str, Sequence[Utterance]]) -> list[Finding]:
    """Report test manifests with speakers or sentences that also occur in the split train."""
    speakers = {utterance.speaker for utterance in splits["train"]} - {None}
    sentences = {utterance.text for utterance in splits["train"] if is_sentence(utterance.text)}
    findings = []
    for split, utterances in splits.items():
        if split in ("train", "valid"):
            continue
        known = [utterance for utterance in utterances if utterance.speaker in speakers]
        if known:
            by_speaker: dict[str | None, list[Utterance]] = defaultdict(list)
            for utterance in known:
                by_speaker[utterance.speaker].append(utterance)
            cases = [Case(split, group[0], f"speaker {name}") for name, group in by_speaker.items()]
            all_speakers = {utterance.speaker for utterance in utterances} - {None}
            message = f"{len(cases):,} of {counted(len(all_speakers), 'speaker')} of {split} are in train, too."
            advice = f"The WER on {split} does not hold for new speakers. To get that WER, remove these from train."
            findings.append(Finding("speakers in train and test", Severity.WARNING, message, advice, cases))
        learnt = [Case(split, utterance, utterance.text) for utterance in utterances if utterance.text in sentences]
        if learnt:
            message = f"{len(learnt):,} of {counted(len(utterances), 'utterance')} of {split} have a training sentence."
            advice = f"The WER on {split} does not hold for new sentences. To get that WER, remove these from train."
            findings.append(Finding("sentences in train and test", Severity.WARNING, message, advice, learnt))
    return findings


def character_findings(splits: Splits) -> list[Finding]:
    """Report texts with faults that their characters show (`asr.base.text.faults`).

    Args:
        splits: utterances with texts before normalisation.
    """
    findings = []
    pairs = [(split, utterance) for split, utterances in splits.items() for utterance in utterances]
    for check, faults in failed_checks([utterance.text for _, utterance in pairs]):
        cases = [Case(*pairs[index], fault) for index, fault in faults.items()]
        findings.append(
            Finding(check.kind, Severity.WARNING, f"{share(cases, splits)} {check.meaning}", check.advice, cases)
        )
    return findings
