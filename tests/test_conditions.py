"""asr.evaluate --noise and --reverb: WER in noise and in rooms, and words recognised in audio without speech."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from asr.apps.report.robustness import Changed, in_noise, in_simulated_rooms
from asr.core.data.dataset import load_utterance
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.data.recordings import RecordingList
from asr.core.recognition.inference import INFERENCE
from asr.evaluate import main as evaluate
from tests.refusals import refused

SAMPLE_RATE = 16000


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noise")
    random = np.random.default_rng(0)
    for number in range(3):
        soundfile.write(folder / f"{number}.flac", random.uniform(-0.3, 0.3, 3 * SAMPLE_RATE), SAMPLE_RATE)
    return folder


@pytest.mark.apps
def test_clean_audio_and_each_condition_have_a_row_that_depends_only_on_the_seed(
    fluent: Path, noise: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few.jsonl"
    write_manifest(few, read_manifest(fluent / "test.jsonl")[:12])
    rows = {}
    for name, more in (("a", []), ("b", ["--num-workers", "1"]), ("c", ["--noise-seed", "1"])):
        options = ["--noise", str(noise), "--snr", "30", "-10", "--reverb", "0.3", "--device", "cpu"]
        page = ["--report", str(tmp_path / name / "report.html")]
        assert (
            evaluate([str(fluent / "run"), str(few), *options, "--output-dir", str(tmp_path / name), *page, *more]) == 0
        )
        rows[name] = json.loads((tmp_path / name / "few.wer.json").read_text())
    assert rows["a"]["conditions"] == rows["b"]["conditions"]
    assert rows["a"]["conditions"] != rows["c"]["conditions"]
    assert [rows[name]["noise_seed"] for name in "abc"] == [0, 0, 1]
    conditions = {row["condition"]: row for row in rows["a"]["conditions"]}
    assert [(name, row["snr_db"]) for name, row in conditions.items()] == [
        ("noise, 30 dB", 30),
        ("noise, -10 dB", -10),
        ("rooms, 0.3 s", None),
    ]
    assert rows["a"]["wer"] <= conditions["noise, 30 dB"]["wer"] + 0.1 < 0.3
    assert conditions["noise, -10 dB"]["wer"] > 0.5
    assert conditions["noise, -10 dB"]["wer_interval"] is not None
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("few")][:5]
    assert [name in line for name, line in zip(["12", "clean", *conditions], lines, strict=True)] == [True] * 5
    html = (tmp_path / "a" / "report.html").read_text()
    assert "few in noise" in html
    assert "few in rooms" in html


def test_an_utterance_gets_the_same_noise_at_every_ratio_and_on_every_load(noise: Path, fluent: Path) -> None:
    utterance = read_manifest(fluent / "test.jsonl")[0]
    clean = load_utterance(utterance, SAMPLE_RATE)
    noises = [
        Changed(condition.change, 5)(utterance, SAMPLE_RATE) - clean
        for condition in in_noise(RecordingList(noise, "--noise"), [20, 0], SAMPLE_RATE)
    ]
    assert torch.allclose(noises[1], 10 * noises[0], atol=1e-5), "20 dB are a factor of 10 in amplitude"
    room = Changed(in_simulated_rooms(0.3, SAMPLE_RATE).change, 5)
    assert torch.equal(room(utterance, SAMPLE_RATE), room(utterance, SAMPLE_RATE))


def test_a_long_recording_is_degraded_as_a_whole(fluent: Path, noise: Path, tmp_path: Path) -> None:
    """Degrading a recording while it is read in chunks gives the same text as degrading the whole waveform first."""
    from dataclasses import replace

    from asr.core.checkpoint.load import load_recognizer
    from asr.core.recognition.chunks import ChunkBounds

    recognizer = load_recognizer(fluent / "run")
    utterance = read_manifest(fluent / "test.jsonl")[0]
    [condition] = in_noise(RecordingList(noise, "--noise"), [10], SAMPLE_RATE)
    changed = Changed(condition.change, 0)
    options = replace(INFERENCE, chunks=ChunkBounds(1.0, 0.25), load=changed)
    [(_, transcript)] = recognizer.recognize([utterance], options)  # type: ignore[misc]
    [expected] = recognizer.transcribe(
        [changed(utterance, SAMPLE_RATE)], replace(options, load=None), sample_rate=SAMPLE_RATE
    )
    assert utterance.duration > 1.0
    assert transcript.text == expected.text


def test_words_recognised_in_audio_without_speech_are_counted_per_hour(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    utterances = read_manifest(fluent / "test.jsonl")[:3]
    nothing = [Utterance(each.audio_filepath, each.duration, "", each.id) for each in utterances]
    write_manifest(tmp_path / "nothing.jsonl", nothing)
    write_manifest(tmp_path / "said.jsonl", utterances)
    manifests = [str(tmp_path / "nothing.jsonl"), str(tmp_path / "said.jsonl")]
    assert evaluate([str(fluent / "run"), *manifests, "--output-dir", str(tmp_path), "--device", "cpu"]) == 0
    rows = {name: json.loads((tmp_path / f"{name}.wer.json").read_text()) for name in ("nothing", "said")}
    assert rows["said"]["wordless"] is None
    words = sum(len(each.text.split()) for each in utterances)
    seconds = sum(each.duration for each in utterances)
    assert rows["nothing"]["wordless"] == {
        "utterances": 3,
        "seconds": pytest.approx(seconds),
        "words": words,
        "words_an_hour": pytest.approx(3600 * words / seconds),
    }, "the model recognises the tones without errors"
    expected = f"Recognised in utterances with an empty reference: nothing {words} words in {seconds:.0f} s,"
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--snr", "10"], "--snr ... --noise"),
        (["--noise-seed", "1"], "--noise-seed ... --noise"),
        (["--noise", "nowhere"], "--noise ... nowhere"),
        (["--noise", ".", "--snr", "200"], "--snr; got 200.0"),
        (["--reverb", "60"], "--reverb; got 60.0"),
        (["--reverb", "nowhere"], "--reverb ... nowhere"),
    ],
)
def test_invalid_options_are_reported_in_one_line(options: list[str], message: str, fluent: Path) -> None:
    from asr.errors import InputError

    with refused(InputError, message):
        evaluate([str(fluent / "run"), str(fluent / "test.jsonl"), *options, "--device", "cpu"])
