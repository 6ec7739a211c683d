"""The data module: the batches of an epoch, and the position at which a run resumes."""

import multiprocessing
import os
import signal
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from asr.base.settings.read import read
from asr.core.build import build_augmentation, build_features, build_model, build_tokenizer
from asr.core.data.dataset import Item
from asr.core.data.manifest import read_manifest
from asr.core.data.position import Position, Share, start_of_epoch
from asr.core.data.settings import DataSettings
from asr.core.data.training_set import TrainingSet
from asr.core.training.data_module import SpeechData
from asr.core.training.task import epochs_done
from tests.conftest import resolved

BEGINNING = start_of_epoch(0, 1)


def speech_data(manifest: Path, position: Position = BEGINNING, **settings: float) -> SpeechData:
    config = resolved("augment=[speed_perturb]")
    utterances = read_manifest(manifest)
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(utterance.text for utterance in utterances)
    model = build_model(config, tokenizer, features)
    augmentation = build_augmentation(config, features.sample_rate)
    data = config["data"] | settings
    plan_settings = read(DataSettings, data, "data").plan
    training_set = TrainingSet(utterances, features, model.reference, augmentation.speed, 0, plan_settings)
    return SpeechData(training_set, utterances[:4], augmentation, position, data["num_workers"])


def on_process(data: SpeechData, rank: int, world_size: int, epoch: int = 0) -> SpeechData:
    """Set the process and the epoch of the data module as Lightning does; return the data module."""
    data.trainer = SimpleNamespace(current_epoch=epoch, global_rank=rank, world_size=world_size)  # type: ignore[assignment]
    return data


def requested(data: SpeechData) -> list[list[Item]]:
    """List the batches that the training loader requests from its workers."""
    return list(data.train_dataloader().batch_sampler)  # type: ignore[arg-type]


def test_no_batch_exceeds_its_limit_at_any_speed(tones: Path) -> None:
    durations = {utterance.id: utterance.duration for utterance in read_manifest(tones / "train.jsonl")}
    bound = max(durations.values()) * 1.05  # at speed 0.9 the longest utterance would not fit
    data = speech_data(tones / "train.jsonl", batch_seconds=bound)
    slowed = 0
    for epoch in range(6):
        seen: list[int] = []
        for batch in requested(on_process(data, rank=0, world_size=1, epoch=epoch)):
            longest = max(durations[f"train-{item.row}"] / item.factor for item in batch)
            assert longest * len(batch) <= bound + 1e-9
            seen += [item.row for item in batch]
            slowed += sum(item.factor < 1.0 for item in batch)
        assert sorted(seen) == list(range(len(durations)))
    assert slowed > len(durations)


def test_validation_over_two_ranks_sees_each_utterance_once(tones: Path) -> None:
    data = speech_data(tones / "train.jsonl", batch_seconds=5.0)
    seen: list[str] = []
    for rank in range(2):
        on_process(data, rank, world_size=2)
        seen += [utterance.id for batch in data.val_dataloader() for utterance in batch.utterances]
    assert sorted(seen) == [f"train-{number}" for number in range(4)]


def test_features_from_a_loader_equal_those_of_the_feature_extractor(tones: Path) -> None:
    data = speech_data(tones / "train.jsonl", batch_seconds=5.0, num_workers=0)
    on_process(data, rank=0, world_size=1)
    features = build_features(resolved())
    from asr.base.audio.load import load_waveform

    for batch in data.val_dataloader():
        for number, utterance in enumerate(batch.utterances):
            alone = features(load_waveform(utterance.audio_filepath, features.sample_rate))
            torch.testing.assert_close(batch.features[number, : len(alone)], alone, rtol=0, atol=0)
            assert batch.feature_lengths[number] == len(alone)


def test_the_examples_of_an_epoch_do_not_depend_on_the_number_of_workers(tones: Path) -> None:
    firsts = []
    for workers in (0, 2):
        data = speech_data(tones / "train.jsonl", batch_seconds=5.0, num_workers=workers)
        firsts.append(next(iter(on_process(data, rank=0, world_size=1, epoch=1).train_dataloader())))
    assert torch.equal(firsts[0].features, firsts[1].features)
    assert torch.equal(firsts[0].tokens, firsts[1].tokens)


def test_the_same_workers_load_the_examples_of_every_epoch(tones: Path) -> None:
    alone, by_workers = (
        on_process(speech_data(tones / "train.jsonl", batch_seconds=5.0, num_workers=workers), rank=0, world_size=1)
        for workers in (0, 2)
    )
    workers = set()
    for epoch in (0, 1, 3):
        assert alone.trainer is not None
        assert by_workers.trainer is not None
        alone.trainer.current_epoch = by_workers.trainer.current_epoch = epoch  # type: ignore[misc]
        left_after = 3 if epoch == 1 else None  # stop this epoch while batches are being loaded
        batches = zip(islice(alone.train_dataloader(), left_after), by_workers.train_dataloader(), strict=False)
        for expected, batch in batches:
            assert batch.utterances == expected.utterances
            assert torch.equal(batch.features, expected.features), "speeds are drawn for each epoch"
        workers.add(frozenset(process.pid for process in multiprocessing.active_children()))
    [pids] = workers
    assert len(pids) == 2


def test_a_worker_that_dies_between_two_epochs_is_detected(tones: Path) -> None:
    data = on_process(speech_data(tones / "train.jsonl", batch_seconds=5.0, num_workers=1), rank=0, world_size=1)
    for _ in data.train_dataloader():
        pass
    [worker] = multiprocessing.active_children()

    def lose_it_and_begin() -> None:
        worker.kill()
        worker.join()
        next(iter(data.train_dataloader()))

    with pytest.raises(RuntimeError, match="DataLoader worker"):  # the error that asr.core.training.fit expects
        lose_it_and_begin()


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_a_run_resumes_with_the_next_batch_and_then_with_whole_epochs(tones: Path, batch: int) -> None:
    manifest = tones / "train.jsonl"
    whole = speech_data(manifest, batch_seconds=10.0)
    position = on_process(whole, rank=0, world_size=2, epoch=1).epochs.position_at(1, 2, batch, skipped=5)
    assert position == Position(1, (Share(2, batch),), 5)
    rest = speech_data(manifest, position, batch_seconds=10.0)
    for rank in range(2):
        assert requested(on_process(rest, rank, 2, epoch=1)) == requested(on_process(whole, rank, 2, epoch=1))[batch:]
        assert len(rest.train_dataloader()) == len(whole.train_dataloader()), (
            "the number of batches includes those already done"
        )
        following = requested(on_process(rest, rank, 2, epoch=2))
        assert following == requested(on_process(whole, rank, 2, epoch=2))
        assert {item.epoch for batch in following for item in batch} == {2}


def test_a_run_resumed_on_another_number_of_processes_sees_the_rest_of_its_epoch(tones: Path) -> None:
    manifest = tones / "train.jsonl"
    first = speech_data(manifest, batch_seconds=10.0)
    seen = []
    for rank in range(2):
        seen += requested(on_process(first, rank, world_size=2))[:2]
    rest = speech_data(manifest, first.epochs.position_at(0, 2, 2, skipped=0), batch_seconds=10.0)
    seen += requested(on_process(rest, rank=0, world_size=1))
    assert sorted(item.row for batch in seen for item in batch) == list(range(48))
    assert rest.epochs.position_at(0, 1, 1, skipped=0) == Position(0, (Share(2, 2), Share(1, 1)))


def passes(data: SpeechData, epoch: int, batches: int) -> float:
    """Return the number of finished passes over the data after this number of batches of an epoch."""
    progress = SimpleNamespace(batch_progress=SimpleNamespace(current=SimpleNamespace(ready=batches)))
    data.trainer.fit_loop = SimpleNamespace(epoch_loop=progress)  # type: ignore[union-attr]
    data.trainer.current_epoch = epoch  # type: ignore[union-attr,misc]
    data.trainer.datamodule = data  # type: ignore[union-attr]
    return epochs_done(data.trainer)  # type: ignore[arg-type]


def test_each_batch_increases_the_number_of_finished_passes_up_to_the_next_whole_number(tones: Path) -> None:
    data = on_process(speech_data(tones / "train.jsonl", batch_seconds=10.0), rank=0, world_size=1)
    number = len(requested(data))
    assert [passes(data, 0, batches) for batches in range(number + 1)] == pytest.approx(
        [batches / number for batches in range(number + 1)], abs=1e-12
    )
    assert passes(data, 1, 0) == 1.0


def test_the_number_of_finished_passes_includes_batches_of_other_processes(tones: Path) -> None:
    position = Position(0, (Share(2, 2), Share(1, 0)))
    data = on_process(speech_data(tones / "train.jsonl", position, batch_seconds=10.0), rank=0, world_size=1)
    batches = requested(data)
    left = sum(map(len, batches)) / 48
    assert 0.1 < left < 0.9
    assert passes(data, 0, 1) == pytest.approx(1 - left + left / len(batches))
    assert passes(data, 0, len(batches)) == 1.0


def test_after_the_last_batch_the_position_is_the_start_of_the_next_epoch(tones: Path) -> None:
    data = on_process(speech_data(tones / "train.jsonl"), rank=0, world_size=2)
    batches = len(data.train_dataloader())
    assert data.epochs.position_at(0, 2, batches - 1, skipped=3).epoch == 0
    assert data.epochs.position_at(0, 2, batches, skipped=3) == start_of_epoch(1, 2)


def test_the_trial_batches_have_the_sizes_and_texts_of_the_largest_ones_and_read_no_audio(
    tones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = speech_data(tones / "train.jsonl", batch_seconds=10.0)
    seconds = [utterance.duration for utterance in read_manifest(tones / "train.jsonl")]
    plans = [requested(on_process(data, rank, world_size=2)) for rank in range(2)]
    real = [list(on_process(data, rank, world_size=2).train_dataloader()) for rank in range(2)]
    monkeypatch.setattr("asr.core.data.dataset.load_waveform", None)
    made_up = [on_process(data, rank, world_size=2).worst_batches() for rank in range(2)]
    assert len(made_up[0]) == len(made_up[1]) in (1, 2)
    tried = {tuple(utterance.id for utterance in batch.utterances) for batches in made_up for batch in batches}
    for power in (1, 2):
        sizes = {
            tuple(f"train-{item.row}" for item in batch): len(batch)
            * max(seconds[item.row] / item.factor for item in batch) ** power
            for batch in plans[0] + plans[1]
        }
        assert max(sizes[ids] for ids in tried) == pytest.approx(max(sizes.values()), rel=1e-12)
    like = {tuple(utterance.id for utterance in batch.utterances): batch for batches in real for batch in batches}
    for batch in (batch for batches in made_up for batch in batches):
        same = like[tuple(utterance.id for utterance in batch.utterances)]
        assert torch.equal(batch.feature_lengths, same.feature_lengths)
        assert torch.equal(batch.tokens, same.tokens)
        assert batch.features.isfinite().all()
    state = torch.get_rng_state()
    assert torch.equal(data.worst_batches()[0].features, made_up[1][0].features)
    assert torch.equal(torch.get_rng_state(), state)


def test_workers_survive_an_interruption_so_that_training_can_finish_its_step(
    tones: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asr.core.data import dataset

    load = dataset.load_waveform

    def interrupted(*arguments: object, **settings: object) -> object:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)  # like the terminal, which signals the whole process group
        return load(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(dataset, "load_waveform", interrupted)  # also in the workers, which are forked
    data = on_process(speech_data(tones / "train.jsonl", num_workers=2), rank=0, world_size=1)
    assert sum(len(batch) for batch in data.train_dataloader()) == 48
