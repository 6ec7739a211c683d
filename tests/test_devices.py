"""Computing features on the device and compiling blocks do not change the losses of training.

Features on the device are also tested with a CPU as the device; compiling blocks needs a GPU.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.core.build import build_features, build_model, build_tokenizer
from asr.core.data.batch import Batch
from asr.core.recognition.model import Model
from asr.core.training.task import TrainingTask
from asr.errors import InputError
from asr.train import train
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.refusals import refused
from tests.test_train import losses

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=cuda)])
NUM_STEPS = {"cpu": 8, "cuda": 200}
# Tolerance for the mean relative difference of the losses: bfloat16 has only three significant digits, and sums in
# another order round differently.
NOISE = {"cpu": 2e-3, "cuda": 3e-2}
WAYS = {
    "features": ["data.features_on=device"],
    "compiled": ["compile_blocks=true"],
    "all": ["data.features_on=device", "compile_blocks=true"],
}


def make_model(*overrides: str) -> Model:
    torch.manual_seed(0)
    small = [override for override in TINY if override.startswith("encoder.") and "dropout" not in override]
    config = resolved(*small, *overrides)
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["abcdef"])
    return build_model(config, tokenizer, build_features(config))


def run(device: str, corpus: Path, run_dir: Path, *overrides: str) -> list[float]:
    tiny = [override for override in TINY if not override.startswith("trainer.accelerator")]
    where = ["trainer=gpu"] if device == "cuda" else ["trainer.accelerator=cpu"]
    rest = [
        "corpus.test=[]",
        "trainer.max_epochs=-1",
        f"trainer.max_steps={NUM_STEPS[device]}",
    ]
    train(settings_with(*where, *tiny, *tone_corpus(corpus), *rest, *overrides, f"run_dir={run_dir}"))
    return losses(run_dir)


@pytest.fixture(scope="module")
def eager(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """For each device, the losses of a run without accelerations."""
    folder = tmp_path_factory.mktemp("eager")
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return {device: run(device, tones, folder / device) for device in devices}


@pytest.mark.parametrize(
    ("device", "way"), [("cpu", "features"), *(pytest.param("cuda", way, marks=cuda) for way in WAYS)]
)
def test_no_acceleration_changes_the_losses(
    device: str,
    way: str,
    eager: dict[str, list[float]],
    tones: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "asr")
    losses = run(device, tones, tmp_path / "run", *WAYS[way])
    assert len(losses) == len(eager[device]) == NUM_STEPS[device]
    pairs = zip(losses, eager[device], strict=True)
    assert sum(abs(mine - theirs) / theirs for mine, theirs in pairs) / len(losses) < NOISE[device]
    if "compile_blocks=true" in WAYS[way]:
        assert "blocks are compiled" in caplog.text, caplog.text


@DEVICES
def test_log_probs_in_bfloat16_are_close_to_those_in_float32(device: str) -> None:
    """The tolerance is 0.125, because values are about 2 and each of two blocks rounds to three digits."""
    model: Model = make_model("encoder.block.dropout=0").to(device).eval()
    features, lengths = torch.randn(3, 300, 80, device=device), torch.tensor([300, 211, 97], device=device)
    outputs = []
    for dtype in (torch.float32, torch.bfloat16):
        with torch.no_grad(), torch.autocast(device, dtype, enabled=dtype != torch.float32):
            encoded = model(features, lengths)
            head: Any = model.head.frame_head
            outputs.append(head.log_probs(encoded.out).float().cpu()[0])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0, atol=0.125)
    assert not torch.equal(*outputs)


@DEVICES
def test_a_non_finite_loss_is_attributed_to_its_own_step(
    device: str, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the loss is read only in logged steps, so a fault is noticed after its own step."""
    compute = TrainingTask.losses

    def spoilt(self: TrainingTask, batch: Batch) -> Any:
        spoil = torch.nan if self.global_step == 2 and self.trainer.training else 1.0
        losses = compute(self, batch)
        return losses._replace(by_name={name: loss * spoil for name, loss in losses.by_name.items()})

    monkeypatch.setattr(TrainingTask, "losses", spoilt)
    with refused(InputError, "in epoch ... 1 ... 3"):
        run(device, tones, tmp_path / "run", "trainer.log_every_n_steps=7")
    assert [path.name for path in (tmp_path / "run" / "faults").iterdir()] == ["epoch=1-step=3-rank=0-0.pt"]


@cuda
def test_a_run_with_all_accelerations_resumes_from_its_checkpoint(tones: Path, tmp_path: Path) -> None:
    common = [*WAYS["all"], "schedule=noam", "checkpoint.every_steps=20"]
    run("cuda", tones, tmp_path / "run", *common, "trainer.max_steps=40")
    losses = run("cuda", tones, tmp_path / "run", *common, "trainer.max_steps=80", "resume.allow=[trainer.max_steps]")
    whole = run("cuda", tones, tmp_path / "whole", *common, "trainer.max_steps=80")
    assert losses == pytest.approx(whole, rel=0.05)


@cuda
def test_on_a_gpu_the_encoder_never_waits_in_a_step_without_logging(tones: Path, tmp_path: Path) -> None:
    """The CTC loss waits for the GPU, because it reads the lengths; other operations wait only in logged steps."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run("cuda", tones, tmp_path / "run", "trainer.log_every_n_steps=1000", "trainer.max_steps=12")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    places = [
        f"{warning.filename}:{warning.lineno}" for warning in caught if "synchronizing CUDA" in str(warning.message)
    ]
    steps = [place for place in places if "/asr/components/encoder/" in place or "/asr/base/kernels/" in place]
    assert not steps, json.dumps(sorted(set(places)), indent=1)
