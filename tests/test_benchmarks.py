"""The benchmarks run, and the implementations that they compare do equal work."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.components.encoder.block.activation.swish import Swish
from asr.components.encoder.block.convolution.depthwise_convolution import DepthwiseConvolution
from asr.components.encoder.block.norm.masked_batch_norm import MaskedBatchNorm
from asr.errors import InputError
from asr.interfaces import Encoded
from benchmarks import inference, long_audio, nets, parts, step_profile, train_step
from benchmarks.contest import count_flops
from benchmarks.nets import OURS, VOCAB_SIZE, Net, make_batch, make_net
from tests.conftest import ROOT
from tests.refusals import refused

PROGRAMS = [
    path.stem for path in sorted((ROOT / "benchmarks").glob("*.py")) if 'if __name__ == "__main__"' in path.read_text()
]
TINY = ["--sizes", "xs", "--turns", "1", "--contenders", OURS, "Parakeet"]


def test_every_benchmark_prints_its_help() -> None:
    code = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    except SystemExit as end:
        assert end.code in (0, None), (name, end.code)
    else:
        raise AssertionError(name)
"""
    run = subprocess.run([sys.executable, "-c", code, *PROGRAMS], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for name in PROGRAMS:
        assert re.search(rf"usage: .*{name}", run.stdout), name


@pytest.mark.slow
def test_a_profile_has_the_slowest_kernels_and_the_time_of_the_ctc_loss(tmp_path: Path) -> None:
    few = ["--size", "xs", "--batch-seconds", "1", "--most", "5", "--turns", "1"]
    assert step_profile.main([*few, "--output-dir", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "step_profile.json").read_text())["rows"]
    longest, others, ctc = rows[:5], rows[5], rows[6]
    assert [row["ms"] for row in longest] == sorted((row["ms"] for row in longest), reverse=True)
    assert sum(row["of the step"] for row in [*longest, others]) == pytest.approx(1)
    assert ctc["kernel"].startswith("(torch's CTC loss, 25 frames, 1024 tokens")
    assert ctc["ms"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("benchmark", [train_step, inference, step_profile])
def test_option_device_cuda_is_refused_in_one_line_if_there_is_no_gpu(benchmark: Any) -> None:
    with refused(InputError, "--device; got cuda"):
        benchmark.main(["--device", "cuda"])


@pytest.mark.parametrize(
    ("encoder", "with_front_end"), [("conformer_xs", True), ("conformer_xs", False), ("fast_conformer_s", True)]
)
def test_a_peer_has_outputs_of_the_same_shape_and_as_many_parameters_and_operations_as_our_network(
    encoder: str, with_front_end: bool
) -> None:
    pytest.importorskip("transformers")
    batch = make_batch(3, 1.0, blocks_dim=None if with_front_end else 144)
    mine, theirs = (make_net(name, encoder, with_front_end=with_front_end) for name in (OURS, "Parakeet"))
    log_probs, lengths = mine.eval()(batch.features, batch.lengths)
    their_log_probs, their_lengths = theirs.eval()(batch.features, batch.lengths)
    assert log_probs.shape == their_log_probs.shape
    assert lengths.tolist() == their_lengths.tolist()
    sizes = [sum(parameter.numel() for parameter in net.parameters()) for net in (mine, theirs)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    flops, their_flops = (count_flops(net, batch.features, batch.lengths, backward=True) for net in (mine, theirs))
    assert their_flops == pytest.approx(flops, rel=0.1)  # Parakeet projects the positions again for each utterance


def test_each_multiply_add_is_counted_as_two_operations() -> None:
    dim, batch = 16, make_batch(2, 1.0, blocks_dim=16)
    net = Net(lambda x, lengths: Encoded(x, lengths, {}), torch.nn.ModuleList(), dim)  # type: ignore[arg-type]
    products = 2 * 25 * dim * VOCAB_SIZE  # operations of the head, including those on padded frames
    assert count_flops(net, batch.features, batch.lengths, backward=False) == 2 * products
    assert count_flops(net, batch.features, batch.lengths, backward=True) == 3 * 2 * products


def test_the_lengths_of_a_batch_are_evenly_spaced() -> None:
    batch = make_batch(5, 10.0)
    assert batch.lengths.tolist() == [1000, 900, 800, 700, 600]
    assert batch.features.shape == (5, 1000, 80)
    assert batch.tokens.shape == (5, 35)
    assert make_batch(1, 2.0, blocks_dim=16).features.shape == (1, 50, 16)


@pytest.mark.parametrize(("benchmark", "more"), [(train_step, ["--precision", "bfloat16"]), (inference, [])])
def test_each_network_has_a_row_with_its_speed_relative_to_the_fastest_peer(
    benchmark: object, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    assert benchmark.main([*TINY, *more, "--batches", "2x1", "--output-dir", str(tmp_path)]) == 0  # type: ignore[attr-defined]
    [path] = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["rows"]
    assert [row["contender"] for row in rows] == [OURS, "Parakeet", f"{OURS}, rotary_attention"]
    assert rows[0]["x peer"] == pytest.approx(rows[1]["CPU ms"] / rows[0]["CPU ms"])
    assert rows[1]["x peer"] == 1.0
    assert capsys.readouterr().out.count("| xs | 2x1 |") == 3


def test_a_peer_that_is_not_installed_is_reported_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(nets.PEERS, "Parakeet", "benchmarks.peers.absent")
    assert inference.main([*TINY, "--attentions", "--batches", "1x1", "--output-dir", str(tmp_path)]) == 0
    [row] = json.loads((tmp_path / "inference.json").read_text())["rows"]
    assert row["contender"] == OURS
    assert row["x peer"] is None
    assert "Parakeet: left out: No module named" in capsys.readouterr().out


@pytest.mark.slow
def test_a_contender_that_exceeds_a_limit_is_not_run_on_longer_audio(tmp_path: Path) -> None:
    options = ["--sizes", "xs", "--turns", "1", "--contenders", OURS, "--output-dir", str(tmp_path)]
    options += ["--seconds", "120", "3600", "4000", "--limit-gb", "0.9", "--limit-seconds", "200"]
    assert long_audio.main(options) == 0
    rows = json.loads((tmp_path / "long_audio.json").read_text())["rows"]
    assert {row["contender"] for row in rows} == {OURS, *(f"{OURS}, {name}" for name in nets.ATTENTIONS)}
    rows = [row for row in rows if row["contender"] == OURS]
    assert [(row["seconds"], row["ended"]) for row in rows] == [("120", "yes"), ("3600", "over 0.9 GB")]
    assert rows[0]["x ours"] == 1.0
    assert 0 < rows[0]["GB above the model"] < 0.2


@pytest.mark.slow
def test_every_part_of_a_training_step_has_a_row(tmp_path: Path) -> None:
    assert parts.main(["--sizes", "xs", "--turns", "1", "--output-dir", str(tmp_path)]) == 0
    found = {row["part"]: row for row in json.loads((tmp_path / "parts.json").read_text())["rows"]}
    assert found["the step"]["of the step"] == 1.0
    assert found["front-end"]["times"] == 1
    assert {name for name, row in found.items() if row["usual form, CPU ms"]} == {
        *("front-end", "convolution", "dropout of a branch", "(dropout within a feed-forward)"),
    }


def test_the_common_implementation_of_the_convolution_equals_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = partial(MaskedBatchNorm, momentum=0.1, eps=1e-5)
    torch.manual_seed(0)
    swish = partial(Swish, beta=1.0)
    ours = DepthwiseConvolution(8, norm, swish, kernel_size=5, bias=True).eval()
    usual = parts.UsualConvolution(8, norm, swish, kernel_size=5, bias=True).eval()
    usual.load_state_dict(ours.state_dict())
    x, mask = torch.randn(2, 7, 8), torch.arange(7) >= torch.tensor([[7], [4]])
    expected = ours(x, mask)
    monkeypatch.setattr("asr.components.encoder.block.convolution.depthwise_convolution.depthwise", pytest.fail)
    torch.testing.assert_close(usual(x, mask), expected)
