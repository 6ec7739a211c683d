"""Scored utterances: reference, hypothesis and errors, written to and read from NAME.utterances.jsonl."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.base.storage.location import absolute, folder_of, is_url, plain, printable_url
from asr.base.text.normalize import as_written
from asr.base.text.scripts import without_spaces
from asr.base.text.word_errors import ErrorCounts, count_characters, count_errors
from asr.core.data.manifest import MAX_SECONDS, Utterance, check_unicode, named_lines, parse_object, parse_utterance
from asr.core.recognition.transcript import Transcript, Word
from asr.errors import InputError, shown

WITHIN_WORDS = "'’-"  # noqa: RUF001  these characters are part of the spelling of a word
REQUIRED_KEYS = ("id", "subset", "audio_filepath", "duration", "text", "reference", "hypothesis", "words")


@dataclass(frozen=True, slots=True)
class Scored:
    """An utterance, its hypothesis and its errors.

    Args:
        utterance: the utterance, with its text as written in the manifest.
        subset: file name of its manifest, without suffix.
        reference: normalised text of the utterance.
        transcript: recognised words, normalised.
        raw_hypothesis: recognised text as the model writes it.
        counts: word errors of the hypothesis against the reference.
        characters: character errors of the hypothesis against the reference.
        raw_counts: word errors of `raw_hypothesis` against the text as written, with case and punctuation.
    """

    utterance: Utterance
    subset: str
    reference: str
    transcript: Transcript
    raw_hypothesis: str
    counts: ErrorCounts
    characters: ErrorCounts
    raw_counts: ErrorCounts

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object that is this utterance's line in NAME.utterances.jsonl."""
        utterance, counts, transcript = self.utterance, self.counts, self.transcript.as_dict()
        return {
            "id": utterance.id,
            "subset": self.subset,
            "speaker": utterance.speaker,
            "duration": utterance.duration,
            "audio_filepath": absolute(utterance.audio_filepath),
            "offset": utterance.offset,
            "text": utterance.text,
            "reference": self.reference,
            "hypothesis": self.transcript.text,
            "raw_hypothesis": self.raw_hypothesis,
            "substitutions": counts.substitutions,
            "insertions": counts.insertions,
            "deletions": counts.deletions,
            "reference_words": counts.reference_length,
            "confidence": transcript["confidence"],
            "words": transcript["words"],
        }


def unspaced(scored: Iterable[Scored]) -> bool:
    """Whether most letters of the references belong to scripts that are written without spaces between words."""
    return without_spaces(" ".join(result.reference for result in scored))


def show_writing(scored: Iterable[Scored]) -> bool:
    """Whether references have case or punctuation; otherwise there is no WER of texts as written.

    Texts that have only capitals (LibriSpeech), or only small letters, are treated as texts without case.
    """
    texts = [result.utterance.text for result in scored]
    if any(text not in (text.lower(), text.upper()) for text in texts):
        return True
    characters = {character for text in texts for character in text} - {*WITHIN_WORDS}
    return any(unicodedata.category(character).startswith("P") for character in characters)


def score(
    utterance: Utterance, subset: str, reference: str, transcript: Transcript, raw_hypothesis: str | None = None
) -> Scored:
    """Count the errors of a transcript; the arguments are fields of `Scored`, and `transcript` is normalised.

    Times and confidences are rounded as in NAME.utterances.jsonl, so that figures can be recomputed from this file.
    """
    transcript = transcript.rounded()
    hypothesis = transcript.text
    raw_hypothesis = hypothesis if raw_hypothesis is None else raw_hypothesis
    return Scored(
        utterance,
        subset,
        reference,
        transcript,
        raw_hypothesis,
        counts=count_errors(reference, hypothesis),
        characters=count_characters(reference, hypothesis),
        raw_counts=count_errors(as_written(utterance.text), raw_hypothesis),
    )


def read_scored(path: str | Path) -> list[Scored]:
    """Read NAME.utterances.jsonl, as `asr.evaluate --output-dir` writes it, and count the errors again."""
    path = plain(path)
    _check_readable(path)
    scored: dict[tuple[str, str], Scored] = {}
    for where, line in named_lines(path, "a file of scored utterances"):
        result = _parse(parse_object(line, where), where, folder_of(path))
        key = (result.subset, result.utterance.id)
        if key in scored:
            raise InputError(f"{where}: ids must be unique in a subset; {shown(result.utterance.id)} occurs twice.")
        scored[key] = result
    if not scored:
        raise InputError(f"{printable_url(path)}: must hold at least one scored utterance; it is empty.")
    return list(scored.values())


def _check_readable(path: str) -> None:
    local = Path(path)
    if not (is_url(path) or local.is_file() or local.is_fifo()):  # a pipe: <(cat evaluation/*.utterances.jsonl)
        problem = "it is a folder" if local.is_dir() else "it is a device" if local.exists() else "no such file"
        raise InputError(f"{path}: {problem}. Give a NAME.utterances.jsonl; asr.evaluate --output-dir writes them.")
    if path.endswith(".wer.json"):
        raise InputError(f"{path}: must have scored utterances; it has only counts. Give the NAME.utterances.jsonl.")


def _parse(entry: dict[str, Any], where: str, folder: str) -> Scored:
    missing = [key for key in REQUIRED_KEYS if key not in entry]
    if missing:
        must = f"{where}: must have the keys that asr.evaluate --output-dir writes"
        raise InputError(f"{must}; missing {', '.join(missing)}. Evaluate again, if an older version wrote it.")
    entry = {"raw_hypothesis": entry["hypothesis"]} | entry  # earlier versions did not write this key
    for key in ("subset", "reference", "hypothesis", "raw_hypothesis"):
        if not isinstance(entry[key], str):
            raise InputError(f"{where}: {key} must be a string; got {shown(entry[key])}.")
        check_unicode(entry[key], f"{where}: {key}")
    utterance = parse_utterance(entry, where, folder)
    if not isinstance(entry["words"], list):
        raise InputError(f"{where}: words must be a list; got {shown(entry['words'])}.")
    words = tuple(_word(word, f"{where}: word {number}") for number, word in enumerate(entry["words"], start=1))
    transcript = Transcript(words, (), utterance.duration)
    if transcript.text != " ".join(entry["hypothesis"].split()):
        must = f"{where}: hypothesis must equal the joined texts in words"
        raise InputError(f"{must}; got {shown(entry['hypothesis'])} and {shown(transcript.text)}.")
    return score(utterance, entry["subset"], entry["reference"], transcript, entry["raw_hypothesis"])


def _word(entry: Any, where: str) -> Word:
    if not isinstance(entry, dict) or not {"text", "start", "end", "confidence"} <= entry.keys():
        raise InputError(f"{where} must have text, start, end and confidence; got {shown(entry)}.")
    text = entry["text"]
    if not isinstance(text, str) or len(text.split()) != 1:
        raise InputError(f"{where}: text must be one word; got {shown(text)}.")
    numbers = []
    for key in ("start", "end", "confidence"):
        value = entry[key]
        if type(value) not in (int, float) or not 0 <= value <= MAX_SECONDS:
            raise InputError(f"{where}: {key} must be a number that is not negative; got {shown(value)}.")
        numbers.append(float(value))
    start, end, confidence = numbers
    if confidence > 1:
        raise InputError(f"{where}: confidence must be from 0 to 1; got {confidence}.")
    return Word(text.strip(), start, end, confidence)
