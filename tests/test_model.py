"""asr.model: the description of a model."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from safetensors.torch import load_file

from asr.errors import InputError
from asr.model import main
from tests.conftest import ROOT
from tests.refusals import refused

STORED = ROOT / "tests" / "bundles" / "format-11"


def test_every_weight_is_in_a_row_whose_pattern_selects_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(STORED)]) == 0
    printed = capsys.readouterr().out
    weights = load_file(STORED / "weights.safetensors")
    rows = re.findall(r"^(\S+)  +([\d,]+)  +(\S+)  +\w+  +([\d,]+)$", printed, re.MULTILINE)
    numbers = {pattern: (int(count.replace(",", "")), int(size.replace(",", ""))) for pattern, count, _, size in rows}
    assert numbers
    for pattern, (count, size) in numbers.items():
        chosen = [weight for name, weight in weights.items() if fnmatchcase(name, pattern)]
        assert (count, size) == (len(chosen), sum(weight.numel() for weight in chosen)), pattern
    assert sum(count for count, _ in numbers.values()) == len(weights)


def test_the_description_names_parts_features_and_tokens(fluent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(fluent / "run")]) == 0
    printed = capsys.readouterr().out
    for part in (
        "encoder: conformer",
        "encoder.block.norm: ",
        "head: ctc",
        "16,000 Hz",
        "every 10 ms",
        "every 40 ms",
        "tokens: blank, ",
    ):
        assert part in printed
    assert main([str(fluent / "run"), "--tokens"]) == 0
    tokens = capsys.readouterr().out.splitlines()
    assert tokens[0] == "0\tblank"
    assert {"'a'", "'b'"} <= {line.partition("\t")[2] for line in tokens}


def test_a_path_without_a_model_is_refused(tmp_path: Path) -> None:
    with refused(InputError, "model"):
        main([str(tmp_path / "absent")])
