"""The benchmarks of features and of loading: the timed operations are comparable, and the printed figures are right."""

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from benchmarks import features, loading
from benchmarks.features import KALDI, OURS, make_waveforms
from benchmarks.loaders import Alone, Corpus, Ours, Torchaudio
from tests.forked import run_module
from tests.tones import SAMPLE_RATE


@pytest.fixture(autouse=True)
def _threads_as_before() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def rows(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["rows"]


@pytest.mark.slow
def test_the_benchmark_of_features_has_rows_for_one_process_and_for_several_processes(tmp_path: Path) -> None:
    options = ["--seconds", "0.5", "--turns", "1", "--workers", "1", "2", "--worker-seconds", "0.05"]
    # In a process of its own, because SpeechBrain's lazy modules break hypothesis.
    done = run_module("benchmarks.features", *options, "--output-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    alone = {row["contender"]: row for row in rows(tmp_path / "features.json")}
    assert alone[KALDI]["x torchaudio"] == 1.0
    assert alone[OURS]["x torchaudio"] == pytest.approx(alone[KALDI]["CPU ms"] / alone[OURS]["CPU ms"])
    assert all(row["max difference"] < 5e-3 for name, row in alone.items() if name in features.KALDI_COMPATIBLE)
    together = [(row["contender"], row["workers"]) for row in rows(tmp_path / "features_workers.json")]
    assert together == [(OURS, "1"), (OURS, "2"), (KALDI, "1"), (KALDI, "2")]


def test_all_timed_utterances_have_different_lengths() -> None:
    lengths = [len(waveform) for waveform in make_waveforms(2.0)]
    assert len(set(lengths)) == len(lengths)
    assert sum(lengths) == pytest.approx(2.0 * SAMPLE_RATE * len(lengths), rel=1e-4)


@pytest.fixture
def corpus(tones: Path) -> Any:
    with loading.corpus_of([str(tones / "train.jsonl")], 12, 5.0) as drawn:
        yield drawn


def test_all_loaders_deliver_the_same_audio(corpus: Corpus) -> None:
    frames = sum(Alone(corpus))
    assert sum(Ours(corpus, [])) == frames
    assert sum(Torchaudio(corpus, augmented=False)) == frames
    assert sum(Ours(corpus, ["spec_augment"])) == frames
    assert sum(Ours(corpus, ["speed_perturb"])) != frames


def test_a_simulated_trainer_takes_as_long_for_each_batch_as_its_rate_requires(corpus: Corpus) -> None:
    audio_seconds = sum(Alone(corpus)) / loading.FRAMES_PER_SECOND
    waits = loading.replay(corpus, 1, rate=2 * audio_seconds)
    assert waits.audio_seconds == pytest.approx(audio_seconds, rel=0.11)  # speed factors 0.9 to 1.1 change the duration
    assert waits.elapsed >= waits.audio_seconds / (2 * audio_seconds)
    assert waits.between < waits.elapsed
    assert waits.first > 0
    assert waits.next_epoch > 0


def test_noise_replaces_missing_audio_and_is_named_as_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "TRAIN_MINI", tmp_path / "absent")
    with loading.corpus_of([], 3, 60.0) as drawn:
        assert "noise" in drawn.source
        for utterance in drawn.utterances:
            samples, sample_rate = soundfile.read(utterance.audio_filepath)
            assert sample_rate == SAMPLE_RATE
            assert len(samples) / sample_rate == pytest.approx(utterance.duration)
            assert 0.05 < abs(samples).max() < 1.0
            assert len(utterance.text) == round(utterance.duration * loading.CHARACTERS_PER_SECOND)


@pytest.mark.slow
def test_loading_prints_a_row_for_each_loader_and_rate(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--utterances", "6", "--turns", "1", "--workers", "1", "--hours", "100", "inf", "--batch-seconds", "5"]
    assert loading.main([str(tones / "train.jsonl"), *options, "--output-dir", str(tmp_path)]) == 0
    first, *others = rows(tmp_path / "loading.json")
    assert (first["loader"], first["of decoding and features"]) == (loading.ALONE, 1.0)
    assert {"asr", "asr + speed_perturb", "torchaudio"} <= {row["loader"] for row in others}
    for row in others:
        assert row["of decoding and features"] == pytest.approx(row["audio s/CPU s"] / first["audio s/CPU s"])
    replayed = rows(tmp_path / "loading_replay.json")
    assert [row["trainer, audio hours/minute"] for row in replayed] == ["100", "inf"]
    assert "6 utterances" in capsys.readouterr().out
