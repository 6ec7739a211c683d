"""recipes/finetune/split holds out speakers with all their utterances; errors are one line."""

import json
from pathlib import Path

import pytest

from asr.core.data.manifest import read_manifest
from recipes.finetune.split import main
from tests.refusals import check_refusal


def manifest(path: Path, speakers: list[str | None]) -> Path:
    rows = [{"audio_filepath": f"{n}.wav", "duration": 60, "text": "a", "id": n} for n in range(len(speakers))]
    for row, speaker in zip(rows, speakers, strict=True):
        row |= {} if speaker is None else {"speaker": speaker}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_no_speaker_is_in_both_parts_and_no_utterance_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = manifest(tmp_path / "all.jsonl", [f"speaker {n % 20}" for n in range(100)])
    assert main([str(source), "--output-dir", str(tmp_path / "split")]) == 0
    parts = {name: read_manifest(tmp_path / "split" / f"{name}.jsonl") for name in ("train", "valid")}
    speakers = {name: {utterance.speaker for utterance in part} for name, part in parts.items()}
    assert speakers["train"].isdisjoint(speakers["valid"])
    assert (len(speakers["train"]), len(speakers["valid"])) == (18, 2)
    assert {utterance.id for part in parts.values() for utterance in part} == {str(n) for n in range(100)}
    assert {Path(utterance.audio_filepath).parent.resolve() for utterance in parts["train"]} == {tmp_path}
    assert "valid.jsonl: 10 utterances, 10.0 minutes, 2 speakers\n" in capsys.readouterr().out
    again = tmp_path / "again"
    assert main([str(source), "--output-dir", str(again)]) == 0
    assert {u.speaker for u in read_manifest(again / "valid.jsonl")} == speakers["valid"]
    assert main([str(source), "--output-dir", str(again), "--seed", "1"]) == 0
    assert {u.speaker for u in read_manifest(again / "valid.jsonl")} != speakers["valid"]


@pytest.mark.parametrize(
    ("speakers", "options", "message"),
    [
        (["a", None], [], "utterance ... name its speaker"),
        (["a", "a"], [], "two speakers; got 1"),
        (["a", "b"], ["--fraction", "1"], "--fraction; got 1.0"),
    ],
)
def test_a_manifest_that_cannot_be_split_is_reported_in_one_line(
    speakers: list[str | None], options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = manifest(tmp_path / "all.jsonl", speakers)
    assert main([str(source), "--output-dir", str(tmp_path / "split"), *options]) == 1
    check_refusal(capsys.readouterr().err, message)
    assert not (tmp_path / "split").exists()
