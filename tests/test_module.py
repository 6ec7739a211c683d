"""The data module: what an epoch's loader asks for."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from asr.build import build_augmentation, build_features, build_recognizer, build_tokenizer
from asr.data.module import SpeechData
from asr.manifest import read_manifest
from tests.conftest import resolved


def speech_data(manifest: Path, **settings: float) -> SpeechData:
    config = resolved("augment=[speed_perturb]")
    utterances = read_manifest(manifest)
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(utterance.text for utterance in utterances)
    recognizer = build_recognizer(config, tokenizer, features)
    augmentation = build_augmentation(config, features.sample_rate)
    data = config["data"] | settings
    return SpeechData(utterances, utterances[:4], features, recognizer.reference, augmentation, seed=0, **data)


def test_no_batch_overflows_its_bound_whatever_the_speed(tones: Path) -> None:
    durations = {utterance.id: utterance.duration for utterance in read_manifest(tones / "train.jsonl")}
    bound = max(durations.values()) * 1.05  # at speed 0.9 the longest would not fit
    data = speech_data(tones / "train.jsonl", batch_seconds=bound)
    slowed = 0
    for epoch in range(6):
        data.trainer = SimpleNamespace(current_epoch=epoch, global_rank=0, world_size=1)  # type: ignore[assignment]
        sampler = data.train_dataloader().batch_sampler
        assert sampler is not None
        seen: list[int] = []
        for batch in sampler:
            longest = max(durations[f"train-{item.position}"] / item.factor for item in batch)  # type: ignore[attr-defined]
            assert longest * len(batch) <= bound + 1e-9
            seen += [item.position for item in batch]  # type: ignore[attr-defined]
            slowed += sum(item.factor < 1.0 for item in batch)  # type: ignore[attr-defined]
        assert sorted(seen) == list(range(len(durations)))
    assert slowed > len(durations)


def test_validation_over_two_ranks_sees_each_utterance_once(tones: Path) -> None:
    data = speech_data(tones / "train.jsonl", batch_seconds=5.0)
    seen: list[str] = []
    for rank in range(2):
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2)  # type: ignore[assignment]
        seen += [utterance.id for batch in data.val_dataloader() for utterance in batch.utterances]
    assert sorted(seen) == [f"train-{number}" for number in range(4)]


def test_features_of_a_loader_are_those_of_the_feature_extractor(tones: Path) -> None:
    data = speech_data(tones / "train.jsonl", batch_seconds=5.0, num_workers=0)
    data.trainer = SimpleNamespace(global_rank=0, world_size=1)  # type: ignore[assignment]
    features = build_features(resolved())
    from asr.audio import load_waveform

    for batch in data.val_dataloader():
        for number, utterance in enumerate(batch.utterances):
            alone = features(load_waveform(utterance.audio_filepath, features.sample_rate))
            torch.testing.assert_close(batch.features[number, : len(alone)], alone, rtol=0, atol=0)
            assert batch.feature_lengths[number] == len(alone)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epochs_examples_do_not_depend_on_the_number_of_workers(tones: Path, num_workers: int) -> None:
    firsts = []
    for workers in (0, num_workers):
        data = speech_data(tones / "train.jsonl", batch_seconds=5.0, num_workers=workers)
        data.trainer = SimpleNamespace(current_epoch=1, global_rank=0, world_size=1)  # type: ignore[assignment]
        firsts.append(next(iter(data.train_dataloader())))
    assert torch.equal(firsts[0].features, firsts[1].features)
    assert torch.equal(firsts[0].tokens, firsts[1].tokens)
