"""Every encoder with every head: all weights learn, and a run of any head resumes to the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from asr.build import build_features, build_model, build_tokenizer
from asr.interfaces import Encoded
from tests.conftest import CONF, TINY, resolved, tone_corpus
from tests.processes import bundle, finish, kill, metrics, resumptions, start, steps_logged, wait_for

HEADS, ENCODERS = (sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("head", "encoder"))
SMALL = {
    "transducer": ["head.joint_dim=32", "head.predictor.dim=16"],
    "ctc_self_conditioned": ["head.num_intermediate=1"],
}


def slow_but(fast: list[tuple[str, ...]], *groups: list[str]) -> Any:
    """The product of these, all of it slow but for a few."""
    pairs = [(first, second) for first in groups[0] for second in groups[1]]
    return [pytest.param(*pair, marks=() if pair in fast else pytest.mark.slow) for pair in pairs]


RESUMED = [*([f"head={head}", *SMALL.get(head, [])] for head in HEADS), ["encoder=conformer_streaming_xs"]]


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(each, marks=() if each == ["head=ctc_consistency"] else pytest.mark.slow) for each in RESUMED],
    ids=lambda chosen: chosen[0],
)
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(
    chosen: list[str], tones: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    overrides = [*TINY, *tone_corpus(tones), *chosen, "corpus.test=[]", "num_threads=1"]
    overrides += ["augment=[speed_perturb,spec_augment]", "encoder.dropout=0.1", "trainer.max_epochs=2"]
    overrides += ["data.batch_seconds=16", "checkpoint.every_steps=2", "trainer.check_val_every_n_epoch=2"]
    assert finish(start(resolved(*overrides, f"run_dir={whole}"), tmp_path / "log")) == 0
    running = start(resolved(*overrides, f"run_dir={parts}"), tmp_path / "log")
    assert wait_for(lambda: steps_logged(parts) > 3, running)
    kill(running)
    assert finish(start(resolved(*overrides, f"run_dir={parts}"), tmp_path / "log")) == 0
    assert [step > 0 for step, _ in resumptions(parts)] == [True]
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)


@pytest.mark.parametrize(("encoder", "head"), slow_but([("transformer", "transducer")], ENCODERS, HEADS))
def test_a_head_trains_every_weight_of_every_encoder(encoder: str, head: str) -> None:
    small = ["encoder.dim=16", "encoder.num_heads=2", "encoder.num_layers=4", "encoder.subsampling.num_channels=2"]
    config = resolved(f"encoder={encoder}", f"head={head}", *small)
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abcdef "])
    model = build_model(config, tokenizer, features)
    views, lengths = model.head.views, torch.tensor([90, 61])
    encoded: Encoded = model(torch.randn(2 * views, 90, features.dim), lengths.repeat(views))
    losses = model.head.losses(encoded, torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([3, 2]))
    assert set(losses) == {"loss", *model.head.loss_names}
    assert all(loss.shape == (2,) and loss.isfinite().all() for loss in losses.values())
    losses["loss"].sum().backward()
    idle = [
        name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.isfinite().all()
    ]
    assert not idle
    assert model.head.cells(10, 3) > 0
