"""Manifests: what comes back, and what is said of a line that is none."""

import json
from pathlib import Path

import pytest

from asr.errors import InputError
from asr.manifest import Utterance, read_manifest, write_manifest

GOOD = {"audio_filepath": "a.flac", "duration": 1.5, "text": "one"}


def manifest(folder: Path, *lines: object) -> Path:
    path = folder / "m.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    utterances = [
        Utterance(str(tmp_path / "audio" / "a.flac"), 1.23456789, "grüße", "a", None, "anna"),
        Utterance(str(tmp_path / "b.wav"), 2.0, "", "b", 0.5, None),
        Utterance("/elsewhere/c.wav", 0.1, "c", "c"),
    ]
    write_manifest(tmp_path / "m.jsonl", utterances)
    assert read_manifest(tmp_path / "m.jsonl") == utterances


def test_audio_below_the_manifest_moves_with_it(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    write_manifest(tmp_path / "old" / "m.jsonl", [Utterance(str(tmp_path / "old" / "a.flac"), 1.0, "x", "a")])
    (tmp_path / "old").rename(tmp_path / "new")
    assert read_manifest(tmp_path / "new" / "m.jsonl")[0].audio_filepath == str(tmp_path / "new" / "a.flac")


def test_a_line_without_id_is_called_after_its_audio_and_offset(tmp_path: Path) -> None:
    path = manifest(tmp_path, GOOD, GOOD | {"offset": 2.5}, GOOD | {"id": 7})
    assert [utterance.id for utterance in read_manifest(path)] == ["a.flac", "a.flac@2.5", "7"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"m\.jsonl:2: each line must be one JSON object"),
        ("[1]", r"m\.jsonl:2: each line must be one JSON object; got list"),
        ({"audio_filepath": "b", "duration": 1}, r"m\.jsonl:2: must have the keys .*; missing text"),
        (GOOD | {"id": "x", "duration": -0.2}, r"m\.jsonl:2: duration must be positive; got -0\.2 \(id 'x'\)"),
        (GOOD | {"duration": "1"}, r"m\.jsonl:2: duration must be a number of seconds; got '1'"),
        (GOOD | {"duration": True}, r"m\.jsonl:2: duration must be a number of seconds; got True"),
        ('{"audio_filepath": "b", "duration": NaN, "text": ""}', r"m\.jsonl:2: duration must be a number of seconds"),
        (GOOD | {"text": None}, r"m\.jsonl:2: text must be a string; got None"),
        (GOOD | {"offset": -1}, r"m\.jsonl:2: offset must not be negative; got -1"),
        (GOOD, r"m\.jsonl:2: ids must be unique; 'a\.flac' stands already in line 1"),
    ],
)
def test_a_bad_line_is_an_error_that_names_file_and_line(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_manifest(manifest(tmp_path, GOOD, line))


def test_an_empty_or_absent_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one utterance"):
        read_manifest(manifest(tmp_path, ""))
    with pytest.raises(InputError, match="no such manifest"):
        read_manifest(tmp_path / "absent.jsonl")


def test_a_write_that_fails_leaves_the_old_manifest_and_nothing_else(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m.jsonl", [Utterance("/a", 1.0, "old", "a")])

    def broken() -> object:
        yield Utterance("/a", 1.0, "new", "a")
        raise RuntimeError("the power went")

    with pytest.raises(RuntimeError):
        write_manifest(tmp_path / "m.jsonl", broken())  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["m.jsonl"]
    assert read_manifest(tmp_path / "m.jsonl")[0].text == "old"
