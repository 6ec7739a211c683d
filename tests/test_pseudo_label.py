"""recipes/pseudo_label: automatic texts become a training manifest; each dropped text has a reason."""

import json
import math
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from asr.core.data.manifest import Utterance, read_manifest
from asr.core.recognition.confidence import UNCALIBRATED, Calibration
from asr.evaluate import main as evaluate
from asr.transcribe import main as transcribe
from recipes.pseudo_label import deciles
from recipes.pseudo_label.__main__ import main
from recipes.pseudo_label.filters import (
    Limits,
    disagreement,
    has_only,
    is_repetitive,
    most_repeats,
    reasons,
    sort_out,
)
from recipes.pseudo_label.texts import AutomaticText, read_texts
from tests.bulk import BAD, BUNDLE, finished_job, lines, write_input
from tests.refusals import mentions

ANY = Limits(0.0, (0, 1e9), (0, 10**9), (0, 1e9), 10**9, None, 1.0)


def text(words: str, name: str = "a", confidence: float | None = 0.5, duration: float = 2.0) -> AutomaticText:
    return AutomaticText(Utterance(f"/audio/{name}.wav", duration, words, name), confidence)


def reason_of(limits: Limits, tried: AutomaticText, second: dict[str, AutomaticText] | None = None) -> str | None:
    chosen, left_out = sort_out([tried], reasons(limits, second), keep=1.0)
    [*names] = [name for name, group in left_out.items() if group]
    assert len(chosen) + len(names) == 1
    return names[0] if names else None


# ---- each filter


@pytest.mark.parametrize(
    ("limits", "good", "bad", "reason"),
    [
        (ANY, text("a"), text(" "), "no words"),
        (replace(ANY, seconds=(1.0, 3.0)), text("a b", duration=3.0), text("a b", duration=3.01), "duration"),
        (replace(ANY, seconds=(1.0, 3.0)), text("a b", duration=1.0), text("a b", duration=0.99), "duration"),
        (replace(ANY, words=(2, 3)), text("a b"), text("a"), "number of words"),
        (replace(ANY, words=(2, 3)), text("a b c"), text("a b c d"), "number of words"),
        # The audio is 2 s long.
        (replace(ANY, characters_per_second=(2.0, 3.0)), text("abc def"), text("abc defg"), "speaking rate"),
        (replace(ANY, characters_per_second=(2.0, 3.0)), text("ab cd"), text("ab c"), "speaking rate"),
        (replace(ANY, characters=frozenset("abc'")), text("a b'c"), text("a b-c"), "characters"),
        (ANY, text("naïve, 2 “quotes”: ok?"), text("a ⁇ b"), "characters"),
        (replace(ANY, max_repeats=2), text("no no yes"), text("no no no yes"), "repetition"),
        (replace(ANY, min_confidence=0.5), text("a", confidence=0.5), text("a", confidence=0.49), "confidence"),
    ],
)
def test_a_filter_drops_only_texts_beyond_its_limit(
    limits: Limits, good: AutomaticText, bad: AutomaticText, reason: str
) -> None:
    assert reason_of(limits, good) is None
    assert reason_of(limits, bad) == reason


def plain_repeats(words: list[str]) -> int:
    """Return the largest number of consecutive repeats of any phrase, by comparing slices at each position."""
    most = min(len(words), 1)
    for length in range(1, 5):
        for start in range(len(words)):
            count = 1
            phrase = words[start : start + length]
            while len(phrase) == length and words[start + count * length : start + (count + 1) * length] == phrase:
                count += 1
            most = max(most, count)
    return most


def test_repeated_phrases_equal_those_of_a_plain_search() -> None:
    draw = random.Random(5)
    for _ in range(500):
        words = draw.choices("abc", k=draw.randrange(14))
        assert most_repeats(words) == plain_repeats(words), words
    assert most_repeats([*"abcbcbcd"]) == 3


def test_a_text_that_compresses_too_well_is_repetitive_even_without_consecutive_repeats() -> None:
    words = "one two three four five six seven"  # the repeated phrase has more than four words
    assert most_repeats([*words.split()] * 12) == 1
    assert is_repetitive(" ".join([words] * 12), max_repeats=3)
    assert not is_repetitive(words, max_repeats=3)


def plain_distance(first: list[str], second: list[str]) -> int:
    if not first or not second:
        return len(first) + len(second)
    return min(
        plain_distance(first[1:], second[1:]) + (first[0] != second[0]),
        plain_distance(first[1:], second) + 1,
        plain_distance(first, second[1:]) + 1,
    )


def test_disagreement_is_the_edit_distance_divided_by_the_longer_text() -> None:
    draw = random.Random(6)
    for _ in range(60):
        first, second = (draw.choices("abc", k=draw.randrange(6)) for _ in range(2))
        expected = plain_distance(first, second) / max(len(first), len(second), 1)
        assert disagreement(" ".join(first), " ".join(second)) == pytest.approx(expected)


def test_a_text_is_dropped_if_a_second_model_disagrees_or_has_no_text() -> None:
    limits = replace(ANY, max_disagreement=0.25)
    tried = text("a b c d")
    assert reason_of(limits, tried, {"a": text("a b c x")}) is None
    assert reason_of(limits, tried, {"a": text("a b x x")}) == "disagreement"
    assert reason_of(limits, tried, {"b": text("a b c d")}) == "not in the second output"
    assert reason_of(limits, tried, {"a": text("")}) == "disagreement"


@pytest.mark.parametrize("character", ["⁇", "\ufffd", "\x07", "☃", "€"])
def test_symbols_that_belong_to_no_language_are_refused_unless_they_are_listed(character: str) -> None:
    assert not has_only(f"a{character}", None)
    assert has_only(f"a{character}", frozenset(f"a{character}"))


def test_the_first_reason_is_given_and_the_most_confident_fraction_of_the_other_texts_is_kept() -> None:
    limits = replace(ANY, words=(1, 2), min_confidence=0.2)
    confidences = [0.3, 0.9, 0.1, 0.5, 0.9, 0.4]
    texts = [text("a", name, confidence) for name, confidence in zip("uvwxyz", confidences, strict=True)]
    texts.insert(2, text("a b c", "long", 0.05))
    chosen, left_out = sort_out(texts, reasons(limits, None), keep=0.6)
    assert [each.utterance.id for each in chosen] == ["v", "x", "y"]  # three of five, in the order of the input
    named = {name: [each.utterance.id for each in group] for name, group in left_out.items() if group}
    assert named == {"number of words": ["long"], "confidence": ["w"], "among the least confident": ["u", "z"]}


# ---- outputs of the commands


def entry(name: str, written: str, *confidences: float, **more: Any) -> dict[str, Any]:
    listed = [
        {"text": word, "start": 0.1, "end": 0.2, "confidence": confidence}
        for word, confidence in zip(written.split(), confidences, strict=True)
    ]
    mean = sum(confidences) / len(confidences) if confidences else None
    line = {"id": name, "audio_filepath": f"/audio/{name}.wav", "text": written, "duration": 0.5}
    return line | {"confidence": mean, "words": listed} | more


def write(path: Path, *entries: Any) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in entries))
    return path


def test_the_confidence_of_a_text_is_the_mean_calibrated_confidence_of_its_words(tmp_path: Path) -> None:
    file = write(tmp_path / "texts.jsonl", entry("a", "x y", 0.9, 0.6), entry("b", ""), entry("c", "z", 0.5))
    texts = read_texts(str(file), {}, Calibration(2.0, -1.0)).texts

    def plain(confidence: float) -> float:
        return 1 / (1 + math.exp(-(2.0 * math.log(confidence / (1 - confidence)) - 1.0)))

    assert texts["a"].confidence == pytest.approx((plain(0.9) + plain(0.6)) / 2)
    assert texts["b"].confidence is None
    assert texts["c"].confidence == pytest.approx(plain(0.5))


def scored(name: str, reference: str, words: str, *confidences: float) -> dict[str, Any]:
    line = entry(name, words, *confidences)
    return line | {"text": reference, "subset": "dev", "reference": reference, "hypothesis": words}


def test_calibration_is_fitted_on_the_dev_set(tmp_path: Path) -> None:
    """Half of the words with confidence 0.9 are right, and a tenth of those with 0.5."""
    rows = [scored(f"h{n}", "yes", "yes" if n % 2 else "no", 0.9) for n in range(400)]
    rows += [scored(f"l{n}", "yes", "no" if n % 10 else "yes", 0.5) for n in range(400)]
    write(tmp_path / "dev.jsonl", *rows)
    write(tmp_path / "texts.jsonl", entry("a", "x", 0.9), entry("b", "x", 0.5))
    arguments = [str(tmp_path / "texts.jsonl"), "--dev", str(tmp_path / "dev.jsonl"), "--output-dir", str(tmp_path)]
    assert main(arguments) == 0
    confidence = {line["id"]: line["confidence"] for line in lines(tmp_path / "pseudo.jsonl")}
    assert confidence == {"a": pytest.approx(0.5, abs=0.01), "b": pytest.approx(0.1, abs=0.01)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_input(tmp_path_factory.mktemp("input"), count=12)


@pytest.fixture(scope="module")
def job(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_job(source, tmp_path_factory.mktemp("job"))


def test_each_utterance_of_a_bulk_job_is_in_the_manifest_or_dropped_with_a_reason(
    source: Path, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(job), "--keep", "0.5", "--output-dir", str(tmp_path)]) == 0
    chosen = {utterance.id: utterance for utterance in read_manifest(tmp_path / "pseudo.jsonl")}
    left_out = {line["id"]: line["reason"] for line in lines(tmp_path / "left_out.jsonl")}
    ids = [line["id"] for line in lines(source)]
    assert sorted([*chosen, *left_out]) == sorted(ids)
    assert {name for name, reason in left_out.items() if reason == "not transcribed"} == {f"bad {kind}" for kind in BAD}
    texts = {line["id"]: line for part in job.glob("part-*.jsonl") for line in lines(part)}
    assert chosen
    for name, utterance in chosen.items():
        assert utterance.text == texts[name]["text"]
        assert utterance.duration == texts[name]["duration"]
        assert Path(utterance.audio_filepath).is_file()
    rows = {line[:26].strip(): line[26:].split() for line in capsys.readouterr().out.splitlines()}
    assert int(rows["to train on"][0]) == len(chosen)
    assert rows["not transcribed"][:2] == [str(len(BAD)), "-"]
    assert sum(int(row[0]) for name, row in rows.items() if name != "left out for") == len(ids)


def test_plain_transcripts_give_the_same_manifest_as_a_bulk_job(
    source: Path, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transcribe([str(BUNDLE), str(source), "--format", "jsonl", "--device", "cpu"])
    plain = tmp_path / "plain.jsonl"
    plain.write_text(capsys.readouterr().out)
    assert main([str(plain), "--manifest", str(source), "--output-dir", str(tmp_path / "plain")]) == 0
    assert main([str(job), "--output-dir", str(tmp_path / "job")]) == 0
    of_plain, of_job = (lines(tmp_path / name / "pseudo.jsonl") for name in ("plain", "job"))
    assert [line["text"] for line in of_plain] == [line["text"] for line in of_job]
    assert [line["confidence"] for line in of_plain] == [line["confidence"] for line in of_job]
    assert [Path(line["audio_filepath"]) for line in of_plain] == [Path(line["audio_filepath"]) for line in of_job]


def test_the_hypotheses_of_an_evaluation_are_used_and_not_the_references(source: Path, tmp_path: Path) -> None:
    good = [line | {"text": "reference"} for line in lines(source) if line["id"].startswith("good")]
    manifest = write(source.parent / "good.jsonl", *good)
    evaluate([str(BUNDLE), str(manifest), "--output-dir", str(tmp_path), "--device", "cpu"])
    assert main([str(tmp_path / "good.utterances.jsonl"), "--output-dir", str(tmp_path / "out")]) == 0
    hypotheses = {line["id"]: line["raw_hypothesis"] for line in lines(tmp_path / "good.utterances.jsonl")}
    chosen = lines(tmp_path / "out" / "pseudo.jsonl")
    assert chosen
    assert all(line["text"] == hypotheses[line["id"]] != "reference" for line in chosen)


def test_segments_of_a_job_are_used_instead_of_its_texts(tmp_path: Path) -> None:
    write(tmp_path / "failures.jsonl")
    write(tmp_path / "part-00000.jsonl", entry("a", "x y", 0.9, 0.6, duration=50.0))
    segment = {"id": "a-00001", "audio_filepath": "/audio/a.wav", "offset": 12.5, "duration": 3.0, "text": "yes"}
    write(tmp_path / "segments-00000.jsonl", segment | {"confidence": 0.6})
    assert main([str(tmp_path), "--output-dir", str(tmp_path / "out")]) == 0
    assert lines(tmp_path / "out" / "pseudo.jsonl") == [segment | {"confidence": 0.6}]


def test_texts_that_a_second_output_contradicts_or_lacks_are_dropped(tmp_path: Path) -> None:
    write(tmp_path / "first.jsonl", entry("a", "x y", 0.9, 0.9), entry("b", "x", 0.9), entry("c", "x", 0.9))
    write(tmp_path / "second.jsonl", entry("a", "x y", 0.1, 0.1), entry("b", "y", 0.9))
    arguments = [str(tmp_path / "first.jsonl"), "--second", str(tmp_path / "second.jsonl")]
    assert main([*arguments, "--output-dir", str(tmp_path)]) == 0
    assert [line["id"] for line in lines(tmp_path / "pseudo.jsonl")] == ["a"]
    assert {line["id"]: line["reason"] for line in lines(tmp_path / "left_out.jsonl")} == {
        "b": "disagreement",
        "c": "not in the second output",
    }


# ---- malicious input


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "holds none"),
        (["not json"], "texts.jsonl:1 ... line ... JSON"),
        ([{"id": "a"}], "missing text"),
        ([entry("a", "x", 0.5), entry("a", "x", 0.5)], "texts.jsonl:2 ... ids ... 'a'"),
        ([entry("a", "x", 0.5, words=7)], "texts.jsonl:1 ... words; got 7"),
        ([entry("a", "x", 0.5, words=[3])], "confidence; got None"),
        ([entry("a", "x", 1.5)], "confidence; got 1.5"),
        ([entry("a", "x", 0.5, words=[{"confidence": True}])], "confidence; got True"),
        ([entry("a", "x", 0.5, duration=0)], "texts.jsonl:1 ... duration; got 0"),
        ([entry("a", "x", 0.5, text=["x"])], "texts.jsonl:1 ... be a string"),
        ([entry("a", "x", 0.5, start=0, num_bytes=9)], "audio ... in files"),
        ([{"id": "a", "text": "x", "duration": 1, "confidence": 0.5}], "--manifest ... with the manifest"),
        ([{"id": ["a"], "text": "x", "duration": 1, "confidence": 0.5}], "--manifest ... with the manifest"),
    ],
)
def test_input_without_automatic_texts_is_reported_in_one_line(
    entries: list[Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "texts.jsonl", *entries)
    assert main([str(file), "--output-dir", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert shown.count("\n") == 1
    assert mentions(shown, message)
    assert not (tmp_path / "out").exists()


def test_an_unfinished_job_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job").mkdir()
    write(tmp_path / "job" / "part-00000.jsonl", entry("a", "x", 0.5))
    assert main([str(tmp_path / "job"), "--output-dir", str(tmp_path / "out")]) == 1
    assert mentions(capsys.readouterr().err, "asr.transcribe --parts")


def test_a_manifest_with_repeated_ids_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"audio_filepath": "a.wav", "duration": 1.0, "id": "a"}
    manifest = write(tmp_path / "all.jsonl", line, line)
    file = write(tmp_path / "texts.jsonl", entry("a", "x", 0.5))
    assert main([str(file), "--manifest", str(manifest), "--output-dir", str(tmp_path / "out")]) == 1
    assert mentions(capsys.readouterr().err, "all.jsonl:2 ... ids")


def test_an_empty_manifest_is_never_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "texts.jsonl", entry("a", ""), entry("b", "x", 0.5, duration=99.0))
    assert main([str(file), "--output-dir", str(tmp_path / "out")]) == 1
    shown = capsys.readouterr()
    assert mentions(shown.err, "table shows")
    assert "no words" in shown.out
    assert not (tmp_path / "out").exists()


def test_files_that_the_recipe_did_not_write_are_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "texts.jsonl", entry("a", "x", 0.5))
    other = write(tmp_path / "pseudo.jsonl", "mine")
    assert main([str(file), "--output-dir", str(tmp_path)]) == 1
    assert "holds pseudo.jsonl" in capsys.readouterr().err
    assert other.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "0"], "--keep; got 0"),
        (["--keep", "nan"], "--keep; got nan"),
        (["--min-confidence", "70"], "--min-confidence; got 70"),
        (["--max-disagreement", "-1"], "--max-disagreement; got -1"),
        (["--seconds", "3", "1"], "--seconds; got 3 1"),
        (["--characters-per-second", "nan", "1"], "--characters-per-second; got nan 1"),
        (["--max-repeats", "0"], "--max-repeats; got 0"),
    ],
)
def test_options_out_of_range_are_reported_in_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "texts.jsonl", entry("a", "x", 0.5))
    assert main([str(file), "--output-dir", str(tmp_path / "out"), *options]) == 1
    assert mentions(capsys.readouterr().err.strip(), message)


def test_audio_in_an_object_store_keeps_its_url(tmp_path: Path) -> None:
    url = "s3://bucket/audio/a.flac"
    file = write(tmp_path / "texts.jsonl", entry("a", "x", 0.5, audio_filepath=url, speaker="s", offset=1.5))
    texts = read_texts(str(file), {}, UNCALIBRATED).texts
    assert texts["a"].as_dict()["audio_filepath"] == url
    assert texts["a"].as_dict()["offset"] == 1.5
    assert texts["a"].as_dict()["speaker"] == "s"


# ---- confidence compared with errors


def test_errors_are_computed_for_each_tenth_of_the_utterances_sorted_by_confidence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(8)
    rows = []
    for number in range(25):
        words = draw.choices(["yes", "no"], k=4)
        rows.append(scored(f"u{number}", "yes yes no no", " ".join(words), *[(number + 1) / 100] * 4))
    draw.shuffle(rows)
    file = write(tmp_path / "train.utterances.jsonl", *rows)
    assert deciles.main([str(file)]) == 0
    ranked = sorted(rows, key=lambda row: -row["confidence"])
    edges = [25 * number // 10 for number in range(11)]
    expected = []
    for first, last in pairwise(edges):
        group = ranked[first:last]
        errors = sum(plain_distance(row["reference"].split(), row["hypothesis"].split()) for row in group)
        confidences = f"{group[-1]['confidence']:.3f} to {group[0]['confidence']:.3f}"
        expected.append(f"{confidences} {len(group)} {4 * len(group)} {100 * errors / (4 * len(group)):.1f} %")
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert shown[2:] == expected


def test_the_page_shows_measured_and_expected_errors_of_each_tenth(tmp_path: Path) -> None:
    rows = [scored(f"u{number}", "yes no", "yes yes", *[number / 100] * 2) for number in range(1, 51)]
    file, drawn = write(tmp_path / "<b>.jsonl", *rows), tmp_path / "page.html"
    assert deciles.main([str(file), "--page", str(drawn)]) == 0
    shown = drawn.read_text()
    assert "<b>" not in shown
    for number in range(10):
        mean = sum(range(5 * number + 1, 5 * number + 6)) / 500
        assert f"<td>{100 * (1 - mean):.1f} %</td>" in shown
    assert shown.count("<td>50.0 %") == 10


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (9, [], "10 ... holds ... 9"),
        (10, ["--dev", "a.jsonl", "b.jsonl"], "--dev; got 2 for 1"),
    ],
)
def test_input_that_cannot_be_divided_into_tenths_by_confidence_is_reported_in_one_line(
    count: int, options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "few.jsonl", *(scored(f"u{number}", "yes", "no", 0.5) for number in range(count)))
    assert deciles.main([str(file), *options]) == 1
    assert mentions(capsys.readouterr().err.strip(), message)
