"""NAME.utterances.jsonl is written and read back; invalid content is reported in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asr.core.data.manifest import Utterance
from asr.core.evaluation.analysis import figures
from asr.core.evaluation.utterances import read_scored, score
from asr.core.recognition.transcript import Alternative, Transcript, Word
from asr.errors import InputError
from tests.conftest import ROOT
from tests.refusals import check_ended, mentions, refused
from tests.scoring import scored, simulated, write_scored

ROWS = [
    scored("the cat sat", "the hat sat down", name="a", speaker="s", text="The cat sat."),
    scored("the cat", "", name="b"),
    scored("", "oh", name="c", confidences=[1.0]),
    scored("", "", name="c", subset="other"),
    scored(
        "\u05e9\u05dc \U0001f600 e\u0301",
        "\u05e9\u05dc <b> e\u0301",
        name="\u0130/\u202e\udcff",
        speaker="\u4f60\u597d",
    ),
]


def test_written_utterances_are_read_back(tmp_path: Path) -> None:
    utterances = read_scored(write_scored(tmp_path / "x.utterances.jsonl", ROWS))
    assert utterances == ROWS


def test_figures_are_equal_before_writing_and_after_reading(tmp_path: Path) -> None:
    rows = simulated(50, seed=1)  # the confidences are not rounded
    assert figures(read_scored(write_scored(tmp_path / "x.jsonl", rows))) == figures(rows)


def test_a_line_has_everything_needed_to_score_it_again() -> None:
    utterance = Utterance("audio/1.wav", 1.5, "The CAT sat.", "1", offset=0.5, speaker="s")
    words = (Word("the", 0.10004, 0.3, 0.91234), Word("hat", 0.4, 0.6, 0.7), Word("sat", 0.7, 0.9, 1.0))
    transcript = Transcript(words, (Alternative("the hat sat", -1.0),), 1.5)
    assert score(utterance, "test", "the cat sat", transcript).as_dict() == {
        "id": "1",
        "subset": "test",
        "speaker": "s",
        "duration": 1.5,
        "audio_filepath": os.path.join(os.getcwd(), "audio/1.wav"),
        "offset": 0.5,
        "text": "The CAT sat.",
        "reference": "the cat sat",
        "hypothesis": "the hat sat",
        "raw_hypothesis": "the hat sat",
        "substitutions": 1,
        "insertions": 0,
        "deletions": 0,
        "reference_words": 3,
        "confidence": 0.8708,
        "words": [
            {"text": "the", "start": 0.1, "end": 0.3, "confidence": 0.9123},
            {"text": "hat", "start": 0.4, "end": 0.6, "confidence": 0.7},
            {"text": "sat", "start": 0.7, "end": 0.9, "confidence": 1.0},
        ],
    }


def test_an_utterance_is_scored_by_words_by_characters_and_as_written() -> None:
    row = scored("the cat sat", "the hat sat", text="The cat sat.")
    assert row.counts.errors == 1
    assert (row.characters.errors, row.characters.reference_length) == (1, 11)
    assert row.raw_counts.errors == 3  # errors: The, cat, sat.


def test_errors_as_written_are_those_of_the_raw_output_of_the_model() -> None:
    utterance = Utterance("1.wav", 1.5, "Äpfel, bitte!".replace("Ä", "A\u0308"), "1")
    transcript = Transcript((Word("äpfel", 0.0, 0.5, 1.0), Word("bitte", 0.5, 1.0, 1.0)), (), 1.5)
    row = score(utterance, "test", "äpfel bitte", transcript, "Äpfel bitte!")
    assert row.counts.errors == 0
    assert row.raw_counts.errors == 1  # the comma; composed and decomposed letters are equal
    assert row.as_dict()["raw_hypothesis"] == "Äpfel bitte!"


def test_a_line_of_an_earlier_version_is_read_with_the_hypothesis_as_raw_output(tmp_path: Path) -> None:
    line = {key: value for key, value in ROWS[0].as_dict().items() if key != "raw_hypothesis"}
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    assert read_scored(tmp_path / "x.jsonl") == ROWS[:1]


def transcript_of(text: str) -> Transcript:
    """Return a transcript whose words begin at 0, 1, … seconds, last half a second, and have confidence 0.5."""
    words = (Word(word, float(start), start + 0.5, 0.5) for start, word in enumerate(text.split()))
    return Transcript(tuple(words), (Alternative(text, -1.0),), 9.0)


def joined(text: str) -> str:
    """Normalise numbers to digits, drop `oh`, and split `well-known` into two words."""
    return text.lower().replace("twenty five", "25").replace("oh", "").replace("-", " ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("At twenty five", [("at", 0.0, 0.5, 0.5), ("25", 1.0, 2.5, 0.25)]),
        ("oh twenty five oh", [("25", 1.0, 2.5, 0.25)]),
        (
            "a well-known B",
            [("a", 0.0, 0.5, 0.5), *[(w, 1.0, 1.5, 0.5) for w in ("well", "known")], ("b", 2.0, 2.5, 0.5)],
        ),
        ("oh", []),
        ("", []),
    ],
)
def test_normalised_words_have_the_times_and_confidence_of_the_original_words(
    text: str, words: list[tuple[str, float, float, float]]
) -> None:
    transcript = transcript_of(text).normalized(joined)
    assert [(word.text, word.start, word.end, word.confidence) for word in transcript.words] == words
    assert transcript.text == " ".join(joined(text).split())
    assert transcript.alternatives[0].text == joined(text)


def test_errors_are_recomputed_and_not_read_from_the_file(tmp_path: Path) -> None:
    line = ROWS[0].as_dict() | {"substitutions": 0, "insertions": 0, "deletions": 0, "reference_words": 99}
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    assert read_scored(tmp_path / "x.jsonl") == ROWS[:1]


def changed(**keys: Any) -> str:
    """Return a line with these changed keys; None removes a key."""
    line = ROWS[0].as_dict() | keys
    return json.dumps({key: value for key, value in line.items() if value is not None})


def with_word(**keys: Any) -> str:
    """Return a line whose only word has these changed keys."""
    return changed(hypothesis="the", words=[{"text": "the", "start": 0.0, "end": 0.4, "confidence": 0.5} | keys])


BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "x.jsonl ... it is empty"),
    "blank": ("\n \n", "scored utterance"),
    "not JSON": ("not json", "x.jsonl:1 ... line ... JSON"),
    "a list": ("[1, 2]", "x.jsonl:1 ... line; got list"),
    "deep": ('{"a": ' + "[" * 100_000, "is too deep"),
    "binary": (b"\x00\xff\xfe binary\x00", "x.jsonl:1 ... not text"),
    "binary in one line": (b"\x80\x81\x82" * 1_000_000, "line ... JSON"),
    "huge": (json.dumps({"text": "x" * 3_000_000}), "audio_filepath ... reference"),
    "an older version": (
        changed(subset=None, text=None),
        "missing subset",
    ),
    "duration NaN": (changed(duration=float("nan")), "duration; got nan"),
    "duration huge": (changed(duration=["x" * 3_000_000]), f"duration; got ['{20 * 'x'}"),
    "duration infinite": (changed(duration=float("inf")), "duration; got inf"),
    "duration a string": (changed(duration="2"), "duration; got '2'"),
    "duration 0": (changed(duration=0), "duration; got 0"),
    "reference a number": (changed(reference=7), "reference; got 7"),
    "text a huge list": (changed(text=["x" * 3_000_000]), f"text; got ['{20 * 'x'}"),
    "surrogate": (changed(hypothesis="the \ud800"), "hypothesis ... lone surrogate"),
    "other words": (
        changed(hypothesis="a cat"),
        "hypothesis ... 'a cat'",
    ),
    "words an object": (changed(words={"text": "the"}), "words; got {'text': 'the'}"),
    "words strings": (changed(words=["the"]), "x.jsonl:1 ... word 1; got 'the'"),
    "two words in one": (with_word(text="the cat"), "1 ... text; got 'the cat'"),
    "no text": (with_word(text=None), "1 ... text; got None"),
    "start NaN": (with_word(start=float("nan")), "1 ... start; got nan"),
    "end negative": (with_word(end=-1), "1 ... end; got -1"),
    "end true": (with_word(end=True), "1 ... end; got True"),
    "confidence above 1": (with_word(confidence=1.5), "1 ... confidence; got 1.5"),
    "a repeated id": (f"{changed()}\n{changed()}", "x.jsonl:2 ... ids ... 'a'"),
    "a repeated id in Unicode": (
        2 * (changed(id="\u00e9\u202e") + "\n"),
        "x.jsonl:2 ... ids",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_an_invalid_utterance_is_reported_in_one_line(kind: str, tmp_path: Path) -> None:
    content, message = BAD[kind]
    path = tmp_path / "x.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(InputError, message) as raised:
        read_scored(path)
    assert len(str(raised.value).replace(str(tmp_path), "")) < 300


def test_a_file_that_cannot_be_read_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "test.wer.json").write_text('{\n  "wer": 0.1\n}\n')
    with refused(InputError, "test.wer.json ... only counts ... utterances.jsonl"):
        read_scored(tmp_path / "test.wer.json")
    with refused(InputError, "gone.jsonl: no such file. Give a NAME.utterances.jsonl"):
        read_scored(tmp_path / "gone.jsonl")
    with refused(InputError, "is a folder", cure="NAME.utterances.jsonl"):
        read_scored(tmp_path)
    (tmp_path / "x\ny.jsonl").write_text("{")
    with refused(InputError, r"x\ny.jsonl:1 ... JSON"):
        read_scored(tmp_path / "x\ny.jsonl")


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    """A user can pass several files as one with <(cat evaluation/*.utterances.jsonl)."""
    path = write_scored(tmp_path / "x.jsonl", ROWS)
    command = "from asr.core.evaluation.utterances import read_scored; import sys; print(len(read_scored(sys.argv[1])))"
    script = f'exec "{sys.executable}" -c "{command}" <(cat "{path}")'
    ended = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == f"{len(ROWS)}\n"


def test_a_device_is_refused() -> None:
    """/dev/zero never ends, and has no line end."""
    command = f'ulimit -v 2000000; exec "{sys.executable}" -m asr.compare /dev/zero /dev/zero'
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert mentions(ended.stderr, "/dev/zero ... NAME.utterances.jsonl")


def test_a_pipe_whose_line_has_no_end_is_refused_with_little_memory(tmp_path: Path) -> None:
    path = write_scored(tmp_path / "x.jsonl", ROWS)
    command = f'ulimit -v 2000000; exec "{sys.executable}" -m asr.compare "{path}" <(cat /dev/zero)'
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    check_ended(ended, ":1: a line ... 32,000,000 characters")


def test_scoring_comparison_and_figures_do_not_import_torch() -> None:
    code = "import sys, asr.compare, asr.apps.report.side_by_side"
    code += "\nimport asr.core.evaluation.utterances, asr.core.evaluation.analysis, asr.core.evaluation.comparison"
    code += "\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_simulated_utterances_have_the_stated_error_rate() -> None:
    rows = simulated(200, seed=1)
    assert sum(row.counts.errors for row in rows) / 4000 == pytest.approx(0.1, abs=0.015)
