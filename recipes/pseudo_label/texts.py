"""Automatic transcripts from asr.transcribe and asr.evaluate, with their audio and confidence."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asr.base.storage.location import absolute, folder_of, is_url, join
from asr.base.storage.store import list_prefix
from asr.base.text.word_errors import right_words
from asr.core.data.manifest import Utterance, named_lines, parse_object, parse_utterance, read_good_lines
from asr.core.evaluation.utterances import read_scored
from asr.core.recognition.confidence import Calibration, calibrate
from asr.errors import InputError, shown

FAILURES = "failures.jsonl"
NEEDED = ("audio_filepath", "duration")


@dataclass(frozen=True, slots=True)
class AutomaticText:
    """A text that a model recognised in an utterance.

    Args:
        utterance: the utterance; its text is the recognised text.
        confidence: calibrated mean confidence of the words, from 0 to 1; None: the text has no words.
    """

    utterance: Utterance
    confidence: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the manifest line of this text as a dict."""
        utterance = self.utterance
        line: dict[str, Any] = {"id": utterance.id, "audio_filepath": absolute(utterance.audio_filepath)}
        line |= {"duration": utterance.duration}
        line |= {} if utterance.offset is None else {"offset": utterance.offset}
        line |= {} if utterance.speaker is None else {"speaker": utterance.speaker}
        return line | {"text": utterance.text, "confidence": round(self.confidence or 0.0, 4)}


@dataclass(frozen=True)
class AutomaticTexts:
    """The texts that one command recognised.

    Args:
        texts: dict from the id of each utterance to its text, in the order of the files.
        failures: ids of utterances without a text, because they could not be recognised.
    """

    texts: Mapping[str, AutomaticText]
    failures: tuple[str, ...]


def read_texts(path: str, audio: Mapping[str, Utterance], calibration: Calibration) -> AutomaticTexts:
    """Read the output of `asr.transcribe --parts`, of `asr.transcribe --format jsonl`, or of `asr.evaluate`.

    Args:
        path: path or URL of a JSONL file, or of a bulk job's folder; if it has files of segments, only they are read.
        audio: utterances by id, for lines without an audio path.
        calibration: applied to the confidence of each word, or of each segment.

    Raises:
        InputError: a line is not an automatic text, or repeats an id (with file and line); there is no text; or the
            bulk job is not finished.
    """
    files, failures = _files(path)
    texts: dict[str, AutomaticText] = {}
    for file in files:
        for where, line in named_lines(file, "automatic texts"):
            text = _parse(parse_object(line, where), where, folder_of(file), audio, calibration)
            if text.utterance.id in texts:
                raise InputError(f"{where}: ids must be unique; {shown(text.utterance.id)} occurs twice.")
            texts[text.utterance.id] = text
    if not texts:
        raise InputError(f"{path}: must hold at least one automatic text; it holds none.")
    return AutomaticTexts(texts, failures)


def fitted_calibration(path: str) -> Calibration:
    """Fit the calibration of words' confidence on transcribed speech.

    Args:
        path: NAME.utterances.jsonl that `asr.evaluate` wrote with the model that recognised the texts.

    Raises:
        InputError: `asr.evaluate` did not write the file, or no word was recognised.
    """
    words, right = [], []
    for scored in read_scored(path):
        words += [word.confidence for word in scored.transcript.words]
        right += right_words(scored.reference, scored.transcript.text)
    return calibrate(words, right)


def _files(path: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the files of texts, in order, and the ids of failures."""
    if not is_url(path) and not os.path.isdir(path):
        return [path], ()
    if is_url(path) and path.endswith(".jsonl"):
        return [path], ()
    paths = [url for url, _ in list_prefix(path)] if is_url(path) else [join(path, name) for name in os.listdir(path)]
    names = {os.path.basename(file): file for file in paths if file.endswith(".jsonl")}
    if FAILURES not in names:
        must = f"{path}: must be a finished job of asr.transcribe --parts; it has no {FAILURES}"
        raise InputError(f"{must}. Run the same asr.transcribe command again; it resumes.")
    failures = [parse_object(line, where) for where, line in named_lines(names[FAILURES], "failures")]
    kind = "segments-" if any(name.startswith("segments-") for name in names) else "part-"
    files = [names[name] for name in sorted(names) if name.startswith(kind)]
    return files, tuple(str(failure.get("id")) for failure in failures)


def _parse(
    entry: dict[str, Any], where: str, folder: str, audio: Mapping[str, Utterance], calibration: Calibration
) -> AutomaticText:
    key = "hypothesis" if "hypothesis" in entry else "text"  # in asr.evaluate's output, `text` is the reference
    missing = [name for name in ("id", key, "confidence") if name not in entry]
    if missing:
        must = f"{where}: must be a line of asr.transcribe or asr.evaluate"
        raise InputError(f"{must}, with id, text and confidence; missing {', '.join(missing)}.")
    if "num_bytes" in entry:
        must = f"{where}: audio must be in files, which a manifest can name; this is a part of a shard"
        raise InputError(f"{must}. Transcribe the manifest from which the shards were made.")
    if "audio_filepath" not in entry:
        if str(entry["id"]) not in audio:
            must = f"{where}: must name its audio, or --manifest must name that of {shown(entry['id'])}"
            raise InputError(f"{must}. Give --manifest with the manifest that was transcribed.")
        utterance = audio[str(entry["id"])]
        entry = entry | {
            "audio_filepath": utterance.audio_filepath,
            "duration": utterance.duration,
            "offset": utterance.offset,
            "speaker": utterance.speaker,
        }
        folder = ""
    text = parse_utterance(entry | {"text": entry.get("raw_hypothesis", entry[key])}, where, folder or None)
    return AutomaticText(text, _confidence(entry, where, calibration))


def _confidence(entry: dict[str, Any], where: str, calibration: Calibration) -> float | None:
    """Return the calibrated mean confidence of the words; a segment has one confidence instead of words."""
    words = entry.get("words")
    if words is None:
        words = [] if entry["confidence"] is None else [{"confidence": entry["confidence"]}]
    if not isinstance(words, list):
        raise InputError(f"{where}: words must be a list; got {shown(words)}.")
    values: list[Any] = [word.get("confidence") if isinstance(word, dict) else None for word in words]
    for value in values:
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise InputError(f"{where}: confidence must be a number from 0 to 1; got {shown(value)}.")
    return sum(map(calibration, values)) / len(values) if values else None


def read_audio(path: str) -> dict[str, Utterance]:
    """Read a manifest, in which texts are optional; return its utterances by id.

    Raises:
        InputError: a line is not an utterance, or repeats an id (with file and line).
    """
    utterances, problems = read_good_lines(path, required=NEEDED)
    if problems:
        raise problems[0]
    return {utterance.id: utterance for utterance in utterances}
