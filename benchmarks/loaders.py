"""Loaders of training batches: asr's data module, torchaudio and lhotse. Each yields the number of frames per batch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import NamedTuple

import soundfile
import torch
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from asr.base.settings.read import read
from asr.core.build import Config, build_augmentation, build_features, build_model, build_tokenizer
from asr.core.data.batch_plan import BatchBounds, plan_evaluation
from asr.core.data.dataset import load_utterance
from asr.core.data.manifest import Utterance
from asr.core.data.position import start_of_epoch
from asr.core.data.settings import DataSettings
from asr.core.data.training_set import TrainingSet
from asr.core.recognition.model import Model
from asr.core.training.data_module import SpeechData
from asr.interfaces import Features
from benchmarks.features import NUM_MEL_BINS, SAMPLE_RATE, composed, kaldi

SPEEDS = (0.9, 1.0, 1.1)
MAX_BUCKETS = 10  # lhotse's buckets of similar lengths; each needs at least one utterance


class Corpus(NamedTuple):
    """The utterances that all loaders load.

    Args:
        utterances: the utterances.
        batch_seconds: upper bound of a batch's padded seconds: longest utterance times number of utterances.
        source: description of their origin.
    """

    utterances: list[Utterance]
    batch_seconds: float
    source: str


def speech_data(corpus: Corpus, augment: Sequence[str], num_workers: int) -> SpeechData:
    """Make asr's data module as `asr.train` does at the start of a run of one process."""
    config = composed(f"augment=[{','.join(augment)}]")
    model = _model(config, corpus)
    augmentation = build_augmentation(config, model.features.sample_rate)
    settings = read(DataSettings, config["data"] | {"batch_seconds": corpus.batch_seconds}, "data").plan
    reference = model.reference
    training_set = TrainingSet(corpus.utterances, model.features, reference, augmentation.speed, 0, settings)
    data = SpeechData(training_set, [], augmentation, start_of_epoch(0, 1), num_workers)
    data.trainer = SimpleNamespace(current_epoch=0, global_rank=0, world_size=1)  # type: ignore[assignment]
    return data


class Ours:
    """asr's data module with one worker."""

    def __init__(self, corpus: Corpus, augment: Sequence[str]) -> None:
        self.data = speech_data(corpus, augment, num_workers=1)

    def __iter__(self) -> Iterator[int]:
        loader = self.data.train_dataloader()
        for batch in loader:
            yield int(batch.feature_lengths.sum())
        CombinedLoader(loader).reset()  # ends the worker, as a training run does, so that its CPU time is counted


class Alone:
    """A plain loop over asr's audio decoding and features, without batches or workers."""

    def __init__(self, corpus: Corpus) -> None:
        self.utterances = corpus.utterances
        self.features: Features = build_features(composed())

    def __iter__(self) -> Iterator[int]:
        for utterance in self.utterances:
            yield len(self.features(load_utterance(utterance, SAMPLE_RATE)))


class Torchaudio(Dataset[tuple[Tensor, Tensor]]):
    """A loader made with plain torch and torchaudio: soundfile, Kaldi features, and a DataLoader with one worker."""

    def __init__(self, corpus: Corpus, *, augmented: bool) -> None:
        from torchaudio.transforms import FrequencyMasking, Speed, TimeMasking

        self.utterances = corpus.utterances
        self.encode = _model(
            composed(), corpus
        ).tokenizer.encode  # asr's tokenizer, so that all loaders do equal work on texts
        self.speeds = [Speed(SAMPLE_RATE, factor) for factor in SPEEDS if factor != 1.0] if augmented else []
        self.masks = [FrequencyMasking(27)] * 2 + [TimeMasking(50)] * 5 if augmented else []
        durations = [utterance.duration for utterance in corpus.utterances]
        bounds = BatchBounds(corpus.batch_seconds, len(durations), None)
        self.batches = plan_evaluation(durations, bounds, rank=0, world_size=1)

    def __getitem__(self, position: int) -> tuple[Tensor, Tensor]:
        utterance = self.utterances[position]
        samples, _ = soundfile.read(utterance.audio_filepath, dtype="float32")
        waveform = torch.from_numpy(samples)
        speed = random.choice([None, *self.speeds])
        features = kaldi(waveform if speed is None else speed(waveform)[0])
        features = (features - features.mean(dim=0)) / features.std(dim=0)
        spectrogram = features.T
        for mask in self.masks:
            spectrogram = mask(spectrogram)
        return spectrogram.T, torch.tensor(self.encode(utterance.text))

    def __iter__(self) -> Iterator[int]:
        for _, lengths, _, _ in DataLoader(
            self, batch_sampler=self.batches, collate_fn=_collate, num_workers=1, multiprocessing_context="fork"
        ):
            yield int(lengths.sum())


class Lhotse:
    """lhotse's dataset in a DataLoader with one worker; features are not normalised, texts not tokenised."""

    def __init__(self, corpus: Corpus, *, augmented: bool) -> None:
        from lhotse import CutSet, Fbank, FbankConfig, MonoCut, Recording, SupervisionSegment
        from lhotse.dataset import K2SpeechRecognitionDataset, OnTheFlyFeatures, PerturbSpeed, SpecAugment

        cuts = []
        for number, utterance in enumerate(corpus.utterances):
            recording = Recording.from_file(utterance.audio_filepath, recording_id=str(number))
            supervision = SupervisionSegment(recording.id, recording.id, 0.0, recording.duration, text=utterance.text)
            cuts.append(MonoCut(recording.id, 0.0, recording.duration, 0, [supervision], recording=recording))
        self.cuts = CutSet.from_cuts(cuts)
        self.batch_seconds = corpus.batch_seconds
        speeds = PerturbSpeed([factor for factor in SPEEDS if factor != 1.0], p=2 / 3)
        masks = SpecAugment(None, 2, 27, 5, 50, p=1.0)
        self.dataset = K2SpeechRecognitionDataset(
            cut_transforms=[speeds] if augmented else [],
            input_transforms=[masks] if augmented else [],
            input_strategy=OnTheFlyFeatures(Fbank(FbankConfig(SAMPLE_RATE, num_filters=NUM_MEL_BINS))),
        )

    def __iter__(self) -> Iterator[int]:
        from lhotse.dataset import DynamicBucketingSampler

        num_buckets = min(MAX_BUCKETS, len(self.cuts))
        sampler = DynamicBucketingSampler(self.cuts, max_duration=self.batch_seconds, num_buckets=num_buckets)
        for batch in DataLoader(
            self.dataset, sampler=sampler, batch_size=None, num_workers=1, multiprocessing_context="fork"
        ):
            yield int(batch["supervisions"]["num_frames"].sum())


def _model(config: Config, corpus: Corpus) -> Model:
    tokenizer = build_tokenizer(config)
    tokenizer.fit(utterance.text for utterance in corpus.utterances)
    return build_model(config, tokenizer, build_features(config))


def _collate(examples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
    """Pad examples to features (B, T, F), lengths (B,), tokens (B, U) and token lengths (B,)."""
    columns = list(zip(*examples, strict=True))
    lengths = [torch.tensor([len(sequence) for sequence in column]) for column in columns]
    features, tokens = (pad_sequence(list(column), batch_first=True) for column in columns)
    return features, lengths[0], tokens, lengths[1]
