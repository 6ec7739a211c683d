"""The benchmark of decoders: all decoders have the same input, and each has a row."""

import json
from pathlib import Path

import pytest

pytest.importorskip("kenlm", reason="camel-kenlm is not installed")

from asr import ngram
from benchmarks import decoding


def test_every_decoder_has_a_row_and_decoders_of_a_group_have_equal_weights(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm, valid, test = str(tmp_path / "lm.arpa"), str(fluent / "valid.jsonl"), str(fluent / "test.jsonl")
    ngram.main([valid, test, "--order", "2", "-o", lm])
    options = ["--lm", lm, "--dev", valid, "--beams", "2", "8", "--turns", "1", "--output-dir", str(tmp_path)]
    assert decoding.main([str(fluent / "run"), test, *options]) == 0
    decoders = {row["decoder"]: row for row in json.loads((tmp_path / "decoding.json").read_text())["rows"]}
    names = ["greedy", "asr 2", "asr 8", "asr 2 + LM", "asr 8 + LM", "asr 2 + LM + lexicon", "asr 8 + LM + lexicon"]
    assert decoders.keys() >= {*names, "asr 8 + LM, pyctcdecode's pruning", decoding.NET}
    expected = json.loads((fluent / "run" / "results.json").read_text())["test"]["wer"]
    assert all(decoders[name]["WER"] == pytest.approx(expected, abs=0.02) for name in names)
    assert decoders["greedy"]["WER"] == expected
    for name, row in decoders.items():
        assert (row["LM weight"] is not None) == (" LM" in name)
    assert decoders["asr 2 + LM"]["LM weight"] == decoders["asr 8 + LM"]["LM weight"]
    shown = capsys.readouterr().out
    assert all(name in shown or f"{name} 8 + LM" in shown for name in ("torchaudio", "pyctcdecode"))
    batches = json.loads((tmp_path / "decoding_batches.json").read_text())["rows"]
    assert [(row["head"], row["recordings at a time"]) for row in batches] == [
        (head, str(size)) for head in decoding.BATCHED_HEADS for size in decoding.BATCH_SIZES
    ]
