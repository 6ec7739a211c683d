"""The transcribe and evaluate commands, as a user runs them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from asr.align import main as align
from asr.core.cli.command import progress_bar
from asr.core.data.manifest import read_manifest
from asr.core.recognition.formats import FORMATS
from asr.errors import InputError
from asr.transcribe import main as transcribe
from tests.conftest import PATIENCE, ROOT
from tests.forked import run_module
from tests.refusals import check_refusal, mentions, refused
from tests.test_train import trained  # noqa: F401
from tests.tones import GAP_SECONDS, LETTER_SECONDS, SAMPLE_RATE, speak


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Six valid files of different kinds, in a folder."""
    folder = tmp_path / "recordings"
    (folder / "deeper").mkdir(parents=True)
    sound = speak("abcd ef")
    soundfile.write(folder / "plain.wav", sound, SAMPLE_RATE)
    soundfile.write(folder / "deeper" / "stereo.flac", np.stack([sound, sound], axis=1), SAMPLE_RATE)
    soundfile.write(folder / "vorbis.ogg", sound, SAMPLE_RATE)
    soundfile.write(folder / "layer3.mp3", sound, SAMPLE_RATE)
    soundfile.write(folder / "slow.wav", sound[::2], SAMPLE_RATE // 2)
    soundfile.write(folder / "tiny.wav", sound[:100], SAMPLE_RATE)
    (folder / "notes.txt").write_text("not audio, and not asked for")
    return folder


def test_stdout_has_one_line_per_file_in_order(
    trained: Path,  # noqa: F811
    recordings: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert transcribe([str(trained), str(recordings), str(recordings / "plain.wav"), "--device", "cpu"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    names = ["deeper/stereo.flac", "layer3.mp3", "plain.wav", "slow.wav", "tiny.wav", "vorbis.ogg", "plain.wav"]
    assert [path for path, _ in lines] == [str(recordings / name) for name in names]
    text = dict(lines)
    assert text[str(recordings / "plain.wav")] == text[str(recordings / "deeper" / "stereo.flac")]
    assert text[str(recordings / "tiny.wav")] == ""


def test_where_no_progress_bar_is_shown_lines_on_stderr_report_the_progress(
    trained: Path,  # noqa: F811
    recordings: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without them, a recording of an hour is minutes of silence, in a log or on a terminal."""
    monkeypatch.setattr("asr.core.cli.command.LINE_SECONDS", -1.0)  # a line at each update
    assert run(trained, recordings) == 0
    out, err = capsys.readouterr()
    assert all("\t" in line for line in out.splitlines())
    assert re.search(r"^transcribing: \d+ s of \d+ s.* left$", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("terminals", "is_printing", "is_hidden"),
    [
        ({"stderr", "stdout"}, False, False),  # asr.evaluate, asr.export, or --output-dir, on a terminal
        ({"stderr", "stdout"}, True, True),  # a bar would break the lines of the texts
        ({"stderr"}, True, False),
        ({"stdout"}, False, True),
    ],
)
def test_a_progress_bar_is_shown_on_a_terminal_unless_texts_are_printed_there(
    terminals: set[str], is_printing: bool, is_hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stderr", "stdout"):
        monkeypatch.setattr(getattr(sys, name), "isatty", partial(terminals.__contains__, name))
    assert progress_bar(is_printing).disable == is_hidden


def test_each_bad_file_is_reported_in_one_line_and_the_others_are_transcribed(
    trained: Path,  # noqa: F811
    recordings: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "empty.wav").touch()
    (bad / "text.wav").write_text("this is not audio at all")
    soundfile.write(bad / "silent.wav", np.zeros(0), SAMPLE_RATE)
    soundfile.write(bad / "nan.wav", np.full(1600, np.nan, dtype=np.float32), SAMPLE_RATE, subtype="FLOAT")
    for kind in ("wav", "flac", "ogg", "mp3"):
        path = bad / f"half.{kind}"
        soundfile.write(path, np.tile(speak("abcdef"), 4), SAMPLE_RATE)
        os.truncate(path, path.stat().st_size // 2)
    paths = [str(bad / "missing.wav"), str(bad), str(recordings / "plain.wav")]
    assert transcribe([str(trained), *paths, "--device", "cpu"]) == 1
    captured = capsys.readouterr()
    assert [line.split("\t")[0] for line in captured.out.splitlines()] == [paths[-1]]
    names = ["missing.wav", "empty.wav", "text.wav", "silent.wav", "nan.wav"]
    for name in [*names, "half.wav", "half.flac", "half.ogg", "half.mp3"]:
        named = [line for line in captured.err.splitlines() if name in line]
        assert len(named) == 1, (name, captured.err)
        assert named[0].startswith("error: ")


def test_the_command_exits_without_a_traceback(trained: Path, recordings: Path) -> None:  # noqa: F811
    good = run_module("asr.transcribe", trained, recordings / "plain.wav")
    assert good.returncode == 0
    assert good.stdout.count("\n") == 1
    assert good.stderr == ""
    nowhere = run_module("asr.transcribe", "nowhere", "x.wav")
    assert nowhere.returncode == 1
    check_refusal(nowhere.stderr, "model ... .ckpt")


def run(*arguments: str | Path) -> int:
    return transcribe([*map(str, arguments), "--device", "cpu"])


def json_lines(captured: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in captured.splitlines()]


def line_of(path: Path, **keys: Any) -> dict[str, Any]:
    """Return a manifest line for a whole file."""
    return {"audio_filepath": str(path), "duration": soundfile.info(str(path)).duration, **keys}


def manifest(path: Path, *lines: dict[str, Any] | str | bytes) -> Path:
    """Write a manifest of possibly invalid lines."""
    encoded = [
        line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
        for line in lines
    ]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Write a valid audio file."""
    soundfile.write(tmp_path / "said.wav", speak("abcd ef"), SAMPLE_RATE)
    return tmp_path / "said.wav"


# Output.


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_goes_to_stdout_or_to_files_in_corresponding_folders(
    form: str, fluent: Path, recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, plain, suffix = fluent / "run", recordings / "plain.wav", FORMATS[form].suffix
    assert run(model, plain, "--format", form) == 0
    out = capsys.readouterr().out
    assert "abcd" in out
    assert "ef" in out
    assert run(model, recordings, "--format", form, "--output-dir", tmp_path / "out") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"{recordings / 'tiny.wav'}: no speech\n")
    names = ["deeper/stereo", "layer3", "plain", "slow", "tiny", "vorbis"]
    written = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*"))
    assert written == [name + suffix for name in names], "there is no unfinished file"
    file = (tmp_path / "out" / f"plain{suffix}").read_text()
    if form == "txt":
        assert out == f"{plain}\t{file}"
    elif form == "json":
        assert json.loads(out) == [json.loads(file)]
    else:
        assert out == file
    assert FORMATS[form].single == (form in ("srt", "vtt", "textgrid"))


def test_json_has_words_with_times_and_confidence_and_the_keys_of_the_manifest_line(
    fluent: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fluent / "run", recording, "--format", "jsonl") == 0
    [line] = json_lines(capsys.readouterr().out)
    assert (line["id"], line["text"]) == (str(recording), "abcd ef")
    assert [word["text"] for word in line["words"]] == ["abcd", "ef"]
    (first, second) = line["words"]
    assert 0 <= first["start"] < first["end"] <= second["start"] < second["end"] <= line["duration"]
    assert all(0 <= word["confidence"] <= 1 for word in line["words"])
    mean = (first["confidence"] + second["confidence"]) / 2
    assert line["confidence"] == pytest.approx(mean, abs=1e-4)  # both are rounded to four digits
    assert line["alternatives"] == [{"text": "abcd ef", "score": line["score"]}]


def test_alternatives_are_sorted_and_the_first_is_the_text(
    fluent: Path, recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fluent / "run", recordings, "--format", "jsonl", "--nbest", "5", "--beam", "8") == 0
    for line in json_lines(capsys.readouterr().out):
        texts = [alternative["text"] for alternative in line["alternatives"]]
        scores = [alternative["score"] for alternative in line["alternatives"]]
        assert texts[0] == line["text"]
        assert scores == sorted(scores, reverse=True)
        assert len(set(texts)) == len(texts) <= 5
        if line["text"]:
            assert len(texts) > 1


def test_lower_precision_gives_nearly_equal_texts(
    fluent: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = []
    for precision in ("float32", "bfloat16"):
        assert run(fluent / "run", recording, "--format", "jsonl", "--precision", precision) == 0
        [line] = json_lines(capsys.readouterr().out)
        assert line["text"] == "abcd ef"
        scores.append(line["score"])
    assert scores[0] == pytest.approx(scores[1], abs=0.5)
    assert scores[0] != scores[1], "otherwise bfloat16 was not used"


def test_ctm_is_sorted_by_name_as_sclite_requires(
    fluent: Path, recording: Path, recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(fluent / "run", recording, recordings / "plain.wav", "--format", "ctm") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["plain", "plain", "said", "said"]


def test_several_formats_are_written_into_one_folder(fluent: Path, recordings: Path, tmp_path: Path) -> None:
    for form in ("txt", "srt", "json"):
        assert run(fluent / "run", recordings, "--format", form, "--output-dir", tmp_path / "each") == 0
    several = ["--format", "txt", "--format", "srt", "--format", "txt", "--format", "json"]
    assert run(fluent / "run", recordings, *several, "--output-dir", tmp_path / "all") == 0
    each, together = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
        for name in ("each", "all")
    )
    assert len(each) == 18
    assert together == each


def test_no_format_replaces_an_input(fluent: Path, recording: Path, tmp_path: Path) -> None:
    list_of = manifest(tmp_path / "said.json", line_of(recording, id="said"))
    content = list_of.read_bytes()
    with refused(InputError, "--output-dir ... said.json"):
        run(fluent / "run", list_of, "--format", "txt", "--format", "json", "--output-dir", tmp_path)
    assert list_of.read_bytes() == content


@pytest.mark.parametrize("more", [[], ["--parts", "--output-dir", "out"], ["--stream"]])
def test_several_formats_need_a_folder(more: list[str], recording: Path) -> None:
    with refused(InputError, "--format"):
        run("no-model", recording, "--format", "txt", "--format", "srt", *more)
    with refused(InputError, "--format; got jsonl, json ... --output-dir"):
        align(["no-model", str(recording), "--format", "jsonl", "--format", "json"])


@pytest.mark.parametrize("form", ["srt", "vtt", "textgrid"])
def test_a_format_for_one_recording_is_refused_for_several_on_stdout(form: str, fluent: Path, recordings: Path) -> None:
    with refused(InputError, f"--format {form} ... --output-dir; got 6 rec"):
        run(fluent / "run", recordings, "--format", form)


def test_two_recordings_with_the_same_output_file_or_name_are_both_named(
    fluent: Path, recording: Path, recordings: Path, tmp_path: Path
) -> None:
    (recordings / "said.flac").write_bytes((recordings / "deeper" / "stereo.flac").read_bytes())
    out = tmp_path / "out"
    with refused(InputError, f"'{recording}' ... '{recordings}/said.flac'"):
        run(fluent / "run", recording, recordings / "said.flac", "--output-dir", out)
    first_manifest, other = (manifest(tmp_path / f"{name}.jsonl", line_of(recording, id="1")) for name in "ab")
    with refused(InputError, "recordings called ... '1'"):
        run(fluent / "run", first_manifest, other, "--output-dir", out)
    alike = manifest(tmp_path / "c.jsonl", line_of(recording, id="a/b"), line_of(recording, id="a_b"))
    with refused(InputError, "'a/b' ... 'a_b'"):
        run(fluent / "run", alike, "--output-dir", out)
    with refused(InputError, "same name"):
        run(fluent / "run", recording, recordings / "said.flac", "--format", "ctm")
    assert not any(out.iterdir())


# Manifests.


def test_a_manifest_is_transcribed_in_order_including_segments(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = LETTER_SECONDS + GAP_SECONDS
    soundfile.write(tmp_path / "two.flac", speak("abcd ef dbcd ef"), SAMPLE_RATE)
    segment = {"audio_filepath": "two.flac", "offset": 8 * step, "duration": 7 * step}
    path = manifest(tmp_path / "m.jsonl", segment, line_of(tmp_path / "two.flac", id="all", text=None), "")
    assert run(fluent / "run", path) == 0
    assert capsys.readouterr().out == f"two.flac@{8 * step}\tdbcd ef\nall\tabcd ef dbcd ef\n"


def test_an_id_that_is_in_two_manifests_stands_for_two_recordings(
    fluent: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "other.wav", speak("fe dcba"), SAMPLE_RATE)
    first_manifest = manifest(tmp_path / "one.jsonl", line_of(recording, id="1"))
    other = manifest(tmp_path / "other.json", line_of(tmp_path / "other.wav", id=1))
    assert run(fluent / "run", first_manifest, other, first_manifest) == 0
    assert capsys.readouterr().out == "1\tabcd ef\n1\tfe dcba\n1\tabcd ef\n"


STRANGE_IDS = ["a/b", "../../up", "..", "", "nul\0", "line\nbreak", "漢字", "é" * 200, "x" * 300, "x" * 299 + "y"]


def test_the_output_file_for_any_id_is_in_the_output_folder(
    fluent: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The empty id is tested below, because its output must not be written to the parent folder.
    ids = [utterance_id for utterance_id in STRANGE_IDS if utterance_id != ""]
    path = manifest(tmp_path / "m.jsonl", *(line_of(recording, id=utterance_id) for utterance_id in ids))
    out = tmp_path / "deeper" / "out"
    assert run(fluent / "run", path, "--output-dir", out, "--format", "json") == 0
    assert sorted(os.listdir(out.parent)) == ["out"]
    files = list(out.iterdir())
    assert {json.loads(file.read_text())["id"] for file in files} == set(ids)
    assert all(len(os.fsencode(file.name)) <= 255 for file in files)
    names = {file.name for file in files}
    assert {"a_b.json", "__.._up.json", "_.json", "nul_.json", "line_break.json", "漢字.json"} <= names
    assert run(fluent / "run", manifest(path, line_of(recording, id="")), "--output-dir", tmp_path / "empty") == 0
    assert os.listdir(tmp_path / "empty") == ["_.txt"]


@pytest.mark.parametrize(
    "name", [b"caf\xe9.wav", b"x" * 251 + b".wav", "é".encode() * 125 + b".wav", b"line\nbreak.wav"]
)
def test_a_recording_with_any_file_name_is_transcribed(
    fluent: Path, recording: Path, tmp_path: Path, name: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = Path(os.fsdecode(bytes(folder) + b"/" + name))
    path.write_bytes(recording.read_bytes())
    assert run(fluent / "run", folder) == 0
    assert capfdbinary.readouterr().out == bytes(path) + b"\tabcd ef\n"
    assert run(fluent / "run", folder, "--output-dir", tmp_path / "out") == 0
    [written] = (tmp_path / "out").iterdir()
    assert bytes(written.name, "utf-8", "surrogateescape")[:60] == name[:60].removesuffix(b".wav") + (
        b".txt" if len(name) < 60 else b""
    )
    assert written.read_text() == "abcd ef\n"


# Each bad recording is reported in one line, and the others are transcribed.


def test_each_of_ten_kinds_of_bad_audio_and_bad_lines_is_reported_in_one_line(
    fluent: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "empty.wav").touch()
    (bad / "text.wav").write_text("this is not audio at all")
    (bad / "none.wav").symlink_to("nowhere")
    os.mkfifo(bad / "pipe.wav")
    (bad / "folder.wav").mkdir()
    soundfile.write(bad / "silent.wav", np.zeros(0), SAMPLE_RATE)
    soundfile.write(bad / "nan.wav", np.full(1600, np.nan, dtype=np.float32), SAMPLE_RATE, subtype="FLOAT")
    soundfile.write(bad / "half.flac", np.tile(speak("abcdef"), 4), SAMPLE_RATE)
    os.truncate(bad / "half.flac", (bad / "half.flac").stat().st_size // 2)
    (bad / "line\nbreak.wav").write_text("no")
    (bad / "header.wav").write_bytes(recording.read_bytes()[:20])
    (tmp_path / "hollow").mkdir()
    good = line_of(recording)
    lines: dict[str, dict[str, Any] | str | bytes] = {
        "1": "{", "2": "[]", "3": b"\xff\xfe{", "4": {"duration": 1.0}, "5": good | {"duration": 0},
        "6": good | {"duration": "long"}, "7": good | {"offset": -1}, "8": good | {"audio_filepath": 3},
        "9": good | {"id": "twice"}, "10": good | {"id": "twice"}, "11": "[" * 100_000,
        "12": good | {"id": "too short", "duration": 99}, "13": good | {"id": "beyond", "offset": 50},
        "14": good | {"id": "gone", "audio_filepath": "gone.wav"},
        "15": good | {"id": "a folder", "audio_filepath": "."},
        "16": good | {"id": "null byte", "audio_filepath": "a\0b"}, "17": good | {"id": "huge", "duration": 1e300},
        "18": good | {"id": "in\ntwo", "offset": 50},
    }  # fmt: skip
    path = manifest(tmp_path / "m.jsonl", *lines.values())
    files = sorted(file for file in bad.iterdir() if file.name != "folder.wav")
    arguments = [bad / "folder.wav", *files, tmp_path / "hollow", tmp_path / "no.wav", tmp_path / "no.jsonl"]
    assert run(fluent / "run", *arguments, path, recording) == 1
    captured = capsys.readouterr()
    assert captured.out == f"twice\tabcd ef\n{recording}\tabcd ef\n"
    *errors, summary = captured.err.splitlines()
    wrong = [line for line in lines if line != "9"]
    problems = len(wrong) + len(arguments)
    assert summary == f"error: {problems} of {problems + 2} recordings were not transcribed; see the errors above."
    assert len(errors) == problems
    assert all(line.startswith("error: ") for line in errors)
    read_later = {
        "12": "too short",
        "13": "beyond: ",
        "14": f"{tmp_path}/gone.wav",
        "15": "a folder: ",
        "16": "null byte: ",
        "18": "in\\ntwo: ",
    }
    names = [read_later.get(number, f"{path}:{number}: ") for number in wrong]
    for name in [*names, *(str(argument).replace("\n", "\\n") for argument in arguments)]:
        assert len([line for line in errors if name in line]) == 1, (name, captured.err)


def test_a_short_id_is_not_taken_for_a_file_name(
    fluent: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifest(tmp_path / "m.jsonl", line_of(recording, id="a", offset=9.0))
    assert run(fluent / "run", path) == 1
    assert capsys.readouterr().err.startswith(f"error: a: {recording}: the segment from 9.000 s")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam", "0"], "--beam; got 0"),
        (["--chunk", "-1"], "--chunk; got -1.0"),
        (["--chunk", "nan"], "--chunk; got nan"),
        (
            ["--context", "20", "--chunk", "30"],
            "--context ... --chunk; got 20",
        ),
        (["--context", "-1"], "--context ... be at least"),
        (["--batch-seconds", "0"], "--batch-seconds; got 0.0"),
        (["--nbest", "0"], "--nbest; got 0"),
        (
            ["--nbest", "3", "--beam", "8"],
            "--nbest ... --format",
        ),
        (
            ["--nbest", "3", "--format", "json"],
            "--nbest ... 3 ... --beam",
        ),
        (["--num-workers", "-1"], "--num-workers; got -1"),
        (
            ["--device", "nonsense"],
            "--device ... 'nonsense'",
        ),
        pytest.param(
            ["--device", "mps"],
            "--device ... 'mps'",
            marks=pytest.mark.skipif(torch.backends.mps.is_available(), reason="Apple's device is available here"),
        ),
        (["--device", "meta"], "--device; got 'meta':"),
        (["--device", "cuda:99"], "--device; got 'cuda:99':"),
        (
            ["--lm", "gone.arpa"],
            "gone.arpa ... file or directory",
        ),
        (["--lm", "GARBAGE"], "KenLM ... ARPA"),
        (["--lm", ""], "--lm; got ''"),
        (
            ["--decode", "greedy", "--lm", "x"],
            "--decode ... --lm",
        ),
        (["--lm-weight", "1"], "--lm-weight ... --lm"),
        (["--lm-unit", "token"], "--lm-unit ... --lm"),
        (["--lexicon", "EMPTY"], "lexicon ... it has none"),
        (
            ["--lexicon", "GARBAGE"],
            "lexicon ... ARPA",
        ),
        (["--hotwords", "EMPTY"], "hotwords ... file has none"),
        (
            ["--hotwords", "gone"],
            "hotwords ... file or directory",
        ),
        (["--output-dir", "EMPTY"], "--output-dir ... File exists"),
        (["--output-dir", "EMPTY/x"], "--output-dir ... Not a directory"),
    ],
)
def test_an_invalid_option_is_reported_in_one_line(
    fluent: Path, recording: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "garbage").write_bytes(b"\xe9\x00\xff" * 100)
    names = {"EMPTY": str(tmp_path / "empty"), "GARBAGE": str(tmp_path / "garbage"), "EMPTY/x": f"{tmp_path}/empty/x"}
    with refused(InputError, message):
        transcribe([str(fluent / "run"), str(recording), *(names.get(option, option) for option in options)])


@pytest.mark.parametrize(
    "options",
    [
        ["--lm-weight", "nan"],
        ["--word-insertion-bonus", "inf"],
        ["--beam", "x"],
        ["--format", "doc"],
        ["--precision", "int8"],
    ],
)
def test_an_error_of_argparse_has_status_2(
    fluent: Path, recording: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(fluent / "run", recording, *options)
    assert ended.value.code == 2
    assert mentions(capsys.readouterr().err, f"argument {options[0]}: invalid")


def test_a_misspelt_option_is_one_line_that_names_the_similar_option(capsys: pytest.CaptureFixture[str]) -> None:
    for options, hint in (
        (["--fromat", "srt"], "Did you mean --format?"),
        (["--nonsense"], "python -m asr.transcribe --help lists the options."),
    ):
        with pytest.raises(SystemExit) as ended:
            run("model", "recording.wav", *options)
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"error: unrecognized arguments: {' '.join(options)}. {hint}\n"


def test_without_kenlm_the_error_for_a_language_model_says_what_to_install(
    fluent: Path, recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with refused(InputError, "camel-kenlm ... pip install -e '.[lm]'"):
        run(fluent / "run", recording, "--lm", "x.arpa")
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert offered["lm"][0].startswith("camel-kenlm")


def test_hotwords_that_cannot_be_used_are_named_and_used_ones_counted(
    fluent: Path, recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "names").write_text("ABCD ef\nabcd\n\ndead\nxyz\n!!\nabcd\n")
    assert run(fluent / "run", recording, recording, "--hotwords", tmp_path / "names") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{recording}\tabcd ef\n" * 2
    first, *impossible, last = captured.err.splitlines()
    assert first == "hotwords: 3 of 5 phrases are in use"
    assert [line.split(": ")[1] for line in impossible] == ["'xyz' cannot be recognised", "'!!' cannot be recognised"]
    assert "'x' is not in the training text" in impossible[0]
    assert "nothing is left of it" in impossible[1]
    assert last == "hotwords: recognised abcd ef 2, abcd 2"


# Where output is written.


def test_a_full_disk_is_reported_in_one_line_and_leaves_complete_files(
    fluent: Path, recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asr.base.system import files

    synced = os.fsync
    count = 0

    def full(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count > 4:  # each output needs two calls: for the file, and for its folder
            raise OSError(28, "No space left on device")
        synced(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with refused(InputError, ".txt ... of a transcript"):
        run(fluent / "run", recordings, "--output-dir", tmp_path / "out")
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(written) == 2
    assert all(path.suffix == ".txt" and path.read_text().endswith("\n") for path in written)


def test_a_read_only_folder_is_reported_in_one_line_before_any_work_begins(
    fluent: Path, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root, who may run these tests, can write everywhere
    with refused(InputError, "--output-dir ... Permission denied"):
        run(fluent / "run", recording, "--output-dir", tmp_path / "out")


def test_an_absent_recording_or_index_is_reported_once_and_leaves_no_folder(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gone", "gone.wav", "gone.jsonl", "gone.arrow"):
        assert transcribe([str(fluent / "run"), str(tmp_path / name), "--output-dir", str(tmp_path / "out")]) == 1
        [line, _] = capsys.readouterr().err.splitlines()
        assert line.count(name) == 1
        assert line.lower().count("no such") == 1
    assert not (tmp_path / "out").exists()


def process(*arguments: str | Path, **how: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "asr.transcribe", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    # If these tests run as a shell's background job, Ctrl-C is ignored, and children inherit this.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stderr=subprocess.PIPE, preexec_fn=heed, **how
    )


def without_progress(stderr: str) -> list[str]:
    """Return the lines without those that a slow machine gets every ten seconds."""
    return [line for line in stderr.splitlines() if not line.startswith("transcribing")]


def test_an_interruption_leaves_complete_files_and_is_reported(fluent: Path, recording: Path, tmp_path: Path) -> None:
    lines = [line_of(recording, id=f"{number:05}") for number in range(20_000)]
    out = tmp_path / "out"
    running = process(fluent / "run", manifest(tmp_path / "m.jsonl", *lines), "--output-dir", out)
    end = time.monotonic() + PATIENCE
    while not (out.is_dir() and len(os.listdir(out)) > 3):
        assert running.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    reported = without_progress(running.communicate(timeout=PATIENCE)[1])
    assert (running.returncode, reported) == (130, ["interrupted"])
    assert {path.read_text() for path in out.glob("*.txt")} == {"abcd ef\n"}
    assert not [path for path in out.iterdir() if path.suffix != ".txt"]


def test_a_closed_output_pipe_is_not_an_error_and_a_full_disk_is_reported_in_one_line(
    fluent: Path, recording: Path, tmp_path: Path
) -> None:
    path = manifest(tmp_path / "m.jsonl", *(line_of(recording, id=str(number)) for number in range(600)))
    closed = process(fluent / "run", path, stdout=subprocess.PIPE)
    with open("/dev/full", "w") as disk:
        full = process(fluent / "run", path, stdout=disk)
    assert closed.stdout is not None
    assert closed.stdout.readline() == "0\tabcd ef\n"
    closed.stdout.close()
    assert closed.stderr is not None
    assert without_progress(closed.stderr.read()) == []
    assert closed.wait(PATIENCE) == 1
    [error] = without_progress(full.communicate(timeout=PATIENCE)[1])
    check_refusal(error, "error: the disk ... No space left")
    assert full.returncode == 1


def test_evaluate_names_unreadable_utterances_and_scores_the_rest(
    trained: Path,  # noqa: F811
    tones: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from asr.evaluate import main as evaluate

    good = read_manifest(tones / "test.jsonl")
    lines = [
        {"audio_filepath": utterance.audio_filepath, "duration": utterance.duration, "text": utterance.text}
        for utterance in good[:3]
    ]
    lines.append({"audio_filepath": str(tmp_path / "gone.wav"), "duration": 1.0, "text": "ab"})
    lines[0]["text"] = ""  # an empty reference: every word recognised is an insertion
    (tmp_path / "some.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    status = evaluate([str(trained), str(tmp_path / "some.jsonl"), "--output-dir", str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert status == 1
    assert "gone.wav" in captured.err
    summary = json.loads((tmp_path / "out" / "some.wer.json").read_text())
    assert summary["utterances"] == 3
    assert summary["reference_words"] == sum(len(utterance.text.split()) for utterance in good[1:3])
    assert len((tmp_path / "out" / "some.utterances.jsonl").read_text().splitlines()) == 3
