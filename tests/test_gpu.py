"""A GPU computes what the CPU computes; run where there is one."""

from pathlib import Path

import pytest
import torch

from asr.build import build_features, build_recognizer, build_tokenizer
from asr.train import train
from tests.conftest import TINY, resolved, tone_corpus
from tests.test_train import losses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")


@pytest.mark.parametrize("encoder", ["conformer_s", "transformer"])
def test_log_probs_and_gradients_are_those_of_the_cpu(encoder: str) -> None:
    config = resolved(
        f"encoder={encoder}", "encoder.num_layers=4", "encoder.dropout=0", "encoder.subsampling.dropout=0"
    )
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abcdef"])
    recognizer = build_recognizer(config, tokenizer, build_features(config)).double()
    features, lengths = torch.randn(3, 300, 80, dtype=torch.float64), torch.tensor([300, 211, 97])
    results = []
    for device in ("cpu", "cuda"):
        recognizer.to(device).zero_grad()
        log_probs, _ = recognizer(features.to(device), lengths.to(device))
        log_probs.square().mean().backward()
        gradients = [parameter.grad.cpu() for parameter in recognizer.parameters()]  # type: ignore[union-attr]
        results.append((log_probs.detach().cpu(), gradients))
    torch.testing.assert_close(results[1][0][0], results[0][0][0], rtol=0, atol=1e-9)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("how", [["trainer=gpu"], ["trainer=ddp", "trainer.devices=1"]])
def test_training_in_bf16_follows_the_cpu(how: list[str], tones: Path, tmp_path: Path) -> None:
    tiny = [override for override in TINY if not override.startswith("trainer.accelerator")]
    common = [*tone_corpus(tones), "trainer.max_epochs=2", "trainer.log_every_n_steps=1"]
    train(resolved(*TINY, *common, f"run_dir={tmp_path / 'cpu'}"))
    train(resolved(*how, *tiny, *common, f"run_dir={tmp_path / 'gpu'}"))
    assert losses(tmp_path / "gpu") == pytest.approx(losses(tmp_path / "cpu"), rel=0.05)  # bf16 has 3 digits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_without_a_frame_is_finite_and_has_no_gradient(dtype: torch.dtype) -> None:
    """What a rank stands in with when nothing of its batch could be read: attention with every key masked."""
    config = resolved("encoder=conformer_s", "encoder.num_layers=2")
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abcdef"])
    recognizer = build_recognizer(config, tokenizer, build_features(config)).cuda()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
        log_probs, _ = recognizer(
            torch.zeros(1, 4, 80, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
        )
    assert log_probs.isfinite().all()
    (log_probs.sum() * 0.0).backward()
    assert all(not parameter.grad.any() for parameter in recognizer.parameters())  # type: ignore[union-attr]


def test_too_large_a_batch_is_described(tones: Path, tmp_path: Path) -> None:
    tiny = [override for override in TINY if not override.startswith(("trainer.accelerator", "encoder.dim"))]
    huge = ["encoder.dim=8192", "encoder.num_layers=64", "trainer=gpu", f"run_dir={tmp_path / 'run'}"]
    with pytest.raises(ValueError, match=r"memory must hold"):
        train(resolved(*huge[:3], *tiny, *tone_corpus(tones), *huge[3:]))


def test_a_run_on_a_gpu_goes_on_from_its_checkpoint(tones: Path, tmp_path: Path) -> None:
    tiny = [override for override in TINY if not override.startswith("trainer.accelerator")]
    common = ["trainer=gpu", *tiny, *tone_corpus(tones), "schedule=noam", f"run_dir={tmp_path / 'run'}"]
    train(resolved(*common, "trainer.max_epochs=1"))
    train(resolved(*common, "trainer.max_epochs=2", "resume.allow=[trainer.max_epochs]"))
    train(resolved(*common, "trainer.max_epochs=2", f"run_dir={tmp_path / 'whole'}"))
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=0.02)  # atomic sums, bf16
