"""What the texts tell: empty ones, repeated ones, letters without a token, and texts that do not fit their audio."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median

from asr.data.manifest import Utterance
from asr.diagnosis.finding import Case, Finding, Severity, Splits, share
from asr.errors import InputError
from asr.interfaces import Tokenizer
from asr.text.numbers import counted

MIN_WORDS = 4  # of a sentence: shorter ones are said again by chance

MIN_PACED = 20  # utterances that a pace is taken of
MIN_CHARACTERS = 12  # of a text that can be too long for its audio: a word or two may be said in no time
FAST, SLOW = 0.4, 3.0  # times the seconds that a text takes at the pace of all
PAUSES_SECONDS = 4.0  # of silence, beside: who records a word may wait


def text_findings(splits: Splits) -> list[Finding]:
    """Say which texts are empty, and which sentences one speaker has twice."""
    findings = []
    empty = [Case(split, one) for split, utterances in splits.items() for one in utterances if not one.text.strip()]
    if empty:
        what = f"{share(empty, splits)} without a text once it is normalised; in train they are dropped."
        advice = "Give them their texts, or take them out; in a test, empty texts count what is heard in silence."
        findings.append(Finding("empty texts", Severity.WARNING, what, advice, empty))
    repeated = [
        Case(split, again, f"the text of {first.id}: {again.text}")
        for split, utterances in splits.items()
        for first, again in _repeated(utterances)
    ]
    if repeated:
        what = f"{share(repeated, splits)} with a sentence that the same speaker has in another one."
        advice = "Listen to some: what is said twice is no fault, but a text may have been pasted to other audio."
        findings.append(Finding("repeated texts", Severity.NOTE, what, advice, repeated))
    return findings


def _repeated(utterances: Sequence[Utterance]) -> list[tuple[Utterance, Utterance]]:
    """Pair each utterance that repeats its speaker's sentence with the first that has it."""
    first: dict[tuple[str | None, str], Utterance] = {}
    pairs = []
    for utterance in utterances:
        if is_sentence(utterance.text):
            earlier = first.setdefault((utterance.speaker, utterance.text), utterance)
            if earlier is not utterance:
                pairs.append((earlier, utterance))
    return pairs


def is_sentence(text: str) -> bool:
    """Tell whether a text has words enough that it is no chance where it comes again."""
    return len(text.split()) >= MIN_WORDS


def coverage_findings(splits: Splits, tokenizer: Tokenizer, optional: Sequence[str]) -> list[Finding]:
    """Say which texts the tokenizer cannot spell.

    Args:
        splits: texts normalised.
        tokenizer: fitted.
        optional: splits whose texts need not be spelled, as they are not trained for.
    """
    findings = []
    for needed in (True, False):
        cases = [
            Case(split, utterance, problem)
            for split, utterances in splits.items()
            if (split not in optional) == needed
            for utterance in utterances
            if (problem := _misspelled(utterance.text, tokenizer))
        ]
        if cases:
            what = f"{share(cases, splits)} with a character that no token covers."
            advice = "Correct the texts, add the characters to the training texts, or choose another normalizer."
            if needed:
                advice = f"asr.train does not begin with them. {advice}"
            severity = Severity.ERROR if needed else Severity.NOTE
            findings.append(Finding("characters without a token", severity, what, advice, cases))
    return findings


def _misspelled(text: str, tokenizer: Tokenizer) -> str:
    try:
        tokenizer.encode(text)
    except InputError as error:
        return str(error)
    return ""


def pace_findings(splits: Splits) -> list[Finding]:
    """Say which texts would take far more, or far less time to say than there is, at the pace of all utterances."""
    spoken = {split: [one for one in utterances if one.text.strip()] for split, utterances in splits.items()}
    paces = [one.duration / len(one.text) for utterances in spoken.values() for one in utterances]
    if len(paces) < MIN_PACED:
        return []
    pace = median(paces)
    cases = []
    for split, utterances in spoken.items():
        for one in utterances:
            usual = pace * len(one.text)
            too_long = one.duration < FAST * usual and len(one.text) >= MIN_CHARACTERS
            too_short = one.duration > SLOW * usual + PAUSES_SECONDS
            if too_long or too_short:
                detail = (
                    f"{one.duration:.1f} s for {counted(len(one.text), 'character')}, which take about {usual:.1f} s"
                )
                cases.append((abs(one.duration - usual) / (usual + PAUSES_SECONDS), Case(split, one, detail)))
    if not cases:
        return []
    ordered = [case for _, case in sorted(cases, key=lambda pair: -pair[0])]
    what = f"{share(ordered, splits)} with far more or far less text than their seconds, at the pace of all."
    advice = "Listen to them: their texts may belong to other audio, or be cut off. asr.align finds more, with a model."
    return [Finding("texts that do not fit", Severity.WARNING, what, advice, ordered)]


def leak_findings(splits: Mapping[str, Sequence[Utterance]]) -> list[Finding]:
    """Say which test manifests have speakers, or sentences, that are trained on."""
    speakers = {one.speaker for one in splits["train"]} - {None}
    sentences = {one.text for one in splits["train"] if is_sentence(one.text)}
    findings = []
    for split, utterances in splits.items():
        if split in ("train", "valid"):
            continue
        known = [one for one in utterances if one.speaker in speakers]
        if known:
            by_speaker: dict[str | None, list[Utterance]] = defaultdict(list)
            for one in known:
                by_speaker[one.speaker].append(one)
            cases = [Case(split, several[0], f"speaker {name}") for name, several in by_speaker.items()]
            all_speakers = {one.speaker for one in utterances} - {None}
            what = f"{len(cases):,} of {counted(len(all_speakers), 'speaker')} of {split} are in train, too."
            advice = f"The WER on {split} will not tell how new voices fare; take them out of train if it should."
            findings.append(Finding("speakers in train and test", Severity.WARNING, what, advice, cases))
        learnt = [Case(split, one, one.text) for one in utterances if one.text in sentences]
        if learnt:
            what = f"{len(learnt):,} of {counted(len(utterances), 'utterance')} of {split} have a sentence of train."
            advice = f"The WER on {split} will be too good for new sentences; take them out of train if it should not."
            findings.append(Finding("sentences in train and test", Severity.WARNING, what, advice, learnt))
    return findings
