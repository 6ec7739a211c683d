"""The recogniser: features, tokenizer, encoder, head and decoder in one object, and the one path from audio to text.

Validation, `evaluate` and `transcribe` all come through here, so the WER seen in training is, for the same weights,
the WER reported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from asr.audio import audio_info
from asr.data.batch import Batch, Example, Rejected, collate
from asr.data.dataset import Reference, SpeechDataset
from asr.data.sampler import BatchBounds, BatchSampler, plan_evaluation
from asr.errors import AudioError, InputError
from asr.interfaces import Decoder, Encoder, Features, Head, Tokenizer
from asr.manifest import Utterance
from asr.text import Normalizer

INFERENCE_BOUNDS = BatchBounds(batch_seconds=200, max_utterances=64)


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was recognised in one recording."""

    text: str


class Recognizer(nn.Module):
    """A speech recogniser.

    Args:
        normalize: text normaliser, for references and hypotheses.
        tokenizer: fitted.
        features: fitted; on the CPU, also in data workers.
        encoder: features to encoder_out.
        head: encoder_out to log_probs.
        decode: log_probs to token ids.
    """

    def __init__(
        self,
        normalize: Normalizer,
        tokenizer: Tokenizer,
        features: Features,
        encoder: Encoder,
        head: Head,
        decode: Decoder,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.tokenizer = tokenizer
        self.features = features
        self.encoder = encoder
        self.head = head
        self.decode = decode

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F), (B,) to log_probs (B, T', V) and encoder_out_lengths (B,)."""
        encoder_out, lengths = self.encoder(features, feature_lengths)
        return self.head(encoder_out), lengths

    def hypotheses(self, log_probs: Tensor, lengths: Tensor) -> list[str]:
        """Decode to normalised text."""
        return [self.normalize(self.tokenizer.decode(tokens)) for tokens in self.decode(log_probs, lengths)]

    @property
    def reference(self) -> Reference:
        """How a text becomes tokens that this recogniser can be trained on."""
        return Reference(self.tokenizer.encode, self.head.min_frames, self.encoder.output_lengths)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @torch.inference_mode()
    def recognize(
        self,
        utterances: Sequence[Utterance],
        *,
        bounds: BatchBounds = INFERENCE_BOUNDS,
        num_workers: int = 0,
    ) -> Iterator[list[tuple[Utterance, str] | Rejected]]:
        """Recognise utterances, longest first; yield each batch's hypotheses and what could not be read of it."""
        durations = [utterance.duration for utterance in utterances]
        batches = plan_evaluation(durations, bounds, rank=0, world_size=1)
        dataset = SpeechDataset(utterances, self.features)
        sampler = BatchSampler(batches)
        for batch in DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=num_workers):
            texts = self._batch_texts(batch)
            yield [*zip(batch.utterances, texts, strict=True), *batch.rejected]

    @torch.inference_mode()
    def transcribe(self, recordings: Sequence[str | Path | Tensor]) -> list[Transcript]:
        """Recognise audio files, or waveforms (S,) in [-1, 1] at `features.sample_rate`.

        Raises:
            InputError: naming the first recording that cannot be used.
        """
        texts: dict[str, str] = {}
        examples: list[Example] = []
        utterances: list[Utterance] = []
        for number, recording in enumerate(recordings):
            if isinstance(recording, str | Path):
                utterances.append(whole_file(recording, str(number)))
            else:
                _check_waveform(recording, number)
                seconds = len(recording) / self.features.sample_rate
                named = Utterance(f"recording {number}", seconds, "", str(number))
                examples.append(Example(named, self.features(recording), torch.zeros(0, dtype=torch.int64)))
        for results in self.recognize(utterances):
            for result in results:
                if isinstance(result, Rejected):
                    raise AudioError(result.reason)
                texts[result[0].id] = result[1]
        durations = [example.utterance.duration for example in examples]
        for batch in plan_evaluation(durations, INFERENCE_BOUNDS, rank=0, world_size=1):
            collated = collate([examples[position] for position in batch])
            for utterance, text in zip(collated.utterances, self._batch_texts(collated), strict=True):
                texts[utterance.id] = text
        return [Transcript(texts[str(number)]) for number in range(len(recordings))]

    def _batch_texts(self, batch: Batch) -> list[str]:
        if len(batch) == 0 or batch.features.shape[1] == 0:  # too short for a single frame
            return [""] * len(batch)
        moved = batch.to(self.device)
        return self.hypotheses(*self(moved.features, moved.feature_lengths))


def _check_waveform(recording: Tensor, number: int) -> None:
    if not isinstance(recording, Tensor) or recording.ndim != 1 or not recording.is_floating_point():
        shape = (
            f"{tuple(recording.shape)} {recording.dtype}" if isinstance(recording, Tensor) else repr(type(recording))
        )
        raise InputError(f"recording {number}: must be a path, or a float tensor (S,) in [-1, 1]; got {shape}.")


def whole_file(path: str | Path, utterance_id: str) -> Utterance:
    """Make a whole audio file an utterance without text.

    Raises:
        AudioError: the file cannot be read.
    """
    sample_rate, _, num_samples = audio_info(path)
    return Utterance(str(path), num_samples / sample_rate, "", utterance_id)
