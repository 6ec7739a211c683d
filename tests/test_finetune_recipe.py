"""recipes/finetune joins utterances exactly, and compares the times of words."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.base.audio.load import load_waveform
from asr.core.data.manifest import read_manifest
from recipes.finetune import join, word_times
from tests.refusals import check_refusal

SAMPLE_RATE = 16_000


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0)
    lines = []
    for number in range(4):
        soundfile.write(tmp_path / f"{number}.wav", noise.uniform(-0.5, 0.5, 1_000 + number), SAMPLE_RATE)
        lines.append({"audio_filepath": f"{number}.wav", "duration": 0.0625, "text": f"word {number}", "id": number})
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(line | {"id": str(line["id"])}) + "\n" for line in lines))
    return path


def test_joined_utterances_have_the_audio_of_their_parts(manifest: Path, tmp_path: Path) -> None:
    output = tmp_path / "joined"
    assert join.main([str(manifest), "--output-dir", str(output), "--repeat", "2"]) == 0
    sources = {utterance.id: utterance for utterance in read_manifest(manifest)}
    parts = read_manifest(output / "parts.jsonl")
    assert sorted(part.id for part in parts) == sorted(f"{name}-{number}" for name in sources for number in range(2))
    for part in parts:
        source = sources[part.id[0]]
        waveform = load_waveform(part.audio_filepath, SAMPLE_RATE, offset=part.offset, duration=part.duration)
        expected = load_waveform(source.audio_filepath, SAMPLE_RATE, duration=source.duration)
        assert waveform.shape == expected.shape
        assert float((waveform - expected).abs().max()) < 1e-4, "16-bit samples differ only by rounding"
        assert part.text == source.text
    joined = read_manifest(output / "joined.jsonl")
    assert [utterance.text for utterance in joined] == [" ".join(part.text for part in parts)]


def test_a_wrong_text_replaces_only_the_middle_of_the_joined_text(manifest: Path, tmp_path: Path) -> None:
    output = tmp_path / "joined"
    assert join.main([str(manifest), "--output-dir", str(output), "--wrong", "1"]) == 0
    texts = [part.text for part in read_manifest(output / "parts.jsonl")]
    assert read_manifest(output / "joined.jsonl")[0].text == " ".join([*texts[:2], texts[0], texts[3]])
    assert len(set(texts)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--repeat", "0"], "--repeat; got 0"),
        (["--wrong", "3"], "--wrong; got 3"),
    ],
)
def test_utterances_that_cannot_be_joined_are_reported_in_one_line(
    options: list[str], message: str, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert join.main([str(manifest), "--output-dir", str(tmp_path / "joined"), *options]) == 1
    check_refusal(capsys.readouterr().err, message)
    assert not (tmp_path / "joined").exists()


def words(path: Path, *utterances: tuple[str, list[tuple[str, float, float]]]) -> str:
    rows = [
        {"id": name, "words": [{"text": text, "start": start, "end": end} for text, start, end in spoken]}
        for name, spoken in utterances
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_words_in_only_one_of_the_files_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = words(tmp_path / "a.jsonl", ("x", [("one", 0.0, 0.5), ("too", 9.0, 9.5), ("three", 2.0, 2.5)]))
    second = words(
        tmp_path / "b.jsonl", ("x", [("one", 0.2, 0.5), ("two", 1.0, 1.5), ("three", 2.2, 2.9)]), ("y", [("one", 5, 6)])
    )
    assert word_times.main([first, second]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 words in common",
        "starts differ by 0.200 s (median), 0.200 s (95th percentile); 0.0 % of the words differ by less than 0.1 s",
        "ends differ by 0.200 s (median), 0.380 s (95th percentile); 50.0 % of the words differ by less than 0.1 s",
    ]


def test_files_without_common_words_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = words(tmp_path / "a.jsonl", ("x", [("one", 0, 1)])), words(tmp_path / "b.jsonl", ("x", []))
    assert word_times.main([first, second]) == 1
    message = "utterances with the same id must have words in common; no word is in both files."
    assert capsys.readouterr().err == f"error: {first}, {second}: {message}\n"
