"""Manifests: reading and writing, and the errors of bad lines."""

import json
import os
from pathlib import Path

import pytest

from asr.core.data.manifest import Utterance, read_good_lines, read_manifest, write_manifest
from asr.errors import InputError, shown
from tests.refusals import check_refusal, refused

GOOD = {"audio_filepath": "a.flac", "duration": 1.5, "text": "one"}


def manifest(folder: Path, *lines: object) -> Path:
    path = folder / "m.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return path


def test_a_written_manifest_is_read_back(tmp_path: Path) -> None:
    utterances = [
        Utterance(str(tmp_path / "audio" / "a.flac"), 1.23456789, "grüße", "a", None, "anna"),
        Utterance(str(tmp_path / "b.wav"), 2.0, "", "b", 0.5, None),
        Utterance("/elsewhere/c.wav", 0.1, "c", "c"),
    ]
    write_manifest(tmp_path / "m.jsonl", utterances)
    assert read_manifest(tmp_path / "m.jsonl") == utterances


def test_audio_in_the_folder_of_a_manifest_may_be_moved_with_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    write_manifest(tmp_path / "old" / "m.jsonl", [Utterance(str(tmp_path / "old" / "a.flac"), 1.0, "x", "a")])
    (tmp_path / "old").rename(tmp_path / "new")
    assert read_manifest(tmp_path / "new" / "m.jsonl")[0].audio_filepath == str(tmp_path / "new" / "a.flac")


def test_an_utterance_without_an_id_is_named_after_its_audio_and_offset(tmp_path: Path) -> None:
    path = manifest(tmp_path, GOOD, GOOD | {"offset": 2.5}, GOOD | {"id": 7})
    assert [utterance.id for utterance in read_manifest(path)] == ["a.flac", "a.flac@2.5", "7"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "m.jsonl:2 ... line ... JSON"),
        ("[1]", "m.jsonl:2 ... line; got list"),
        ({"audio_filepath": "b", "duration": 1}, "m.jsonl:2 ... missing text"),
        (GOOD | {"id": "x", "duration": -0.2}, "m.jsonl:2 ... duration; got -0.2"),
        (GOOD | {"duration": "1"}, "m.jsonl:2 ... duration; got '1'"),
        (GOOD | {"duration": True}, "m.jsonl:2 ... duration; got True"),
        ('{"audio_filepath": "b", "duration": NaN, "text": ""}', "m.jsonl:2 ... duration"),
        (GOOD | {"text": None}, "m.jsonl:2 ... text; got None"),
        (GOOD | {"offset": -1}, "m.jsonl:2 ... offset; got -1"),
        (GOOD, "m.jsonl:2 ... ids ... 'a.flac'"),
    ],
)
def test_the_error_for_a_bad_line_names_the_file_and_the_line(tmp_path: Path, line: object, message: str) -> None:
    with refused(InputError, message):
        read_manifest(manifest(tmp_path, GOOD, line))


def test_an_empty_or_absent_manifest_is_an_error(tmp_path: Path) -> None:
    with refused(InputError, "least one utterance"):
        read_manifest(manifest(tmp_path, ""))
    with refused(InputError, "no such manifest"):
        read_manifest(tmp_path / "absent.jsonl")


def test_a_failed_write_leaves_only_the_old_manifest(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m.jsonl", [Utterance("/a", 1.0, "old", "a")])

    def broken() -> object:
        yield Utterance("/a", 1.0, "new", "a")
        raise RuntimeError("power failure")

    with pytest.raises(RuntimeError):
        write_manifest(tmp_path / "m.jsonl", broken())  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["m.jsonl"]
    assert read_manifest(tmp_path / "m.jsonl")[0].text == "old"


def test_valid_lines_are_read_and_each_invalid_line_is_named(tmp_path: Path) -> None:
    bad: list[tuple[object, str]] = [
        ("{", "JSON ... Expecting property name"),
        ("[" * 100_000, "JSON ... digits ... nesting"),
        ('{"duration": ' + "9" * 5000 + "}", "JSON ... digits"),
        ([], "JSON ... object; got list"),
        ({"audio_filepath": "a", "text": ""}, "keys ... missing duration"),
        (GOOD | {"id": "x", "duration": 10**400}, f"duration; got {shown(10**400)}"),
        (GOOD | {"id": "x", "duration": 1e300}, "duration; got 1e+300"),
        (GOOD | {"id": "x", "offset": True}, "offset; got True"),
        (GOOD | {"id": "x", "text": None}, "text; got None"),
        (GOOD | {"id": "\ud800"}, "id ... lone surrogate"),
        (GOOD | {"id": "x", "text": "\udfff"}, "text ... lone surrogate"),
        (GOOD | {"id": 1}, "ids ... '1' ... line 1"),
    ]
    path = manifest(tmp_path, GOOD | {"id": "1"}, *(line for line, _ in bad), GOOD | {"id": "2"})
    utterances, errors = read_good_lines(path)
    assert [utterance.id for utterance in utterances] == ["1", "2"]
    assert len(errors) == len(bad)
    for number, (error, (_, message)) in enumerate(zip(errors, bad, strict=True), start=2):
        check_refusal(str(error), f"{path}:{number}: ... {message}")
    with pytest.raises(InputError) as first:
        read_manifest(path)
    assert str(first.value) == str(errors[0])


def test_a_missing_text_is_read_as_empty_where_texts_are_optional(tmp_path: Path) -> None:
    silent = {key: value for key, value in GOOD.items() if key != "text"}
    path = manifest(tmp_path, silent, GOOD | {"id": "null", "text": None}, GOOD | {"id": "given"})
    utterances, errors = read_good_lines(path, required=("audio_filepath", "duration"))
    assert not errors
    assert [utterance.text for utterance in utterances] == ["", "", "one"]
    assert len(read_good_lines(path)[1]) == 2


def test_an_id_of_null_counts_as_missing(tmp_path: Path) -> None:
    utterances = read_manifest(manifest(tmp_path, GOOD | {"id": None}, GOOD | {"id": None, "offset": 3.5}))
    assert [utterance.id for utterance in utterances] == ["a.flac", "a.flac@3.5"]


def test_a_byte_order_mark_is_not_part_of_the_first_line(tmp_path: Path) -> None:
    path = manifest(tmp_path, GOOD)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n")
    assert [utterance.id for utterance in read_manifest(path)] == ["a.flac"]


def test_a_name_that_is_not_utf8_is_preserved_byte_by_byte(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_bytes(b'{"audio_filepath": "caf\xe9.wav", "duration": 1, "text": ""}')
    [utterance] = read_manifest(tmp_path / "m.jsonl")
    assert os.fsencode(utterance.audio_filepath) == os.fsencode(tmp_path) + b"/caf\xe9.wav"


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_manifest_without_lines_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "m.jsonl").write_text(content)
    with refused(InputError, "m.jsonl ... manifest"):
        read_good_lines(tmp_path / "m.jsonl")


def test_the_error_for_an_endless_line_names_the_limit_and_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.core.data.manifest.MAX_LINE_LENGTH", 1000)
    path = manifest(tmp_path, GOOD, GOOD | {"id": "2", "text": "x" * 800})
    assert len(read_manifest(path)) == 2
    path = manifest(tmp_path, GOOD, GOOD | {"id": "2", "text": "x" * 1000})
    with refused(InputError, "m.jsonl:2 ... line"):
        read_manifest(path)


def test_an_unreadable_manifest_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").symlink_to("/proc/self/mem")  # a file that cannot be read from its beginning
    with refused(InputError, "m.jsonl; got Input/output error"):
        read_good_lines(tmp_path / "m.jsonl")
    for nowhere, problem in ((tmp_path / "gone.jsonl", "no such manifest"), (tmp_path, "is a folder")):
        with refused(InputError, problem):
            read_good_lines(nowhere)
