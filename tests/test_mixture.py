"""Mixtures of manifests: occurrences of utterances in an epoch, and exact resumption."""

from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.base.settings.read import read
from asr.base.storage.patterns import expanded
from asr.base.storage.store import write_whole
from asr.components.augment.gain import Gain
from asr.core.build import build_features
from asr.core.data.batch import Example
from asr.core.data.corpus import Corpus, read_corpus
from asr.core.data.dataset import Augmentation, Item, Reference, SpeechDataset
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import read_manifest
from asr.core.data.mixture import Mixture, repeats
from asr.core.data.position import Position, Share, start_of_epoch
from asr.core.data.settings import PlanSettings
from asr.core.data.training_set import TrainingSet
from asr.core.run.settings import read_run_settings
from asr.errors import InputError
from asr.train import train
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.processes import bundle, finish, kill, metrics, start, steps_logged, wait_for
from tests.refusals import refused
from tests.storing import FaultyProxy
from tests.tones import SAMPLE_RATE, sentences, write_corpus

FEATURES = build_features(resolved())
REFERENCE = Reference(lambda text: [ord(letter) for letter in text], len, lambda frames: frames)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, tones: Path) -> Path:
    """A folder with the tones, and other/other.jsonl: 20 training utterances whose ids also occur in train.jsonl."""
    folder = tmp_path_factory.mktemp("two")
    write_corpus(folder / "other", {"train": sentences(20, seed=9)})
    (folder / "other" / "train.jsonl").rename(folder / "other" / "other.jsonl")
    (folder / "audio").symlink_to(tones / "audio")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.jsonl").write_bytes((tones / f"{split}.jsonl").read_bytes())
    return folder


def corpus_of(folder: Path, train: str, **changes: Any) -> Corpus:
    overrides = [*tone_corpus(folder), f"corpus.train={train}", *(f"corpus.{k}={v}" for k, v in changes.items())]
    return read_corpus(settings_with(*overrides).corpus, str, IndexCache().utterances)


def training_set(corpus: Corpus) -> TrainingSet:
    plan = read(PlanSettings, {k: v for k, v in resolved()["data"].items() if k in PLAN_KEYS}, "data")
    return TrainingSet(corpus.train, FEATURES, REFERENCE, None, 3, plan)


PLAN_KEYS = (
    *("batch_seconds", "max_utterances", "max_squared_seconds", "max_cells", "min_seconds", "max_seconds"),
    *("max_train_utterances", "jitter", "sorted_epochs"),
)


def seen(data: TrainingSet, epoch: int, world_size: int = 1) -> Counter[tuple[int, int]]:
    """Count the examples of an epoch by utterance and repetition number."""
    plan = data.epoch(start_of_epoch(epoch, world_size))
    items = chain(*(plan.items(step, rank) for step in range(len(plan)) for rank in range(world_size)))
    return Counter((item.row, item.repeat) for item in items)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
def test_shares_are_proportional_to_hours_times_weight_raised_to_the_temperature(temperature: float) -> None:
    hours, weights = [10.0, 2.0, 0.5], [1.0, 2.0, 0.1]
    means = repeats(hours, weights, temperature)
    shares = [hour * mean for hour, mean in zip(hours, means, strict=True)]
    powers = [(hour * weight) ** temperature for hour, weight in zip(hours, weights, strict=True)]
    total = 10 + 4 + 0.05
    assert shares == pytest.approx([total * power / sum(powers) for power in powers])
    if temperature == 1:
        assert means == weights  # exactly equal, because a weight of 2 means two occurrences of each utterance


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
def test_a_manifest_without_utterances_has_no_share(temperature: float) -> None:
    assert repeats([10.0, 0.0], [1.0, 3.0], temperature)[0] == pytest.approx(repeats([10.0], [1.0], temperature)[0])
    assert repeats([0.0], [3.0], temperature) == [3.0]


def test_the_mean_number_of_occurrences_of_an_utterance_in_an_epoch_is_its_weight() -> None:
    mixture = Mixture((40, 10, 100), (1.0, 3.0, 0.25))
    for epoch in range(3):
        positions, numbers = mixture.occurrences(5, epoch)
        counts = torch.bincount(positions, minlength=150)
        assert counts[:40].tolist() == [1] * 40
        assert counts[40:50].tolist() == [3] * 10
        assert sorted(counts[50:].tolist()) == [0] * 75 + [1] * 25
        assert len(positions) == len(mixture) == 40 + 30 + 25
        expected = [number for count in counts.tolist() for number in range(count)]
        assert numbers.tolist() == expected
    drawn = [set(mixture.occurrences(5, epoch).rows.tolist()) for epoch in range(60)]
    assert drawn[0] != drawn[1]
    assert set.union(*drawn) == set(range(150))  # on average only 100 * 0.75 ** 60 are missing
    assert mixture.occurrences(5, 1).rows.tolist() == mixture.occurrences(5, 1).rows.tolist()


def test_an_epoch_contains_each_occurrence_once_on_any_number_of_processes(two: Path) -> None:
    data = training_set(corpus_of(two, "[{manifest:train.jsonl,weight:2},{manifest:other/other.jsonl,weight:0.5}]"))
    expected = {(position, repeat) for position in range(48) for repeat in (0, 1)}
    for world_size in (1, 3):
        counts = seen(data, 1, world_size)
        assert set(counts.values()) == {1}
        assert {key for key in counts if key[0] < 48} == expected
        assert len([key for key in counts if key[0] >= 48]) == 10
    assert seen(data, 1) == seen(data, 1, 3)


def test_an_epoch_resumed_on_another_number_of_processes_contains_the_remaining_occurrences(two: Path) -> None:
    data = training_set(corpus_of(two, "[{manifest:train.jsonl,weight:1.5},{manifest:other/other.jsonl,weight:3}]"))
    whole = seen(data, 0)
    first = data.epoch(start_of_epoch(0, 2))
    done = [item for step in range(3) for rank in (0, 1) for item in first.items(step, rank)]
    rest = data.epoch(Position(0, (Share(2, 3), Share(3, 0))))
    left = [item for step in range(len(rest)) for rank in range(3) for item in rest.items(step, rank)]
    assert Counter((item.row, item.repeat) for item in [*done, *left]) == whole


def test_each_occurrence_is_augmented_differently_and_the_first_is_the_same_as_without_a_mixture(tones: Path) -> None:
    utterance = read_manifest(tones / "train.jsonl")[0]
    augmentation = Augmentation(waveform=[Gain(SAMPLE_RATE, probability=1.0, gain_db=[-6.0, 6.0])])
    dataset = SpeechDataset([utterance], FEATURES, REFERENCE.for_evaluation(), augmentation, seed=3)

    def features(item: Item) -> torch.Tensor:
        example = dataset[item]
        assert isinstance(example, Example)
        return example.features

    first, again, third = (features(Item(4, 0, 1.0, repeat)) for repeat in range(3))
    assert torch.equal(first, features(Item(4, 0, 1.0)))
    assert not torch.equal(first, again)
    assert not torch.equal(again, third)
    assert torch.equal(again, features(Item(4, 0, 1.0, 1)))


def test_equal_ids_in_two_manifests_are_distinguished(two: Path) -> None:
    corpus = corpus_of(two, "[train.jsonl,other/other.jsonl]")
    names = list(corpus.train.ids)
    assert len(set(names)) == len(names) == 68
    assert names[:48] == [utterance.id for utterance in read_manifest(two / "train.jsonl")]
    assert names[48:] == [f"other:{utterance.id}" for utterance in read_manifest(two / "other" / "other.jsonl")]
    assert corpus.train[50].id == names[50]


def test_weights_of_one_give_the_same_plan_as_no_weights(two: Path) -> None:
    plain = training_set(corpus_of(two, "[train.jsonl,other/other.jsonl]"))
    weighted = training_set(corpus_of(two, "[{manifest:train.jsonl},{manifest:other/other.jsonl,weight:1}]"))
    for epoch in range(2):
        before, after = (data.epoch(start_of_epoch(epoch, 2)) for data in (plain, weighted))
        assert torch.equal(before.plan.order, after.plan.order)
        assert [before.items(step, 1) for step in range(len(before))] == [
            after.items(step, 1) for step in range(len(after))
        ]


@pytest.mark.slow
def test_a_killed_and_resumed_run_with_a_mixture_is_bit_identical_to_an_undisturbed_one(
    two: Path, tmp_path: Path
) -> None:
    def config(name: str, weight: float = 2.5, num_workers: int = 0) -> dict[str, Any]:
        mixture = f"[{{manifest:train.jsonl,weight:0.7}},{{manifest:other/other.jsonl,weight:{weight}}}]"
        common = [*TINY, *tone_corpus(two), "augment=[speed_perturb,spec_augment]", "trainer.max_epochs=3"]
        saved = ["checkpoint.every_steps=1", "corpus.temperature=0.8", f"run_dir={tmp_path / name}"]
        return resolved(*common, *saved, f"corpus.train={mixture}", f"data.num_workers={num_workers}")

    assert finish(start(config("whole"), tmp_path / "whole.log")) == 0
    for steps, num_workers in ((4, 2), (9, 1)):
        killed = start(config("resumed", num_workers=num_workers), tmp_path / "log")
        wait_for(lambda steps=steps: steps_logged(tmp_path / "resumed") >= steps, killed)  # type: ignore[misc]
        kill(killed)
    assert finish(start(config("resumed", num_workers=2), tmp_path / "log")) == 0
    assert bundle(tmp_path / "resumed") == bundle(tmp_path / "whole")
    assert metrics(tmp_path / "resumed") == metrics(tmp_path / "whole")
    with refused(InputError, "manifests.mixture"):
        train(read_run_settings(config("resumed", 2.25)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[{manifest:train.jsonl,weight:0}]", "weights above 0 and at most 1000"),
        ("[{manifest:train.jsonl,wieght:2}]", "weights above 0 and at most 1000"),
        ("[{manifest:train.jsonl,weight:1.0e-3}]", "epoch ... least one utterance"),
        ("[{manifest:train.jsonl,weight:1.0e-320}]", "epoch ... least one utterance"),
        ("[{weight:2}]", "weights above 0 and at most 1000"),
        ("[]", "corpus.train ... be a list"),
        (
            "[train.jsonl,train.jsonl]",
            "manifest once ... 2",
        ),
    ],
)
def test_an_invalid_mixture_is_reported_in_one_line(value: str, message: str, two: Path) -> None:
    with refused(InputError, message):
        training_set(corpus_of(two, value))


def test_braces_and_wildcards_select_manifests(tmp_path: Path) -> None:
    for name in ("a-08", "a-09", "a-10", "b-08", "c{x}"):
        (tmp_path / f"{name}.jsonl").touch()

    def names(pattern: str) -> list[str]:
        return [Path(path).stem for path in expanded(str(tmp_path / pattern))]

    assert names("a-{08..10}.jsonl") == ["a-08", "a-09", "a-10"]
    assert names("{b,a}-08.jsonl") == ["b-08", "a-08"]
    assert names("a-*.jsonl") == ["a-08", "a-09", "a-10"]
    assert names("[ab]-08.jsonl") == ["a-08", "b-08"]
    assert names("c{x}.jsonl") == ["c{x}"]
    assert names("absent-*.jsonl") == ["absent-*"]
    (tmp_path / "[ab]-08.jsonl").touch()
    assert names("[ab]-08.jsonl") == ["[ab]-08"]  # a file that exists with this name
    for unbounded in ("{0..99999999}", "{1..9999}{1..9999}", "{a,b}" * 50, "{a,b}" * 5000):
        with refused(InputError, "braces ... to at most"):
            names(unbounded)


@pytest.mark.parametrize(("folder", "like"), [("run[1]", "run1"), ("a{b,c}", "ab"), ("r*n", "ruin"), ("run?", "runs")])
def test_the_folder_of_a_corpus_is_no_pattern(folder: str, like: str, tmp_path: Path) -> None:
    for name in (folder, like):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train-1.jsonl").touch()
    given = replace(
        settings_with().corpus, dir=str(tmp_path / folder), train=["train-1.jsonl"], valid=["train-?.jsonl"]
    )
    for split in ("train", "valid"):
        assert given.manifests(split) == [str(tmp_path / folder / "train-1.jsonl")]


def test_the_folder_of_a_corpus_at_a_url_is_no_pattern(s3: FaultyProxy) -> None:
    for name in ("run[1]/a-1.jsonl", "run1/a-1.jsonl"):
        write_whole(f"s3://bucket/{name}", b"")
    assert expanded("a-*.jsonl", "s3://bucket/run[1]") == ["s3://bucket/run[1]/a-1.jsonl"]
