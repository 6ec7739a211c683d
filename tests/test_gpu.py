"""Results on a GPU equal those on the CPU. Without a GPU, these tests are skipped."""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from asr import evaluate
from asr.core.build import build_features, build_model, build_tokenizer
from asr.core.recognition.model import Model
from asr.train import train
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.processes import die_at_save, finish, resumptions, start
from tests.test_train import losses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


def log_probs_of(model: Model, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    encoded = model(features, lengths)
    head: Any = model.head
    return head.log_probs(encoded.out), encoded.lengths


@pytest.mark.parametrize("encoder", ["conformer_s", "transformer"])
def test_log_probs_and_gradients_equal_those_of_the_cpu(encoder: str) -> None:
    config = resolved(
        f"encoder={encoder}",
        "encoder.num_layers=4",
        "encoder.block.dropout=0",
        "encoder.subsampling.dropout=0",
    )
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abcdef"])
    model = build_model(config, tokenizer, build_features(config)).double()
    features, lengths = torch.randn(3, 300, 80, dtype=torch.float64), torch.tensor([300, 211, 97])
    results = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        log_probs = log_probs_of(model, features.to(device), lengths.to(device))[0]
        log_probs.square().mean().backward()
        gradients = [parameter.grad.detach().clone().cpu() for parameter in model.parameters()]  # type: ignore[union-attr]
        results.append((log_probs.detach().cpu(), gradients))
    # The sines of the positional encodings are float32 on both devices, and differ in their last digit.
    torch.testing.assert_close(results[1][0][0], results[0][0][0], rtol=0, atol=1e-5)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", [["trainer=gpu"], ["trainer=ddp", "trainer.devices=1"]])
def test_the_losses_of_training_in_bf16_are_close_to_those_of_the_cpu(
    how: list[str], tones: Path, tmp_path: Path
) -> None:
    tiny = [override for override in TINY if not override.startswith("trainer.accelerator")]
    common = [*tone_corpus(tones), "trainer.max_epochs=2", "trainer.log_every_n_steps=1"]
    train(settings_with(*TINY, *common, f"run_dir={tmp_path / 'cpu'}"))
    train(settings_with(*how, *tiny, *common, f"run_dir={tmp_path / 'gpu'}"))
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=0.05)  # bf16 has 3 digits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_without_frames_has_finite_results_and_no_gradient(dtype: torch.dtype) -> None:
    """A rank gets such a batch if it can read none of the utterances; all attention keys are then masked."""
    config = resolved("encoder=conformer_s", "encoder.num_layers=2")
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abcdef"])
    model = build_model(config, tokenizer, build_features(config)).cuda()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        lengths = torch.zeros(1, dtype=torch.int64, device="cuda")
        log_probs, _ = log_probs_of(model, torch.zeros(1, 4, 80, device="cuda"), lengths)
    assert log_probs.isfinite().all()
    (log_probs.sum() * 0.0).backward()
    assert all(not parameter.grad.any() for parameter in model.parameters())  # type: ignore[union-attr]


def test_a_batch_that_exceeds_gpu_memory_is_described(tones: Path, tmp_path: Path) -> None:
    tiny = [override for override in TINY if not override.startswith("trainer.accelerator")]
    torch.cuda.set_per_process_memory_fraction(1e-4)  # a few megabytes on any card
    try:
        with pytest.raises(ValueError, match=r"a batch must fit into memory"):
            train(settings_with("trainer=gpu", *tiny, *tone_corpus(tones), f"run_dir={tmp_path / 'run'}"))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_run_on_a_gpu_resumes_from_its_checkpoint(tones: Path, tmp_path: Path) -> None:
    tiny = [override for override in TINY if not override.startswith("trainer.accelerator")]
    common = ["trainer=gpu", *tiny, *tone_corpus(tones), "schedule=noam", f"run_dir={tmp_path / 'run'}"]
    train(settings_with(*common, "trainer.max_epochs=1"))
    train(settings_with(*common, "trainer.max_epochs=2", "resume.allow=[trainer.max_epochs]"))
    train(settings_with(*common, "trainer.max_epochs=2", f"run_dir={tmp_path / 'whole'}"))
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=0.02)  # atomic sums and bf16


def test_a_run_on_a_gpu_that_is_killed_resumes_and_ends_as_a_whole_run(tones: Path, tmp_path: Path) -> None:
    tiny = [override for override in TINY if not override.startswith("trainer.accelerator")]
    common = ["trainer=gpu", *tiny, "data.num_workers=0", *tone_corpus(tones), "trainer.max_epochs=2"]
    parts = resolved(*common, f"run_dir={tmp_path / 'run'}")
    assert finish(start(parts, tmp_path / "log", before=partial(die_at_save, 1))) == -signal.SIGKILL
    assert finish(start(parts, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    assert resumptions(tmp_path / "run")
    train(settings_with(*common, f"run_dir={tmp_path / 'whole'}"))
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=0.02)  # atomic sums and bf16


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("norm", ["masked_batch_norm", "layer_norm"])
def test_padding_does_not_change_the_output(norm: str, dtype: torch.dtype, tolerance: float) -> None:
    config = resolved("encoder=conformer_s", f"encoder/block/norm={norm}", "encoder.num_layers=4")
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abcdef"])
    model = build_model(config, tokenizer, build_features(config)).to("cuda", dtype).eval()
    lengths = torch.tensor([700, 411, 64, 9, 1], device="cuda")
    features = torch.randn(5, 700, 80, device="cuda", dtype=dtype)
    junk = features.clone()
    for utterance, length in zip(junk, lengths, strict=True):
        utterance[length:] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30], device="cuda").repeat(20)
    with torch.inference_mode():
        together, out_lengths = log_probs_of(model, junk, lengths)
        for row, length in enumerate(lengths.tolist()):
            alone, _ = log_probs_of(model, features[row : row + 1, :length], lengths[row : row + 1])
            torch.testing.assert_close(together[row, : out_lengths[row]], alone[0], rtol=0, atol=tolerance * 10)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_evaluate_gives_equal_texts_on_a_gpu_and_on_the_cpu(precision: str, fluent: Path, tmp_path: Path) -> None:
    run, manifest = str(fluent / "run"), str(fluent / "test.jsonl")
    results = []
    for name, options in (("cpu", ["--device", "cpu"]), ("gpu", ["--device", "cuda", "--precision", precision])):
        assert evaluate.main([run, manifest, *options, "--output-dir", str(tmp_path / name)]) == 0
        lines = (tmp_path / name / "test.utterances.jsonl").read_text().splitlines()
        results.append([json.loads(line) for line in lines])
    different = sum(on_cpu["hypothesis"] != on_gpu["hypothesis"] for on_cpu, on_gpu in zip(*results, strict=True))
    assert different <= (0 if precision == "float32" else 1), f"{different} of {len(results[0])} texts differ"


def test_a_bundle_written_on_a_gpu_works_on_any_machine(tones: Path, tmp_path: Path) -> None:
    tiny = [override for override in TINY if not override.startswith("trainer.accelerator")]
    run_dir = tmp_path / "run"
    train(settings_with("trainer=gpu", *tiny, *tone_corpus(tones), "trainer.max_epochs=1", f"run_dir={run_dir}"))
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["trainer"]["accelerator"] == "gpu"
    assert evaluate.main([str(run_dir), str(tones / "test.jsonl"), "--device", "cpu"]) == 0
