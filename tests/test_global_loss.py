"""Gradients are those of the global batch, computed by a plain loop, however the batch is divided among ranks."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.base.settings.read import read
from asr.core.build import build_augmentation, build_features, build_model, build_tokenizer
from asr.core.data.batch import Batch, collate
from asr.core.data.dataset import SpeechDataset
from asr.core.data.manifest import read_manifest
from asr.core.data.position import start_of_epoch
from asr.core.data.settings import DataSettings
from asr.core.data.training_set import TrainingSet
from asr.core.recognition.model import Model
from asr.core.training.task import TrainingTask
from tests.conftest import TINY, resolved, tone_corpus
from tests.processes import finish, start

# The learning rate is 0, so every step has the initial weights and can be recomputed separately.
STILL = ["optimizer.lr=0", "trainer.max_epochs=1", "trainer.gradient_clip_val=null", "data.batch_seconds=3"]


def keep_gradients(folder: Path) -> None:
    """Write the gradients and buffers of each optimizer step."""
    divide = TrainingTask.configure_gradient_clipping

    def divide_and_keep(self: TrainingTask, *arguments: Any, **named: Any) -> None:
        divide(self, *arguments, **named)
        if self.global_rank == 0:
            gradients = {name: parameter.grad for name, parameter in self.model.named_parameters()}
            buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
            torch.save((gradients, buffers), folder / f"{self.global_step}.pt")

    TrainingTask.configure_gradient_clipping = divide_and_keep  # type: ignore[method-assign]


def saved_steps(folder: Path) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    return [torch.load(folder / f"{step}.pt") for step in range(len(list(folder.iterdir())))]


def planned(config: dict[str, Any], corpus: Path, world_size: int) -> tuple[Model, list[list[list[Any]]]]:
    """Return the initial model, and the examples of each rank in each batch: [batch][rank][example]."""
    train = read_manifest(corpus / "train.jsonl")
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(utterance.text for utterance in train)
    torch.manual_seed(config["seed"])
    model = build_model(config, tokenizer, features)
    augmentation = build_augmentation(config, features.sample_rate)
    settings = read(DataSettings, config["data"], "data").plan
    training_set = TrainingSet(train, features, model.reference, augmentation.speed, 0, settings)
    plan = training_set.epoch(start_of_epoch(0, world_size))
    dataset = SpeechDataset(train, features, model.reference, augmentation)
    examples = [
        [[dataset[item] for item in plan.items(step, rank)] for rank in range(world_size)] for step in range(len(plan))
    ]
    return model, examples


def gradients_of(model: Model, batches: list[Batch]) -> dict[str, Tensor]:
    """Sum the gradients of the losses of all batches; divide them by the number of tokens in all batches."""
    model.zero_grad()
    for batch in batches:
        encoded = model(batch.features, batch.feature_lengths)
        model.head.losses(encoded, batch.targets)["loss"].sum().backward()
    tokens = sum(int(batch.token_lengths.sum()) for batch in batches)
    return {name: parameter.grad / tokens for name, parameter in model.named_parameters()}  # type: ignore[operator]


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare in float32; the tolerance, relative to the largest gradient, allows for another order of summation."""
    scale = max(float(tensor.abs().max()) for tensor in expected.values())
    for name, tensor in expected.items():
        torch.testing.assert_close(
            actual[name], tensor, rtol=1e-4, atol=1e-5 * scale, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("norm", [pytest.param("layer_norm", marks=pytest.mark.slow), "masked_batch_norm"])
@pytest.mark.parametrize(
    ("world_size", "accumulate"),
    [*(pytest.param(*slow, marks=pytest.mark.slow) for slow in ((1, 1), (1, 3), (2, 1))), (2, 3)],
)
def test_gradients_equal_those_of_the_global_batch(
    norm: str, world_size: int, accumulate: int, tones: Path, tmp_path: Path
) -> None:
    distributed = ["trainer.strategy=ddp", "trainer.devices=2"] if world_size > 1 else []
    overrides = [*TINY, *tone_corpus(tones), *STILL, *distributed, f"encoder/block/norm={norm}", "num_threads=1"]
    config = resolved(*overrides, f"trainer.accumulate_grad_batches={accumulate}", f"run_dir={tmp_path / 'run'}")
    folder = tmp_path / "gradients"
    folder.mkdir()
    processes = start(config, tmp_path / "log", world_size=world_size, before=partial(keep_gradients, folder))
    assert finish(processes) == 0, (tmp_path / "log").read_text()

    model, examples = planned(config, tones, world_size)
    windows = [examples[start : start + accumulate] for start in range(0, len(examples), accumulate)]
    steps = saved_steps(folder)
    assert len(steps) == len(windows) > 3
    sizes = {len(share) for step in examples for share in step}
    assert len(sizes) > 1, "batches must be of different sizes"
    assert accumulate == 1 or len(windows[-1]) < accumulate, "the last accumulation window must be shorter"
    for (gradients, buffers), window in zip(steps, windows, strict=True):
        if norm == "layer_norm":  # one utterance at a time
            batches = [collate([example]) for step in window for share in step for example in share]
        else:  # for each step of the accumulation window, the batches of all ranks as one batch
            batches = [collate([example for share in step for example in share]) for step in window]
        assert_same(gradients, gradients_of(model, batches))
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[name], buffer, rtol=1e-4, atol=1e-5, msg=name)
