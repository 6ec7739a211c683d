"""The encoder over recordings: short ones in batches, long ones in chunks, in bounded memory."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from asr.data.batch import Batch, Example, Rejected, collate
from asr.data.batch_plan import BatchBounds, BatchSampler, plan_evaluation
from asr.data.dataset import SpeechDataset, load_utterance, stream_utterance
from asr.data.manifest import Utterance
from asr.errors import AudioError
from asr.recognition.chunks import ChunkBounds
from asr.recognition.long_form import Segment, Segmenter, Segments
from asr.recognition.model import Model
from asr.recognition.speech import may_hold_speech
from asr.storage.location import printable_url

BATCHES = BatchBounds(batch_seconds=200, max_utterances=64)
CHUNKS = ChunkBounds(chunk_seconds=30, context_seconds=4)

Item = TypeVar("Item")
Load = Callable[[Utterance, int], Tensor]
Check = Callable[[Tensor, int], bool]


@dataclass(frozen=True)
class Inference:
    """How recordings are recognised, other than by the model: what bounds memory, and how much is told.

    Args:
        batches: of utterances, and of the chunks of a long recording.
        chunks: recordings that are longer than one are recognised in several.
        segmenter: what becomes of those, out of `asr.recognition.long_form`; None: as the model can.
        nbest: how many alternatives a transcript has, at most.
        num_workers: processes that read audio.
        load: utterance and sample rate to its waveform (S,), however long it is; None: from its file.
        check: tells of a waveform and its sample rate whether it may hold speech; the net does not hear what cannot.
    """

    batches: BatchBounds = BATCHES
    chunks: ChunkBounds = CHUNKS
    segmenter: Segmenter | None = None
    nbest: int = 1
    num_workers: int = 0
    load: Load | None = None
    check: Check = may_hold_speech

    @property
    def unchecked(self) -> "Inference":
        """The same for all audio, such as that of a text that is there already."""
        return replace(self, check=_anything)


INFERENCE = Inference()
NO_NUMBERS = "the net must compute numbers; it gave NaN. Use float32, or weights that hold none."  # not silence
NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class RecordingEncoder:
    """The encoder of a model over recordings.

    Args:
        model: whose encoder runs.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.precision: torch.dtype | None = None  # of the net's products; None: what the caller computes in
        self.waiting_seconds = 0.0  # spent so far until batches and blocks of audio were there

    def autocast(self) -> AbstractContextManager[object]:
        """Compute in `precision`. A validation computes in the precision of the training, which is the caller's."""
        if self.precision is None:
            return nullcontext()
        return torch.autocast(self.model.device.type, self.precision, enabled=self.precision != torch.float32)

    def segments(
        self,
        utterances: Sequence[Utterance],
        batches: BatchBounds,
        chunks: ChunkBounds,
        segmenter: Segmenter,
        num_workers: int,
        load: Load | None,
        check: Check,
        waveforms: Mapping[str, Tensor],
    ) -> Iterator[tuple[Utterance, Segments] | Rejected]:
        """Yield what the encoder gives of each utterance, in one segment or, if it is long, in several.

        Segments of a long recording are computed while they are asked for, and raise an AudioError if it turns out
        that it cannot be read.

        Args:
            utterances: in any order.
            batches, chunks, segmenter, num_workers, load, check: of `Inference`.
            waveforms: of the utterances that need not be read, by id.
        """
        short = [utterance for utterance in utterances if utterance.duration <= chunks.chunk_seconds]
        planned = plan_evaluation([utterance.duration for utterance in short], batches, rank=0, world_size=1)
        loader = DataLoader(
            SpeechDataset(short, self.model.features, load=partial(_load, waveforms, load or load_utterance, check)),
            batch_sampler=BatchSampler(planned),
            collate_fn=collate,
            num_workers=num_workers,
        )
        for batch in self._waited(loader):
            yield from batch.rejected
            for utterance, encoder_out in zip(batch.utterances, self._encode(batch), strict=True):
                if encoder_out.isnan().any():
                    yield Rejected(utterance, f"{printable_url(utterance.audio_filepath)}: {NO_NUMBERS}")
                else:
                    yield utterance, iter([Segment(0.0, encoder_out)])
        sample_rate = self.model.features.sample_rate
        encode = partial(self._stream, bounds=batches, check=check)
        for utterance in utterances:
            if utterance.duration > chunks.chunk_seconds:
                blocks = self._waited(_blocks(waveforms, load, utterance, sample_rate))
                segments = segmenter(blocks, encode, sample_rate, self.model.frame_samples, chunks)
                yield utterance, _checked(segments, utterance)

    def _waited(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items, and count the time until each is there."""
        iterator = iter(items)
        while True:
            begun = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.waiting_seconds += time.perf_counter() - begun
            yield item

    def _stream(self, waveforms: Iterable[Tensor], bounds: BatchBounds, check: Check) -> Iterator[Tensor]:
        """Waveforms (S,) to encoder_out (T', D), in order and a batch at a time; without frames if without speech."""
        features = self.model.features
        waiting: list[Example] = []
        most = bounds.batch_seconds * features.sample_rate
        for waveform in waveforms:
            utterance = Utterance("", len(waveform), "", "")  # samples; only the batch looks
            longest = max(utterance.duration, *(example.utterance.duration for example in waiting), 0)
            if waiting and (longest * (len(waiting) + 1) > most or len(waiting) == bounds.max_utterances):
                yield from self._encode(collate(waiting))
                waiting = []
            checked = waveform if check(waveform, features.sample_rate) else waveform[:0]
            waiting.append(Example(utterance, features(checked), torch.zeros(0, dtype=torch.int64)))
        if waiting:
            yield from self._encode(collate(waiting))

    @torch.inference_mode()
    def _encode(self, batch: Batch) -> list[Tensor]:
        """Run the encoder; each utterance's encoder_out (T', D) without padding, on the model's device."""
        model = self.model
        if len(batch) == 0 or batch.features.shape[1] == 0:  # too short for a single frame
            return [torch.zeros(0, model.encoder.output_dim, device=model.device)] * len(batch)
        moved = batch.to(model.device)
        with self.autocast():
            encoded = model(moved.features, moved.feature_lengths)
        return [out[:length] for out, length in zip(encoded.out, encoded.lengths.tolist(), strict=True)]


def _checked(segments: Segments, utterance: Utterance) -> Segments:
    for segment in segments:
        if segment.encoder_out.isnan().any():
            raise AudioError(f"{printable_url(utterance.audio_filepath)}: {NO_NUMBERS}")
        yield segment


def _anything(waveform: Tensor, sample_rate: int) -> bool:
    return True


def _load(waveforms: Mapping[str, Tensor], load: Load, check: Check, utterance: Utterance, sample_rate: int) -> Tensor:
    """Load an utterance, or nothing of it, too short for a frame, where there is nothing to be heard."""
    waveform = waveforms.get(utterance.id)
    waveform = load(utterance, sample_rate) if waveform is None else waveform
    return waveform if check(waveform, sample_rate) else waveform[:0]


def _blocks(
    waveforms: Mapping[str, Tensor], load: Load | None, utterance: Utterance, sample_rate: int
) -> Iterator[Tensor]:
    """Yield a long recording in parts that follow each other; only from its file it comes in small ones."""
    if load is None and utterance.id not in waveforms:
        yield from stream_utterance(utterance, sample_rate)
    else:
        waveform = waveforms.get(utterance.id)
        yield (load or load_utterance)(utterance, sample_rate) if waveform is None else waveform
