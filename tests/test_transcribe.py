"""The transcribe and evaluate commands, as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.manifest import read_manifest
from asr.transcribe import main as transcribe
from tests.conftest import ROOT
from tests.test_train import trained  # noqa: F401
from tests.tones import SAMPLE_RATE, speak


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Six good files of all kinds, in a folder."""
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


def test_one_line_a_file_in_order_on_stdout(
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


def test_bad_files_are_a_line_each_and_the_others_are_transcribed(
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


def test_the_command_line_ends_cleanly(trained: Path, recordings: Path) -> None:  # noqa: F811
    command = [sys.executable, "-m", "asr.transcribe", str(trained), str(recordings / "plain.wav")]
    good = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert good.returncode == 0
    assert good.stdout.count("\n") == 1
    assert good.stderr == ""
    nowhere = subprocess.run([*command[:3], "nowhere", "x.wav"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert nowhere.returncode == 1
    assert nowhere.stderr == "error: nowhere: a model must be a run folder, a bundle or a .ckpt; it does not exist.\n"


def test_evaluate_names_what_it_could_not_read_and_scores_the_rest(
    trained: Path,  # noqa: F811
    tones: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from asr.evaluate import main as evaluate

    good = read_manifest(tones / "test.jsonl")
    lines = [{"audio_filepath": one.audio_filepath, "duration": one.duration, "text": one.text} for one in good[:3]]
    lines.append({"audio_filepath": str(tmp_path / "gone.wav"), "duration": 1.0, "text": "ab"})
    lines[0]["text"] = ""  # an empty reference: every word recognised is an insertion
    (tmp_path / "some.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    status = evaluate([str(trained), str(tmp_path / "some.jsonl"), "--output-dir", str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert status == 1
    assert "gone.wav" in captured.err
    summary = json.loads((tmp_path / "out" / "some.wer.json").read_text())
    assert summary["utterances"] == 3
    assert summary["reference_words"] == sum(len(one.text.split()) for one in good[1:3])
    assert len((tmp_path / "out" / "some.utterances.jsonl").read_text().splitlines()) == 3
