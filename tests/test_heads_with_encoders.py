"""Every encoder with every head: all weights have gradients, and a resumed run gives bit-identical results."""

import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.apps.check.heads import check_blocks, check_gradients, check_taps
from asr.apps.check.network import SMALL as SMALL_ENCODER
from asr.apps.check.network import model_of
from asr.components.encoder.transformer import Transformer
from asr.core.build import build_features, build_model, build_tokenizer, component
from asr.core.data.batch import Example, collate
from asr.core.data.manifest import Utterance
from asr.errors import InputError
from tests.conftest import CONF, ENCODERS, SMALLEST_ENCODERS, STACKS, overridden, resolved, tone_corpus
from tests.processes import bundle, die_at_save, finish, metrics, resumptions, start
from tests.refusals import refused

HEADS = sorted(path.stem for path in (CONF / "head").glob("*.yaml"))
SMALL = {
    "tdt": ["head.joint_dim=32", "head.predictor.dim=16", "head.omega=0.5"],
    "transducer": ["head.joint_dim=32", "head.predictor.dim=16"],
    "ctc_intermediate_espnet": ["head.num_intermediate=1"],
    "ctc_self_conditioned": ["head.num_intermediate=1"],
}


def slow_but(fast: list[tuple[str, ...]], *groups: list[str]) -> Any:
    """Return all pairs of the two groups; those that are not in `fast` are marked slow."""
    pairs = [(first, second) for first in groups[0] for second in groups[1]]
    return [pytest.param(*pair, marks=() if pair in fast else pytest.mark.slow) for pair in pairs]


TINY_ENCODER = {  # each encoder has only some of these keys
    **STACKS,
    "dim": 32,
    "num_layers": 2,
    "dropout": 0.1,
    "segment": 32,
    "block": {"num_heads": 2, "feed_forward_factor": 2, "dropout": 0.1, "convolution": {"kernel_size": 7}},
    "subsampling": {"num_channels": 8, "channels": [4, 4, 8], "dropout": 0.0},
}
RESUMED = [
    *([f"head={head}", *SMALL.get(head, [])] for head in HEADS),
    *(
        [f"encoder={name}", *([] if {"num_layers", "layers"} & {*ENCODERS[name]} else ["head=ctc"])]  # no blocks to tap
        for name in SMALLEST_ENCODERS
    ),
]


@pytest.mark.parametrize(
    ("chosen", "world_size"),
    [
        pytest.param(each, size, marks=() if (each, size) == (["head=ctc_consistency"], 1) else pytest.mark.slow)
        for each in RESUMED
        for size in (1, 2)
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
@pytest.mark.slow
def test_a_killed_and_resumed_run_gives_bit_identical_results(
    chosen: list[str], world_size: int, tones: Path, tmp_path: Path
) -> None:
    """Runs have one or two processes, and a moving average of the weights."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    overrides = [*tone_corpus(tones), *chosen, "corpus.test=[]", "num_threads=1", "ema.decay=0.9"]
    overrides += ["augment=[speed_perturb,spec_augment]", "trainer.max_epochs=2", "data.batch_seconds=16"]
    overrides += ["checkpoint.every_steps=2", "trainer.check_val_every_n_epoch=2", "data.sorted_epochs=0"]
    if world_size > 1:
        overrides += ["trainer.strategy=ddp", f"trainer.devices={world_size}"]

    def run(run_dir: Path, before: Callable[[], object] | None = None) -> list[BaseProcess]:
        config = resolved(*overrides, f"run_dir={run_dir}")
        config["encoder"] = overridden(config["encoder"], TINY_ENCODER)
        return start(config, tmp_path / "log", world_size=world_size, before=before)

    assert finish(run(whole)) == 0, (tmp_path / "log").read_text()
    assert finish(run(parts, partial(die_at_save, 2))) == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert finish(run(parts)) == 0
    assert [step > 0 for step, _ in resumptions(parts)] == [True]
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)


@pytest.mark.parametrize(("encoder", "head"), slow_but([("transformer", "transducer")], [*ENCODERS], HEADS))
def test_every_head_trains_every_weight_of_every_encoder(encoder: str, head: str) -> None:
    # Of two layers, all may be dead.
    small = {"dim": 16, "num_layers": 4, "subsampling": {"num_channels": 16}, "block": {"num_heads": 2}, **STACKS}
    config = resolved(f"encoder={encoder}", f"head={head}")
    config["encoder"] = overridden(config["encoder"], small)
    tokenizer, features = build_tokenizer(config), build_features(config)
    encoder = component("encoder", config["encoder"])(features.dim)
    if "num_intermediate" in config["head"] and not encoder.named_blocks():
        pytest.skip("the encoder has no blocks that the head could tap")
    tokenizer.fit(["abcdef "])
    model = build_model(config, tokenizer, features)
    check_gradients(model)


@pytest.mark.parametrize("encoder", SMALLEST_ENCODERS)
@torch.no_grad()
def test_an_encoded_batch_carries_its_conditions_and_its_numbers_of_frames(encoder: str) -> None:
    config = resolved(f"encoder={encoder}", "head=ctc")
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abcdef "])
    model = build_model(config, tokenizer, features).eval()
    utterance = Utterance("a.flac", 1.0, "a", "a")
    examples = [Example(utterance, torch.randn(frames, features.dim), torch.tensor([1])) for frames in (90, 7, 61)]
    conditions = {"language": torch.tensor([1, 0, 2])}
    encoded = model.encode(replace(collate(examples), conditions=conditions))
    assert encoded.num_frames == encoded.frame_counts == tuple(encoded.lengths.tolist())
    assert torch.equal(encoded.conditions["language"], conditions["language"])


@pytest.mark.parametrize("encoder", SMALLEST_ENCODERS)
def test_a_tap_changes_the_input_of_the_next_block_and_the_unchanged_output_is_returned(encoder: str) -> None:
    model = model_of(overridden(resolved(f"encoder={encoder}")["encoder"], SMALL_ENCODER), {"name": "ctc"}).eval()
    if len(model.encoder.named_blocks()) < 2:
        pytest.skip("the encoder has no block after a tapped block")
    check_taps(model)


@pytest.mark.parametrize("encoder", SMALLEST_ENCODERS)
def test_an_encoder_names_its_blocks_and_their_dimensions_and_strides_are_those_of_their_outputs(encoder: str) -> None:
    check_blocks(model_of(overridden(resolved(f"encoder={encoder}")["encoder"], SMALL_ENCODER), {"name": "ctc"}).eval())


def test_an_encoder_that_ignores_the_taps_of_a_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolved("encoder=transformer", "encoder.num_layers=4", "encoder.dim=16", "encoder.block.num_heads=2")
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abcdef "])
    model = build_model(config, tokenizer, features)
    encode = Transformer.forward
    monkeypatch.setattr(Transformer, "forward", lambda self, features, lengths, taps: encode(self, features, lengths))
    with refused(InputError, "Transformer.forward; got none"):
        model(torch.randn(1, 90, features.dim), torch.tensor([90]))
