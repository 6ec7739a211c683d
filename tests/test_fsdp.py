"""On two processes, FSDP has the same losses as DDP, can exchange checkpoints with it, and resumes exactly."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from asr.core.checkpoint.load import load_recognizer
from asr.core.checkpoint.saved import kept_checkpoints
from asr.core.data.manifest import read_manifest
from asr.core.recognition.transcript import Transcript
from asr.core.training.hydra_command import read_experiment
from asr.core.training.task import TrainingTask
from asr.errors import InputError
from tests.conftest import SMALLEST_ENCODERS, TINY, overridden, resolved, settings_with, tone_corpus
from tests.processes import bundle, examples, finish, kill, metrics, resumptions, start, steps_logged, wait_for
from tests.refusals import refused
from tests.test_heads_with_encoders import HEADS, SMALL, TINY_ENCODER
from tests.test_neural_lm_training import RUN as TEXT_RUN
from tests.test_neural_lm_training import SMALL as SMALL_TOKEN_MODELS
from tests.test_neural_lm_training import texts as texts  # import a fixture
from tests.test_resume import RUN

SHARDED = ["trainer.strategy=fsdp", "trainer.devices=2"]
SHORT = ["data.batch_seconds=5", "num_threads=1", "corpus.test=[]"]
# Neither the bias of the attention keys nor a bias before a batch norm changes the loss. The gradients of these biases
# are rounding errors, which Adam scales to steps of normal size, and running means of a batch norm depend on such a
# bias. A layer norm has no running mean.
NO_BATCH_NORM = "encoder/block/norm=layer_norm"


def trained(folder: Path, name: str, config: dict[str, Any], before: Callable[[], object] | None = None) -> Path:
    """Train on `trainer.devices` processes until the training ends; return the run folder."""
    run_dir, output = folder / name, folder / f"{name}.log"
    config = config | {"run_dir": str(run_dir)}
    world_size = config["trainer"]["devices"]
    assert finish(start(config, output, world_size=world_size, before=before)) == 0, output.read_text()
    return run_dir


def losses(run_dir: Path) -> list[float]:
    return [float(row["train/loss"]) for row in metrics(run_dir)]


def assert_equal_training(run_dir: Path, expected: Path, least: int = 10) -> None:
    """Compare two runs in float32, which compute gradients and their norm by sums in different orders."""
    assert len(losses(expected)) >= least
    assert losses(run_dir) == pytest.approx(losses(expected), abs=1e-5, rel=1e-5)
    for name in ("valid/wer", "valid/perplexity", "valid/loss"):
        values = [[float(row[name]) for row in metrics(folder) if row.get(name)] for folder in (run_dir, expected)]
        assert values[0] == pytest.approx(values[1], rel=1e-4), name
    texts = [[line.split('"hypothesis"')[1:] for line in examples(folder)] for folder in (run_dir, expected)]
    assert texts[0] == texts[1]


def keep_sizes(folder: Path) -> None:
    """Write how many elements of weights, gradients and moments each process stores, and the number of all weights."""
    divide = TrainingTask.configure_gradient_clipping

    def stored(tensor: Tensor) -> int:
        return tensor.to_local().numel() if isinstance(tensor, DTensor) else tensor.numel()

    def divide_and_keep(self: TrainingTask, optimizer: Any, *arguments: Any, **named: Any) -> None:
        divide(self, optimizer, *arguments, **named)
        weights = list(self.parameters())
        moments = [state["exp_avg"] for state in optimizer.state.values()]
        groups = weights, [weight.grad for weight in weights if weight.grad is not None], moments
        sizes = [sum(map(stored, group)) for group in groups]
        torch.save((sizes, sum(weight.numel() for weight in weights)), folder / f"{self.global_rank}.pt")

    TrainingTask.configure_gradient_clipping = divide_and_keep  # type: ignore[method-assign]


def test_fsdp_has_the_same_losses_as_ddp_and_each_process_stores_half_the_weights(tones: Path, tmp_path: Path) -> None:
    """The runs have dropout, gradient clipping and a moving average; one process can read the bundle."""
    chosen = [
        "encoder.block.dropout=0.1",
        "trainer.max_epochs=1",
        "ema.decay=0.9",
        "data.batch_seconds=4",
        NO_BATCH_NORM,
    ]
    config = partial(resolved, *TINY, *tone_corpus(tones), *SHORT, *chosen, "trainer.devices=2")
    ddp = trained(tmp_path, "ddp", config("trainer.strategy=ddp"))
    fsdp = trained(tmp_path, "fsdp", config("trainer.strategy=fsdp"), partial(keep_sizes, tmp_path))
    assert_equal_training(fsdp, ddp)
    for rank in range(2):
        sizes, total = torch.load(tmp_path / f"{rank}.pt")
        assert sizes == [pytest.approx(total / 2, rel=0.01)] * 3
    recognizer = load_recognizer(fsdp)
    assert recognizer.model.state_dict().keys() == load_recognizer(ddp).model.state_dict().keys()
    [(_, transcript)] = recognizer.recognize(read_manifest(tones / "valid.jsonl")[:1])
    assert isinstance(transcript, Transcript)


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        ["trainer.accumulate_grad_batches=3"],
        ["trainer.gradient_clip_val=null"],
        ["gradient_checkpointing=true"],
        ["init.frozen=[encoder.subsampling.*,encoder.blocks.0.*]", "init.frozen_steps=4"],
        ["init.frozen=[encoder.subsampling.*,encoder.blocks.0.*]", "ema.decay=0.9"],
        ["encoder/block/activation=learnt_swish"],  # its weight is a scalar
        ["optimizer.layer_decay=0.8"],
        ["optimizer=muon"],
        ["optimizer=scaled_adam", "optimizer.lr=4.5e-2"],
    ],
    ids=lambda chosen: chosen[0],
)
def test_with_each_setting_fsdp_has_the_same_losses_as_ddp(chosen: list[str], tones: Path, tmp_path: Path) -> None:
    settings = [*TINY, *tone_corpus(tones), *SHORT, "trainer.max_epochs=3", "data.batch_seconds=4", NO_BATCH_NORM]
    config = partial(resolved, *settings, *chosen, "trainer.devices=2")
    runs = {name: trained(tmp_path, name, config(f"trainer.strategy={name}")) for name in ("ddp", "fsdp")}
    assert_equal_training(runs["fsdp"], runs["ddp"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        *([f"head={head}", *SMALL.get(head, [])] for head in HEADS),
        *([f"encoder={name}"] for name in SMALLEST_ENCODERS if name != "transformer_xl"),
    ],
    ids=lambda chosen: chosen[0],
)
def test_with_every_head_and_every_encoder_fsdp_has_the_same_losses_as_ddp(
    chosen: list[str], tones: Path, tmp_path: Path
) -> None:
    settings = [*tone_corpus(tones), *SHORT, *chosen, "augment=[]", "trainer.max_epochs=2", "trainer.accelerator=cpu"]
    runs = {}
    for name in ("ddp", "fsdp"):
        config = resolved(*settings, "trainer.log_every_n_steps=1", f"trainer.strategy={name}", "trainer.devices=2")
        config["encoder"] = overridden(config["encoder"], TINY_ENCODER)
        runs[name] = trained(tmp_path, name, config)
    assert losses(runs["fsdp"]) == pytest.approx(losses(runs["ddp"]), abs=1e-4, rel=1e-5)
    assert len(losses(runs["ddp"])) >= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    ["trainer.precision=32-true", "trainer.precision=bf16-mixed", "optimizer=muon", "optimizer=scaled_adam"],
)
def test_a_run_that_is_killed_and_resumed_gives_bit_identical_results(chosen: str, tones: Path, tmp_path: Path) -> None:
    """The run has batch statistics, dropout, augmentation, accumulation and a moving average."""
    output = tmp_path / "parts.log"
    overrides = [*RUN, *tone_corpus(tones), *SHARDED, chosen]
    whole, parts = trained(tmp_path, "whole", resolved(*overrides)), tmp_path / "parts"
    for steps in (4, 3):
        until = steps_logged(parts) + steps
        running = start(resolved(*overrides, f"run_dir={parts}"), output, world_size=2)
        assert wait_for(lambda until=until: steps_logged(parts) > until, running), output.read_text()  # type: ignore[misc]
        kill(running)
    assert trained(tmp_path, "parts", resolved(*overrides)) == parts
    assert [step > 0 for step, _ in resumptions(parts)] == [True, True]
    assert any(batch > 1 for _, batch in resumptions(parts)), "a run must resume in the middle of an epoch"
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)


@pytest.mark.slow
def test_a_checkpoint_of_fsdp_resumes_with_ddp_and_the_other_way_round(tones: Path, tmp_path: Path) -> None:
    """Both strategies write complete tensors, and optimizer states of the same form."""
    overrides = [
        *TINY,
        *tone_corpus(tones),
        *SHORT,
        "ema.decay=0.9",
        "resume.allow=[trainer.max_epochs]",
        NO_BATCH_NORM,
    ]
    config = partial(resolved, *overrides, "trainer.devices=2")
    # Both runs end and resume after each epoch, because the learning rate depends on trainer.max_epochs.
    for name, strategies in (("ddp", ("ddp", "ddp", "ddp")), ("both", ("fsdp", "ddp", "fsdp"))):
        for epochs, strategy in enumerate(strategies, start=1):
            trained(tmp_path, name, config(f"trainer.strategy={strategy}", f"trainer.max_epochs={epochs}"))
    assert [step > 0 for step, _ in resumptions(tmp_path / "both")] == [True, True]
    assert_equal_training(tmp_path / "both", tmp_path / "ddp", least=30)


@pytest.mark.slow
def test_a_run_resumes_on_another_number_of_processes_if_that_is_permitted(tones: Path, tmp_path: Path) -> None:
    overrides = [*TINY, *tone_corpus(tones), *SHORT, "trainer.strategy=fsdp", "trainer.max_epochs=2", "ema.decay=0.9"]
    run_dir, output = tmp_path / "run", tmp_path / "run.log"
    running = start(
        resolved(*overrides, "trainer.devices=2", "checkpoint.every_steps=1", f"run_dir={run_dir}"),
        output,
        world_size=2,
    )
    assert wait_for(lambda: steps_logged(run_dir) > 3, running), output.read_text()
    kill(running)
    one = [*overrides, "trainer.devices=1", "checkpoint.every_steps=1"]
    assert finish(start(resolved(*one, f"run_dir={run_dir}"), tmp_path / "refused.log")) == 1
    refusal = (tmp_path / "refused.log").read_text()
    assert refusal.count("error: ") == 1
    assert "world_size: 2 -> 1" in refusal
    trained(tmp_path, "run", resolved(*one, "resume.allow=[world_size]"))
    assert [step > 0 for step, _ in resumptions(run_dir)] == [True]
    assert load_recognizer(run_dir).model.state_dict()


@pytest.mark.slow
def test_on_one_process_fsdp_does_not_change_the_losses(tones: Path, tmp_path: Path) -> None:
    config = partial(resolved, *TINY, *tone_corpus(tones), *SHORT, "trainer.max_epochs=1", "ema.decay=0.9")
    plain, fsdp = trained(tmp_path, "plain", config()), trained(tmp_path, "fsdp", config("trainer.strategy=fsdp"))
    assert losses(fsdp) == pytest.approx(losses(plain), abs=1e-5)
    assert load_recognizer(fsdp).model.state_dict().keys() == load_recognizer(plain).model.state_dict().keys()


@pytest.mark.slow
def test_an_adapter_trains_and_resumes_with_fsdp(fluent: Path, tones: Path, tmp_path: Path) -> None:
    """Checkpoints of an adapter do not contain the frozen weights; a resumed run gets them from the base."""
    overrides = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment", "checkpoint"))]
    overrides += [*tone_corpus(tones), *SHARDED, f"init.from={fluent / 'run'}", "adapter=lora", "adapter.rank=2"]
    overrides += ["adapter.alpha=4", "ema.decay=0.9", "resume.allow=[trainer.max_epochs]"]

    def config(*more: str) -> dict[str, Any]:
        from asr.base.settings.read import as_mapping
        from asr.core.run.initialization import with_parts

        given = [*overrides, *more]
        return dict(as_mapping(with_parts(settings_with(*given), given)))

    for epochs in (1, 2):
        run_dir = trained(tmp_path, "run", config(f"trainer.max_epochs={epochs}"))
    assert [step > 0 for step, _ in resumptions(run_dir)] == [True]
    saved = torch.load(kept_checkpoints(run_dir / "checkpoints")[-1].path, weights_only=True)
    assert all(name.endswith((".lora_a", ".lora_b")) for name in saved["state_dict"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_TOKEN_MODELS)
def test_for_a_language_model_fsdp_has_the_same_losses_as_ddp(name: str, texts: list[str], tmp_path: Path) -> None:
    overrides = [*TEXT_RUN, *texts, *SMALL_TOKEN_MODELS[name], "trainer.devices=2"]
    runs = {
        strategy: trained(tmp_path, strategy, resolved(*overrides, f"trainer.strategy={strategy}", root="train_lm"))
        for strategy in ("ddp", "fsdp")
    }
    assert_equal_training(runs["fsdp"], runs["ddp"])


@pytest.mark.parametrize(
    ("override", "refusal"),
    [
        ("compile_blocks=true", "compile_blocks; got true"),
        ("encoder=transformer_xl", "trainer.strategy; got fsdp"),
        ("trainer.precision=16-mixed", "trainer.precision; got 16-mixed"),
    ],
)
def test_settings_that_fsdp_does_not_support_are_refused(override: str, refusal: str) -> None:
    with refused(InputError, refusal):
        settings_with("trainer.strategy=fsdp", override)


def test_training_a_language_model_with_fsdp_in_half_precision_is_refused() -> None:
    overrides = [
        "trainer.strategy=fsdp",
        "trainer.precision=16-mixed",
        "recognizer=x",
        "text.train=[a]",
        "text.valid=[a]",
    ]
    with refused(InputError, "trainer.precision ... 32-true"):
        read_experiment(resolved(*overrides, root="train_lm"), [])
