"""The benchmarks of streams measure the words and ends that streams report, and draw their delays."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from asr import Stream
from asr.core.recognition.transcript import Word
from benchmarks import streaming, turns
from benchmarks.streaming import Delays, Recording, TimedWords, delay_histograms, quantiles, word_delays
from tests.test_streaming import RATE, final_text, speech, streaming_recognizer

CHUNK_SECONDS = 0.24


def words(*ends: tuple[str, float]) -> list[Word]:
    return [Word(text, end - 0.2, end, 1.0) for text, end in ends]


def counts_of(chart: str) -> list[int]:
    """Return the last column of a chart's table."""
    return [int(cell) for cell in re.findall(r"<td>(\d+)</td></tr>", chart)]


def test_delays_are_those_of_correct_words_counted_from_the_end_of_each_word() -> None:
    recording = Recording(Any, torch.zeros(0), words(("a", 1.0), ("b", 2.0), ("c", 3.0)))  # type: ignore[arg-type]
    result = TimedWords(["a", "x", "c", "d"], [1.5, 2.5, 3.25, 4.0], [2.0, 3.0, 4.25, 4.5], 0.0)
    assert word_delays([recording, recording], [result, result]) == Delays([0.5, 0.25] * 2, [1.0, 1.25] * 2)
    assert quantiles([0.0, 1.0, 2.0], []) == [1.0, pytest.approx(1.9), None, None]


@pytest.mark.parametrize("spread", [0.3, 30.0])
def test_each_delay_is_in_one_bin_and_all_histograms_have_the_same_bins(spread: float) -> None:
    draw = np.random.default_rng(0)
    delays = {"shown": (spread * draw.random(300) - 0.2).tolist(), "final": [0.1, spread], "nothing": []}
    charts = delay_histograms(delays)
    assert [sum(counts_of(chart)) for chart in charts] == [300, 2]
    assert len({len(counts_of(chart)) for chart in charts}) == 1
    assert len(counts_of(charts[0])) <= streaming.MAX_BINS
    assert delay_histograms({"nothing": []}) == []


@pytest.fixture
def recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest of noise; the text of each recording is that of a stream of the model that both benchmarks load."""
    recognizer = streaming_recognizer(dtype=torch.float32)
    lines = []
    for seed in range(4):
        waveform, path = speech(2.5, seed, torch.float32), tmp_path / f"{seed}.wav"
        soundfile.write(path, waveform.numpy(), RATE, subtype="FLOAT")
        stream = Stream(recognizer, chunk_seconds=CHUNK_SECONDS)
        text = final_text([*map(stream.feed, waveform.split(640)), stream.finish()])
        lines.append(json.dumps({"audio_filepath": str(path), "duration": 2.5, "text": text}))
    (tmp_path / "noise.jsonl").write_text("\n".join(lines))
    monkeypatch.setattr(streaming, "load_recognizer", lambda model: recognizer)
    return tmp_path / "noise.jsonl"


def test_the_page_has_a_histogram_of_the_delays_of_shown_and_of_final_words(recordings: Path, tmp_path: Path) -> None:
    options = [str(tmp_path), str(recordings), "--chunk-seconds", str(CHUNK_SECONDS), "--streams", "2"]
    assert streaming.main([*options, "--output-dir", str(tmp_path)]) == 0
    stream, whole = json.loads((tmp_path / "streaming.json").read_text())["rows"]
    assert stream["WER"] == 0.0
    assert whole["chunk"] == "whole"
    assert 0 < stream["provisional, median s"] <= stream["final, median s"] <= stream["final, 95 % s"]
    page = (tmp_path / "streaming.html").read_text()
    shown, final = re.findall(r"(?s)<figcaption>[^<]*: words (?:shown|final).*?</figure>", page)
    num_words = sum(len(json.loads(line)["text"].split()) for line in recordings.read_text().splitlines())
    assert sum(counts_of(shown)) == sum(counts_of(final)) == num_words > 10


def test_the_page_of_turns_has_histograms_of_the_events_and_words_of_each_pause(
    recordings: Path, tmp_path: Path
) -> None:
    assert turns.main([str(tmp_path), str(recordings), "--pauses", "1.5", "--output-dir", str(tmp_path)]) == 0
    [row] = json.loads((tmp_path / "turns_silence.json").read_text())["rows"]
    assert int(row["pauses"]) in (1, 2, 3)
    page = (tmp_path / "turns_silence.html").read_text()
    [chart] = re.findall(r"(?s)<figcaption>1.5 s: words final.*?</figure>", page)
    assert sum(counts_of(chart)) > 3
