"""The share of the initial model in a fine-tuned model: the weights, the choice, and runs that use it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from asr.apps.finetune.share import SHARES, ShareLosses, choose, joined, losses
from asr.core.build import build_tokenizer
from asr.core.checkpoint.averaging import with_share_of
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import load_recognizer, read_model
from asr.core.data.batch import collate
from asr.core.data.dataset import Item, SpeechDataset
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.data.split import halves
from asr.core.run.initialization import with_parts
from asr.errors import InputError
from asr.merge import main as merge_main
from asr.train import train
from benchmarks.shares import draw
from tests.conftest import settings_with, tone_corpus
from tests.refusals import refused
from tests.test_lora_training import SHORT, settings


def bundle_with(pieces: list[str], weights: dict[str, Tensor]) -> Bundle:
    """A bundle of which only the tokens and the weights matter."""
    config: dict[str, Any] = {"tokenizer": {"name": "char"}}
    tokenizer = build_tokenizer(config)
    tokenizer.fit(["ab"])
    tokenizer.extend(pieces)
    return Bundle(config, tokenizer.files(), weights, "")


def test_weights_between_two_models_leave_out_what_the_initial_model_does_not_have() -> None:
    old, new = bundle_with([], {}), bundle_with(["X", "Y"], {})
    sizes = []
    for bundle in (old, new):
        tokenizer = build_tokenizer(bundle.config)
        tokenizer.load(bundle.files)
        sizes.append(len(list(tokenizer.names)))
    assert sizes[1] == sizes[0] + 2

    def weights(size: int, value: float) -> dict[str, Tensor]:
        return {
            "encoder.weight": torch.full((3, 3), value),
            "encoder.norm.running_mean": torch.full((3,), value),
            "head.linear.weight": torch.full((size, 3), value),
            "head.embedding.weight": torch.full((3, size), value),
            "head.joiner.output.bias": torch.full((size + 5,), value),
            "head.hidden": torch.full((3, 3), value),
        }

    old = replace(old, weights=weights(sizes[0], 0.0))
    new = replace(new, weights={**weights(sizes[1], 1.0), "head.fresh": torch.ones(2)})
    mixed = with_share_of(old, new, 0.25)
    for name in ("encoder.weight", "encoder.norm.running_mean", "head.hidden"):
        assert torch.equal(mixed[name], torch.full_like(mixed[name], 0.75))
    assert torch.equal(mixed["head.fresh"], torch.ones(2))
    rows = [mixed["head.linear.weight"], mixed["head.embedding.weight"].T, mixed["head.joiner.output.bias"][:, None]]
    for row in rows:
        assert (row.eq(0.75).sum(dim=0) == len(row) - 2).all(), "but for the two new tokens"
        assert (row.eq(1.0).sum(dim=0) == 2).all()


def losses_of(*means: float, noise: float = 0.0, number: int = 50) -> ShareLosses:
    """Losses with these means for the six shares; the noise of an utterance grows with the distance from share 1."""
    generator = np.random.default_rng(0)
    drift = generator.normal(size=number) * noise
    drift -= drift.mean()
    values = np.array([mean + (1 - share) * drift for mean, share in zip(means, SHARES, strict=True)])
    return ShareLosses(values, np.ones(number))


@pytest.mark.parametrize(
    ("data", "keep", "may_be_initial", "expected"),
    [
        (losses_of(1.0, 1.2, 1.4, 1.6, 1.8, 2.0), None, True, 0.0),
        (losses_of(2.0, 1.8, 1.6, 1.4, 1.2, 1.0), None, True, 1.0),
        (losses_of(2.0, 1.8, 1.6, 1.4, 1.2, 1.0), None, False, 0.75),
        (losses_of(1.4, 1.2, 1.0, 1.2, 1.4, 1.6), None, True, 0.3),
        (losses_of(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, noise=5.0), None, True, 1.0),  # too few utterances to tell
        (losses_of(1.0, 1.05, 1.15, 1.4, 1.7, 2.0, noise=5.0), None, True, 0.15),  # a tenth of the gain may be lost
        (losses_of(1.0, 1.0, 1.02, 1.03, 1.7, 2.0, noise=0.1), None, True, 0.15),  # a standard error is less
        (losses_of(1.0, 1.2, 1.4, 1.6, 1.8, 2.0), losses_of(2.0, 1.8, 1.6, 1.0, 1.0, 1.0), True, 0.5),
        (losses_of(1.0, 1.2, 1.4, 1.6, 1.8, 2.0), losses_of(1.04, 1.029, 1.02, 1.01, 1.01, 1.0), True, 0.15),
        (losses_of(1.0, 1.2, 1.4, 1.6, 1.8, 2.0), losses_of(2.0, 1.8, 1.6, 1.4, 1.2, 1.0), True, 1.0),
        (losses_of(1.0, 1.2, 1.4, 1.6, 1.8, 2.0), losses_of(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, noise=5.0), True, 0.0),
    ],
)
def test_the_share_is_the_largest_that_gains_as_much_as_can_be_told_and_forgets_nothing(
    data: ShareLosses, keep: ShareLosses | None, may_be_initial: bool, expected: float
) -> None:
    choice = choose(data, keep, may_be_initial)
    assert choice.share == expected
    assert [row["share"] for row in choice.rows] == list(SHARES)


def utterances(number: int, speakers: int) -> list[Utterance]:
    return [
        Utterance(
            id=f"u{each:02}",
            text=f"text {each}",
            audio_filepath=f"{each}.wav",
            duration=2.0,
            speaker=f"s{each % speakers}" if speakers else None,
        )
        for each in range(number)
    ]


@pytest.mark.parametrize(("number", "speakers"), [(20, 0), (21, 7), (60, 12), (30, 1)])
def test_halves_have_each_utterance_once_and_other_speakers(number: int, speakers: int) -> None:
    given = utterances(number, speakers)
    first, second = halves(given, seed=3)
    assert sorted(each.id for each in [*first, *second]) == sorted(each.id for each in given)
    assert min(len(first), len(second)) > number / 3
    if speakers > 4:
        assert not {each.speaker for each in first} & {each.speaker for each in second}
    assert (first, second) == halves(given[::-1], seed=3)


@pytest.fixture(scope="module")
def trained(fluent: Path, tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that trained all weights of the model in `fluent` for a few steps."""
    run_dir = tmp_path_factory.mktemp("share") / "run"
    train(whole_settings(tones, fluent, run_dir))
    return run_dir


def whole_settings(tones: Path, fluent: Path, run_dir: Path, *more: str) -> Any:
    hot = ["optimizer.lr=3e-3", "schedule.warmup_steps=0", "trainer.max_steps=6", "checkpoint.select=last"]
    given = [*SHORT, *tone_corpus(tones), f"init.from={fluent / 'run'}", f"run_dir={run_dir}", *hot, *more]
    return with_parts(settings_with(*given), given)


def test_the_losses_of_a_share_are_those_of_the_model_with_these_weights(
    trained: Path, fluent: Path, tones: Path
) -> None:
    given = read_manifest(tones / "test.jsonl")[:6]
    initial, model = read_model(fluent / "run"), read_model(trained)
    computed = losses(initial, model, given, whole_settings(tones, fluent, trained), torch.device("cpu"))
    assert computed.values.shape == (len(SHARES), len(given))
    recognizer = load_recognizer(trained).model
    dataset = SpeechDataset(given, recognizer.features, recognizer.reference.for_evaluation())
    for row, share in enumerate(SHARES):
        mixed = {
            name: weight if share == 0 else ((1 - share) * weight.double() + share * initial.weights[name].double())
            for name, weight in model.weights.items()
        }
        recognizer.load_state_dict(mixed)
        expected = []
        for number in range(len(given)):
            batch = collate([dataset[Item(0, number, 1.0)]])
            with torch.no_grad():
                expected.append(float(recognizer.head.losses(recognizer.encode(batch), batch.targets)["loss"][0]))
        assert np.allclose(sorted(computed.values[row]), sorted(expected), rtol=1e-3, atol=1e-4)
    both = joined(computed, computed)
    assert both.values.shape == (len(SHARES), 2 * len(given))
    assert both.per_token() == pytest.approx(computed.per_token())


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "weights.safetensors")


def test_a_run_that_has_ended_takes_another_share_without_training(
    trained: Path, fluent: Path, tones: Path, tmp_path: Path
) -> None:
    before = weights(trained / "bundle")
    checkpoints = sorted(path.name for path in (trained / "checkpoints").iterdir())
    train(whole_settings(tones, fluent, trained, "init.share=0.25"))
    after, start = weights(trained / "bundle"), weights(fluent / "run" / "bundle")
    assert checkpoints == sorted(path.name for path in (trained / "checkpoints").iterdir())
    for name, weight in before.items():
        expected = (0.75 * weight.double() + 0.25 * start[name].double()).to(weight.dtype)
        assert torch.equal(after[name], expected), name
    assert "0.25" in (trained / "bundle" / "README.md").read_text()
    train(whole_settings(tones, fluent, trained))
    assert all(torch.equal(weight, before[name]) for name, weight in weights(trained / "bundle").items())


def test_an_adapter_with_a_share_is_merged_with_it(fluent: Path, tones: Path, tmp_path: Path) -> None:
    hot = ["optimizer.lr=0.1", "schedule.warmup_steps=0", "trainer.max_steps=4", "checkpoint.select=last"]
    base = ["--base", str(fluent / "run")]
    merged = {}
    for share in ("0", "0.5"):
        run_dir = tmp_path / share
        train(settings(tones, fluent / "run", run_dir, *hot, f"init.share={share}"))
        merge_main([str(run_dir), *base, "-o", str(tmp_path / f"merged {share}")])
        merged[share] = weights(tmp_path / f"merged {share}")
    merge_main([str(tmp_path / "0"), *base, "--share", "0.5", "-o", str(tmp_path / "by hand")])
    by_hand = weights(tmp_path / "by hand")
    assert all(torch.equal(weight, by_hand[name]) for name, weight in merged["0.5"].items())
    assert any(not torch.equal(weight, merged["0"][name]) for name, weight in by_hand.items())


@pytest.mark.parametrize("share", [True, 1.0, -0.1, "half"])
def test_a_damaged_share_of_an_adapter_is_refused(share: Any, fluent: Path, tones: Path, tmp_path: Path) -> None:
    train(settings(tones, fluent / "run", tmp_path / "run", "trainer.max_steps=1", "init.share=0.5"))
    config = tmp_path / "run" / "bundle" / "config.json"
    content = json.loads(config.read_text())
    content["base"]["share"] = share
    config.write_text(json.dumps(content))
    with refused(InputError, "share"):
        read_model(tmp_path / "run", fluent / "run")


@pytest.mark.parametrize("overrides", [["init.share=0.3"], ["init.from=model", "init.share=1"]])
def test_a_share_needs_a_model_and_is_less_than_one(overrides: list[str]) -> None:
    with refused(InputError, "init.share"):
        settings_with(*overrides)


def test_clips_are_drawn_by_speaker_and_by_seed() -> None:
    given = utterances(100, 10)
    drawn = draw(given, clips=20, of_speaker=5, seed=1)
    assert len({each.id for each in drawn}) == 20
    assert len({each.speaker for each in drawn}) == 4
    assert drawn == draw(given, clips=20, of_speaker=5, seed=1) != draw(given, clips=20, of_speaker=5, seed=2)
    assert len(draw(utterances(30, 0), clips=20, of_speaker=5, seed=1)) == 20
