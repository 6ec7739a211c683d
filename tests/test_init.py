"""Starting from a trained model: what is taken, what is replaced by name, what is frozen, and the account of it."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asr.build import build_features, build_model, build_tokenizer
from asr.errors import InputError
from asr.run.initialization import Initialization, freeze, with_parts
from asr.train import train
from tests.conftest import TINY, resolved, tone_corpus
from tests.test_train import losses


def start_config(model: Path, *overrides: str) -> dict[str, Any]:
    """A config as the command line would make it."""
    given = [f"init.from={model}", *overrides]
    return with_parts(resolved(*given), given)


def fresh(config: dict[str, Any], texts: list[str]) -> Any:
    tokenizer = build_tokenizer(config)
    tokenizer.fit(texts)
    return build_model(config, tokenizer, build_features(config))


def test_the_parts_of_the_config_are_the_models_but_for_what_is_replaced_by_name(fluent: Path) -> None:
    own = start_config(fluent / "run")
    assert own["encoder"]["dim"] == 32, "and not conf's 144"
    assert own["optimizer"] == resolved()["optimizer"]
    other = start_config(fluent / "run", "head=ctc", "encoder.dropout=0.25", "encoder/norm=layer_norm")
    assert other["head"] == {"name": "ctc"}
    assert other["encoder"]["dim"] == 32
    assert other["encoder"]["dropout"] == 0.25
    assert other["encoder"]["norm"]["name"] == "layer_norm"


def test_every_tensor_is_taken_and_training_goes_on_from_there(fluent: Path, tones: Path, tmp_path: Path) -> None:
    weights = load_file(fluent / "run" / "bundle" / "weights.safetensors")
    settings = [*(line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment"))), "seed=7"]
    common = [*settings, *tone_corpus(tones), "trainer.max_steps=3", "optimizer.lr=0.0"]
    given = [*common, f"init.from={fluent / 'run'}", f"run_dir={tmp_path / 'run'}"]
    train(with_parts(resolved(*given), given))
    after = load_file(tmp_path / "run" / "bundle" / "weights.safetensors")
    assert after.keys() == weights.keys()
    still = [name for name in weights if "running" not in name]
    assert all(torch.equal(after[name], weights[name]) for name in still), "a learning rate of 0"
    assert losses(tmp_path / "run")[0] < 0.5, "it hears the tones from the first step on"


def test_a_new_tokenizer_keeps_the_rows_of_the_pieces_that_both_have(
    fluent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = start_config(fluent / "run", "tokenizer=char")
    start = Initialization.of(config)
    assert start is not None
    bundle = start.bundle.weights
    model = fresh(config, ["zyx abc"])
    old = build_tokenizer(start.bundle.config)
    old.load(start.bundle.files)
    with caplog.at_level(logging.INFO, "asr"):
        start.load(model)
    weight, rows = model.head.ctc.linear.weight, bundle["head.ctc.linear.weight"]
    both = 0
    for token, piece in enumerate(model.tokenizer.pieces):
        if piece in old.pieces:
            both += 1
            assert torch.equal(weight[token], rows[list(old.pieces).index(piece)])
        else:
            torch.testing.assert_close(weight[token], rows.mean(dim=0))
    assert 1 < both < model.tokenizer.vocab_size
    assert f"of {model.tokenizer.vocab_size} tokens {both} are the model's" in caplog.text


def test_another_head_is_fresh_and_named_and_another_size_is_an_error(
    fluent: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = start_config(fluent / "run", "head=ctc")
    start = Initialization.of(config)
    assert start is not None
    with caplog.at_level(logging.INFO, "asr"):
        start.load(fresh(config, ["abc"]))
    assert "2 fresh (head.linear.bias, head.linear.weight)" in caplog.text
    assert "2 not used (head.ctc.linear.bias, head.ctc.linear.weight)" in caplog.text
    wider = start_config(fluent / "run", "encoder.dim=64")
    with pytest.raises(InputError, match=r"a setting that shapes a model must be its own; \S+ is \(.*\) there and"):
        start.load(fresh(wider, ["abc"]))


def test_frozen_weights_and_their_running_statistics_stay(fluent: Path, tones: Path, tmp_path: Path) -> None:
    settings = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment"))]
    common = [*settings, *tone_corpus(tones), "trainer.max_steps=3", "init.frozen=[encoder.*]"]
    given = [*common, f"init.from={fluent / 'run'}", f"run_dir={tmp_path / 'run'}"]
    train(with_parts(resolved(*given), given))
    before = load_file(fluent / "run" / "bundle" / "weights.safetensors")
    after = load_file(tmp_path / "run" / "bundle" / "weights.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.ctc.linear.weight", "head.ctc.linear.bias"}


def test_a_pattern_that_fits_nothing_or_everything_is_one_line(fluent: Path) -> None:
    model = fresh(start_config(fluent / "run"), ["abc"])
    with pytest.raises(InputError, match=r"init\.frozen must name weights, such as .*; got 'decoder\.\*'\."):
        freeze(model, ["decoder.*"])
    with pytest.raises(InputError, match=r"init\.frozen must leave weights to train; got \*\."):
        freeze(model, ["*"])


def test_a_part_cannot_be_removed(fluent: Path) -> None:
    with pytest.raises(InputError, match=r"can be replaced and not removed; got ~encoder\.norm\."):
        with_parts(resolved(f"init.from={fluent / 'run'}"), ["~encoder.norm"])


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a model must be a run folder, a bundle or a \.ckpt; it does not exist"):
        start_config(tmp_path / "nothing")
