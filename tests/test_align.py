"""Alignment of reference texts with their audio: times of words, wrong texts, and texts that cannot be aligned."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import soundfile

from asr.align import main as align
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.errors import InputError
from tests.refusals import mentions, refused
from tests.test_formats import read_by_praatio
from tests.tones import GAP_SECONDS, LETTER_SECONDS, SAMPLE_RATE, speak

FRAME = 0.04  # seconds


def manifest(path: Path, utterances: list[Utterance], **texts: str) -> Path:
    """Write a manifest; `texts` replaces the texts of some ids."""
    write_manifest(
        path,
        [
            Utterance(
                utterance.audio_filepath, utterance.duration, texts.get(utterance.id, utterance.text), utterance.id
            )
            for utterance in utterances
        ],
    )
    return path


def true_times(text: str) -> list[tuple[float, float]]:
    """Return the true times of the words in audio made by `speak`."""
    step, position, times = LETTER_SECONDS + GAP_SECONDS, 0, []
    for word in text.split():
        times.append((position * step, (position + len(word)) * step - GAP_SECONDS))
        position += len(word) + 1
    return times


def test_words_have_the_times_at_which_they_are_spoken(fluent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert align([str(fluent / "run"), str(fluent / "test.jsonl")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    utterances = read_manifest(fluent / "test.jsonl")
    assert [line["id"] for line in lines] == [utterance.id for utterance in utterances], (
        "utterances are in the order of the manifest"
    )
    for line, utterance in zip(lines, utterances, strict=True):
        assert line["text"] == utterance.text
        words = [(word["start"], word["end"]) for word in line["words"]]
        for (start, end), (true_start, true_end) in zip(words, true_times(utterance.text), strict=True):
            assert start < end <= utterance.duration
            # CTC emits a letter anywhere within its sound, so times differ by at most one letter and one frame.
            assert abs(start - true_start) <= LETTER_SECONDS + FRAME
            assert abs(end - true_end) <= LETTER_SECONDS + FRAME
        assert all(0 <= word["confidence"] <= 1 for word in line["words"])
        # The score is the logarithm of the lowest word confidence. Confidences are rounded to four digits.
        assert math.exp(line["score"]) == pytest.approx(min(word["confidence"] for word in line["words"]), abs=1e-4)


def test_ctm_and_textgrid_contain_the_same_words(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    utterances = read_manifest(fluent / "test.jsonl")[:5]
    path = str(manifest(tmp_path / "some.jsonl", utterances))
    assert align([str(fluent / "run"), path, "--format", "ctm"]) == 0
    marks = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert align([str(fluent / "run"), path, "--format", "textgrid", "--output-dir", str(tmp_path / "out")]) == 0
    assert align([str(fluent / "run"), path, "--format", "json", "--output-dir", str(tmp_path / "out")]) == 0
    for utterance in utterances:
        mine = [mark for mark in marks if mark[0] == utterance.id]
        assert [mark[4] for mark in mine] == utterance.text.split()
        grid = read_by_praatio((tmp_path / "out" / f"{utterance.id}.TextGrid").read_text())
        assert [text for _, _, text in grid if text] == utterance.text.split()
        starts = [start for start, _, text in grid if text]
        assert starts == pytest.approx([float(mark[2]) for mark in mine], abs=1e-3)
        words = json.loads((tmp_path / "out" / f"{utterance.id}.json").read_text())["words"]
        assert starts == pytest.approx([word["start"] for word in words], abs=1e-3)


def planted(utterances: list[Utterance]) -> dict[str, str]:
    """Return 14 wrong texts by id: 4 with a wrong word, 4 with an added word, 4 with a missing word, and 2 swapped."""
    long = [utterance for utterance in utterances if len(utterance.text.split()) >= 3]
    wrong: dict[str, str] = {}
    for number, utterance in enumerate(long[:12]):
        words = utterance.text.split()
        at = number % len(words)
        if number % 3 == 0:
            # Each letter is replaced by another letter.
            words[at] = "".join("fedcba"["abcdef".index(letter)] for letter in words[at])
        elif number % 3 == 1:
            words.insert(at, "fadbe" if words[at] != "fadbe" else "ebdaf")
        else:
            del words[at]
        wrong[utterance.id] = " ".join(words)
    first, second = long[12:14]  # the two texts are swapped
    return wrong | {first.id: second.text, second.id: first.text}


def test_planted_errors_are_ranked_first(fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    utterances = read_manifest(fluent / "test.jsonl")
    wrong = planted(utterances)
    assert len(utterances) == 60
    assert len(wrong) == 14
    path = manifest(tmp_path / "wrong.jsonl", utterances, **wrong)
    assert align([str(fluent / "run"), str(path), "--worst", "14"]) == 0
    captured = capsys.readouterr()
    heading, *lines = captured.err.splitlines()
    assert heading == "texts that fit their audio worst (score; 0: the model recognises exactly this text):"
    named = [line.split(maxsplit=2) for line in lines]
    assert {name for _, name, _ in named} == wrong.keys()
    scores = [float(score) for score, _, _ in named]
    assert scores == sorted(scores), "the worst texts come first"
    assert all(text == wrong[name] for _, name, text in named)
    by_id = {line["id"]: line["score"] for line in map(json.loads, captured.out.splitlines())}
    best_wrong = max(by_id[name] for name in wrong)
    worst_right = min(score for name, score in by_id.items() if name not in wrong)
    assert best_wrong < worst_right - 1, "there is a clear gap between wrong and correct texts"


def test_option_worst_lists_the_worst_texts_in_addition_to_writing_segments(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(tmp_path / "some.jsonl", read_manifest(fluent / "test.jsonl")[:3])
    command = [str(fluent / "run"), str(path), "--segments", str(tmp_path / "segments.jsonl"), "--min-score", "-99"]
    assert align(command) == 0
    assert "texts that fit" not in capsys.readouterr().err
    assert align([*command, "--worst", "2"]) == 0
    errors = capsys.readouterr().err
    assert mentions(errors, "0 ... recognises exactly")
    assert len(re.findall(r"^ +-?\d+\.\d\d  test-\d+  ", errors, re.MULTILINE)) == 2


def test_a_wrong_word_has_the_lowest_confidence(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    utterance = next(
        utterance for utterance in read_manifest(fluent / "test.jsonl") if len(utterance.text.split()) == 4
    )
    words = utterance.text.split()
    words[2] = "".join("fedcba"["abcdef".index(letter)] for letter in words[2])
    path = manifest(tmp_path / "wrong.jsonl", [utterance], **{utterance.id: " ".join(words)})
    assert align([str(fluent / "run"), str(path)]) == 0
    [line] = map(json.loads, capsys.readouterr().out.splitlines())
    confidences = [word["confidence"] for word in line["words"]]
    assert confidences.index(min(confidences)) == 2
    assert confidences[2] < 0.01


def test_each_utterance_that_cannot_be_aligned_gets_one_error_line_and_the_others_are_aligned(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("no audio")
    soundfile.write(tmp_path / "good.flac", speak("abcd ef"), SAMPLE_RATE)
    good: dict[str, Any] = {"audio_filepath": "good.flac", "duration": len(speak("abcd ef")) / SAMPLE_RATE}
    good["text"] = "abcd ef"
    bad = {
        "unknown": {"text": "xyz"},
        "no text": {"text": ""},
        "nothing left": {"text": "!?"},
        "too long": {"text": "abcdef " * 40},
        "gone": {"audio_filepath": "gone.flac"},
        "wrong duration": {"duration": 9.0},
        "beyond": {"offset": 100.0},
        "a folder": {"audio_filepath": "."},
        "empty": {"audio_filepath": "empty.wav"},
        "not audio": {"audio_filepath": "text.wav"},
        "negative": {"duration": -1},
        "infinite": {"duration": 1e300},
        "number for text": {"text": 7},
        "line\nbreak": {"text": ""},
    }
    lines = [json.dumps(good | {"id": name} | how) for name, how in bad.items()]
    lines += ["{", "[]", json.dumps({"text": "abcd"}), json.dumps(good | {"id": "fine"})]
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join([json.dumps(good | {"id": "first"}), *lines]))
    assert align([str(fluent / "run"), str(path), "--format", "txt", "--worst", "0"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "first\tabcd ef\nfine\tabcd ef\n"
    *errors, summary = captured.err.splitlines()
    assert summary == "error: 17 of 19 utterances were not aligned; see the errors above."
    assert len(errors) == 17
    assert all(line.startswith("error: ") for line in errors)
    at = {"number for text": f"{path}:14", "line\nbreak": "line\\nbreak: "}
    for name in [*bad, f"{path}:16:", f"{path}:17:", f"{path}:18:"]:
        named = [line for line in errors if at.get(name, name) in line]
        assert len(named) == 1, (name, captured.err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--worst", "-1"], "--worst; got -1"),
        (["--format", "textgrid"], "--format ... --output-dir"),
        (["--chunk", "0"], "--chunk; got 0.0"),
    ],
)
def test_invalid_options_are_reported_in_one_line(fluent: Path, options: list[str], message: str) -> None:
    with refused(InputError, message):
        align([str(fluent / "run"), str(fluent / "test.jsonl"), *options])


def test_times_in_a_segment_of_a_recording_count_from_the_start_of_the_segment(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "two.flac", speak("abcd efa dbcd ef"), SAMPLE_RATE)
    step = LETTER_SECONDS + GAP_SECONDS
    line = {"audio_filepath": "two.flac", "offset": 9 * step, "duration": 7 * step, "text": "dbcd ef"}
    (tmp_path / "m.jsonl").write_text(json.dumps(line))
    assert align([str(fluent / "run"), str(tmp_path / "m.jsonl")]) == 0
    [aligned] = map(json.loads, capsys.readouterr().out.splitlines())
    for word, (start, _) in zip(aligned["words"], true_times("dbcd ef"), strict=True):
        assert abs(word["start"] - start) <= LETTER_SECONDS + FRAME
