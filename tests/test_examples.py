"""The programs of examples/ run as their first lines say, on recordings of tones."""

import json
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from tests.conftest import ROOT
from tests.serving import Server, serving

EXAMPLES = ROOT / "examples"
FLAG = "--experimental-websocket"


def run(*command: object, given: bytes = b"", fails: bool = False) -> str:
    """Run a program with bytes on a pipe as its standard input; return its output, or its errors if it must fail."""
    ended = subprocess.run(list(map(str, command)), input=given, capture_output=True, cwd=ROOT, check=False)
    assert (ended.returncode != 0) is fails, ended.stderr.decode()
    return (ended.stderr if fails else ended.stdout).decode()


def python(name: str, *arguments: object, given: bytes = b"", fails: bool = False) -> str:
    return run(sys.executable, EXAMPLES / name, *arguments, given=given, fails=fails)


@pytest.fixture(scope="module")
def said(fluent: Path) -> Utterance:
    """An utterance of several words."""
    return next(each for each in read_manifest(fluent / "test.jsonl") if len(each.text.split()) == 4)


@pytest.fixture(scope="module")
def wav(said: Utterance, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The utterance as a WAV file of 16-bit samples."""
    path = tmp_path_factory.mktemp("wav") / "said.wav"
    soundfile.write(path, *soundfile.read(said.audio_filepath, dtype="int16"))
    return path


@pytest.fixture(scope="module")
def server(fluent: Path) -> Iterator[Server]:
    with serving(fluent / "run") as running:
        yield running


def words(lines: str) -> str:
    """Return the words of lines that begin with a time; times must not decrease."""
    seconds, texts = zip(*(line.split(" ", 1) for line in lines.splitlines()), strict=True)
    assert sorted(map(float, seconds)) == [*map(float, seconds)]
    return " ".join(texts)


def test_captions_show_the_words_of_a_recorder_that_does_not_know_the_length(
    fluent: Path, said: Utterance, wav: Path
) -> None:
    recorded = bytearray(wav.read_bytes())
    recorded[4:8] = recorded[40:44] = struct.pack("<I", 2**32 - 1)  # as ffmpeg writes it into a pipe
    shown = python("captions.py", fluent / "run", given=recorded)
    final, provisional = (re.findall(rf"\033\[K([^\r\n]+){end}", shown) for end in ("\n", "\r"))
    assert words("\n".join(final)) == said.text
    assert " ".join(said.text.split()[:2]) in provisional


def test_captions_name_the_format_to_record(fluent: Path, said: Utterance, wav: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "slow.wav", soundfile.read(wav)[0], 8000, subtype="PCM_16")
    assert "16000 Hz" in python("captions.py", fluent / "run", given=(tmp_path / "slow.wav").read_bytes(), fails=True)


def test_a_client_prints_the_texts_of_recordings(server: Server, said: Utterance, wav: Path) -> None:
    printed = python("rest_client.py", server.address, wav, said.audio_filepath).splitlines()
    texts = [line for line in printed if not line.startswith("  ")]
    assert texts == [f"{wav}: {said.text}", f"{said.audio_filepath}: {said.text}"]


def test_a_client_lists_the_words_of_low_confidence(server: Server, wav: Path, tmp_path: Path) -> None:
    """The tones of the recording are lower than those that the model knows."""
    path = tmp_path / "lower.wav"
    soundfile.write(path, soundfile.read(wav)[0], 14000, subtype="PCM_16")
    answer = server.post(path.read_bytes()).json()["words"]
    doubtful = [word["text"] for word in answer if word["confidence"] < 0.5]
    listed = [line for line in python("rest_client.py", server.address, path).splitlines() if line.startswith("  ")]
    assert 0 < len(doubtful) < len(answer)
    assert [re.split(r"[ :]+", line)[3] for line in listed] == doubtful


def test_a_client_names_a_recording_that_the_server_refuses(server: Server, tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("no audio")
    assert str(tmp_path / "text.wav") in python("rest_client.py", server.address, tmp_path / "text.wav", fails=True)


@pytest.fixture(scope="module")
def node() -> str:
    """Node with a WebSocket of its own."""
    node = shutil.which("node")
    if node is None or subprocess.run([node, FLAG, "-e", "WebSocket"], capture_output=True, check=False).returncode:
        pytest.skip("needs Node 20.10 or later")
    return node


def test_javascript_gets_the_words_of_a_stream(node: str, server: Server, said: Utterance, wav: Path) -> None:
    samples = soundfile.read(wav, dtype="int16")[0].tobytes()
    stream = [node, FLAG, EXAMPLES / "stream.mjs", f"ws://127.0.0.1:{server.port}/stream"]
    assert words(run(*stream, 16000, given=samples)) == said.text
    assert "sample_rate" in run(*stream, "fast", given=samples, fails=True)


def test_a_batch_job_resumes_where_it_was_stopped_and_reports_bad_files(fluent: Path, tmp_path: Path) -> None:
    utterances = read_manifest(fluent / "test.jsonl")[:20]
    folder, output = tmp_path / "audio", tmp_path / "texts.jsonl"
    folder.mkdir()
    for utterance in utterances:
        shutil.copy(utterance.audio_filepath, folder)
    (folder / "bad.flac").write_text("no audio")
    job = ["batch_job.py", fluent / "run", folder, "*.flac", output]
    assert python(*job).splitlines() == ["21 recordings left", "5 recordings left"]
    whole = output.read_text().splitlines()
    lines = {Path(line["audio_filepath"]).name: line for line in map(json.loads, whole)}
    assert "bad.flac" in lines.pop("bad.flac")["error"]
    assert {name: line["text"] for name, line in lines.items()} == {
        Path(utterance.audio_filepath).name: utterance.text for utterance in utterances
    }
    for line in lines.values():
        ends = [word["end"] for word in line["words"]]
        assert ends == sorted(ends)
        assert ends[-1] <= line["duration"]
        assert 0 < line["confidence"] <= 1
    output.write_text("\n".join(whole[:7]) + "\n" + whole[7][:30])  # stopped while the eighth line was written
    assert python(*job).splitlines() == ["14 recordings left"]
    assert output.read_text().splitlines() == whole


def test_a_fine_tuned_model_is_used_if_it_is_better(fluent: Path, tmp_path: Path) -> None:
    """The texts have two letters exchanged, which the model has to learn."""
    exchanged = [
        Utterance(each.audio_filepath, each.duration, each.text.translate(str.maketrans("ab", "ba")), each.id)
        for each in read_manifest(fluent / "train.jsonl")
    ]
    write_manifest(tmp_path / "mine.jsonl", exchanged)
    settings = ["--set", "optimizer.lr=5e-3", "trainer.max_epochs=-1", "trainer.max_steps=60", "data.batch_seconds=20"]
    printed = python("fine_tune.py", fluent / "run", tmp_path / "mine.jsonl", tmp_path / "run", *settings)
    *_, verdict, text = printed.splitlines()
    assert verdict.endswith(f"the model to use is {tmp_path / 'run'}"), verdict
    first = read_manifest(tmp_path / "run" / "data" / "test.jsonl")[0]
    assert text == first.text


def test_the_guide_lists_every_example_which_begins_with_its_command() -> None:
    guide = (ROOT / "docs" / "guide" / "examples.md").read_text()
    for path in sorted(EXAMPLES.iterdir()):
        if path.suffix in {".py", ".mjs"}:
            assert f"(../../examples/{path.name})" in guide
            assert f"examples/{path.name} " in path.read_text().partition("\n\n\n")[0]
