"""Training in each precision and with each file of conf/trainer: validation, resumption, bundle and texts.

All tests run on a CPU, where autocast has the dtypes of a GPU and would raise the same type errors.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asr.core.checkpoint.load import load_recognizer
from asr.core.run.settings import read_run_settings
from asr.core.training.trainer import make_trainer
from asr.errors import InputError
from asr.train import train
from tests.conftest import CONF, TINY, resolved, settings_with, tone_corpus
from tests.processes import bundle, finish, start
from tests.refusals import refused
from tests.test_heads_with_decoders import ALONE, DECODERS, HEADS, OWN, RECORDING, SMALL, chosen, small
from tests.test_train import losses

TRAINERS = sorted(path.stem for path in (CONF / "trainer").glob("*.yaml"))
ON_ONE_CPU = ["trainer.accelerator=cpu", "trainer.devices=1", "trainer.strategy=auto"]
STEPS, ALL_STEPS = 2, 4


def config(corpus: Path, run_dir: Path, *overrides: str) -> dict[str, Any]:
    common = [
        *TINY,
        *SMALL,
        *tone_corpus(corpus),
        "trainer.check_val_every_n_epoch=1",
        "data.max_train_utterances=8",
        "data.batch_seconds=100",
    ]
    return small(resolved(*common, "trainer.max_epochs=-1", *overrides, f"run_dir={run_dir}"))


def trained_in_two_parts(corpus: Path, folder: Path, *overrides: str) -> Path:
    """Train with and without an interruption, and check that the weights are equal; return the interrupted run."""
    for name, parts in (("whole", [ALL_STEPS]), ("parts", [STEPS, ALL_STEPS])):
        for steps in parts:
            until = [f"trainer.max_steps={steps}", "resume.allow=[trainer.max_steps]"]
            train(read_run_settings(config(corpus, folder / name, *until, *overrides)))
    whole, parts = (load_file(folder / name / "bundle" / "weights.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(weights, parts[name]) for name, weights in whole.items())
    return folder / "parts"


def assert_validated_and_usable(run_dir: Path) -> None:
    recognizer = load_recognizer(run_dir)
    assert {weight.dtype for weight in recognizer.model.state_dict().values() if weight.is_floating_point()} == {
        torch.float32
    }
    assert recognizer.transcribe([RECORDING], sample_rate=16_000)[0].duration == pytest.approx(len(RECORDING) / 16_000)
    assert json.loads((run_dir / "results.json").read_text())["test"]["utterances"] == 8
    assert "valid/wer" in (run_dir / "metrics.csv").read_text().splitlines()[0]


@pytest.mark.parametrize(
    "trainer", [pytest.param(name, marks=[pytest.mark.slow] * (name != "gpu")) for name in TRAINERS]
)
def test_each_file_of_conf_trainer_trains_validates_and_resumes(trainer: str, tones: Path, tmp_path: Path) -> None:
    run_dir = trained_in_two_parts(tones, tmp_path, f"trainer={trainer}", *ON_ONE_CPU, "compile_blocks=false")
    assert_validated_and_usable(run_dir)


@pytest.mark.parametrize(
    "precision", ["bf16-mixed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("32-true", "32", "bf16"))]
)
def test_each_precision_of_a_cpu_trains_validates_and_resumes(precision: str, tones: Path, tmp_path: Path) -> None:
    assert_validated_and_usable(trained_in_two_parts(tones, tmp_path, f"trainer.precision={precision}"))


def test_half_precision_is_refused_on_a_cpu() -> None:
    with refused(InputError, "trainer.precision; got 16-mixed"):
        make_trainer(settings_with(*TINY, "trainer.precision=16-mixed"))


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "true", "8"])
def test_an_unknown_precision_is_refused(precision: str) -> None:
    with refused(InputError, "trainer.precision ... 32-true"):
        settings_with(f"trainer.precision={precision}")


def covering_pairs() -> list[Any]:
    """Return pairs of head and decoder that together contain every head and every decoder; one is fast."""
    of_heads = [(head, OWN.get(head, ("greedy",))[0]) for head in (*HEADS, *ALONE)]
    of_decoders = [(head, decode) for head in ("ctc", *OWN) for decode in OWN.get(head, DECODERS)]
    by_decoder = {decode: (head, decode) for head, decode in of_decoders}
    fast = [("tdt", "transducer_greedy")]
    others = [pair for pair in dict.fromkeys([*of_heads, *by_decoder.values()]) if pair not in fast]
    return [*fast, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in others)]


@pytest.mark.parametrize(("head", "decode"), covering_pairs())
def test_each_head_and_each_decoder_trains_in_bfloat16(head: str, decode: str, tones: Path, tmp_path: Path) -> None:
    overrides = [*chosen(head), f"decode={decode}", "encoder.num_layers=4", "trainer.precision=bf16-mixed"]
    assert_validated_and_usable(trained_in_two_parts(tones, tmp_path, *overrides))


def test_bfloat16_on_two_processes_with_a_moving_average_resumes_bit_identically(tones: Path, tmp_path: Path) -> None:
    common = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "ema.decay=0.9", "data.batch_seconds=3"]
    until = ["trainer.max_epochs=-1", "resume.allow=[trainer.max_steps]", "checkpoint.every_steps=1"]
    for name, parts in (("whole", [6]), ("parts", [3, 6])):
        for steps in parts:
            overrides = [*TINY, *tone_corpus(tones), *common, *until, f"trainer.max_steps={steps}"]
            running = start(resolved(*overrides, f"run_dir={tmp_path / name}"), tmp_path / "log", world_size=2)
            assert finish(running) == 0, (tmp_path / "log").read_text()
    assert bundle(tmp_path / "parts") == bundle(tmp_path / "whole")
    assert len(losses(tmp_path / "parts")) == 6
