"""Run the encoder over recordings in bounded memory: short recordings in batches, long ones in chunks."""

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

from asr.base.audio.speech import may_hold_speech
from asr.base.storage.location import printable_url
from asr.base.system.processes import start_method
from asr.core.data.batch import Batch, Example, Rejected, collate
from asr.core.data.batch_plan import BatchBounds, BatchSampler, plan_evaluation
from asr.core.data.dataset import SpeechDataset, load_utterance, stream_utterance
from asr.core.data.labels import LANGUAGE
from asr.core.data.manifest import Utterance
from asr.core.recognition.chunks import ChunkBounds
from asr.core.recognition.long_form import Segment, Segmenter, Segments
from asr.core.recognition.model import Model
from asr.errors import AudioError
from asr.interfaces import Biasing

BATCHES = BatchBounds(batch_seconds=200, max_utterances=64)
CHUNKS = ChunkBounds(chunk_seconds=30, context_seconds=4)

Item = TypeVar("Item")
Load = Callable[[Utterance, int], Tensor]
Check = Callable[[Tensor, int], bool]


@dataclass(frozen=True)
class Inference:
    """Inference options outside the model: memory bounds and detail of the output.

    Args:
        batches: limits for batches of utterances, for batches of chunks of a long recording, and for the segments that
            are decoded together.
        chunks: sizes of chunks; recordings longer than a chunk are cut.
        segmenter: function of `asr.core.recognition.long_form` that cuts long recordings; None: chosen for the model.
        nbest: maximum number of alternatives in a transcript.
        num_workers: number of processes that read audio.
        load: reads a waveform (S,) of any length, given utterance and sample rate; None: waveforms are read from files.
        check: returns whether a waveform may contain speech, given waveform and sample rate; waveforms without speech
            are not encoded.
        language: language of all utterances, for a model with a prompt; None: that of each utterance's labels.
        biasing_of: returns the hotwords of an utterance, in addition to the decoder's own; None: those of its labels.
    """

    batches: BatchBounds = BATCHES
    chunks: ChunkBounds = CHUNKS
    segmenter: Segmenter | None = None
    nbest: int = 1
    num_workers: int = 0
    load: Load | None = None
    check: Check = may_hold_speech
    language: str | None = None
    biasing_of: Callable[[Utterance], Biasing] | None = None

    @property
    def unchecked(self) -> "Inference":
        """These options without the check for speech, for audio whose text is known."""
        return replace(self, check=_anything)

    def labelled(self, utterances: Sequence[Utterance]) -> Sequence[Utterance]:
        """Return the utterances with the label of `language`, if it is given."""
        if self.language is None:
            return utterances
        return [replace(each, labels={**each.labels, LANGUAGE: self.language}) for each in utterances]


INFERENCE = Inference()
NO_NUMBERS = "the network's output must be numbers; got NaN. Use float32, or weights without NaN."
NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class RecordingEncoder:
    """Runs the encoder of a model over recordings.

    Args:
        model: provides features and encoder.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.precision: torch.dtype | None = None  # type of the network's matrix products; None: the caller's autocast
        self.waiting_seconds = 0.0  # total time spent waiting for batches and blocks of audio

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context that computes in `precision`; None keeps the caller's precision, which validation needs."""
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
        """Yield encoder_out of each utterance, as one segment or, for a long recording, as several.

        Segments of a long recording are computed lazily; iterating over them raises an AudioError if the recording
        cannot be read. `waveforms` are those of utterances that are already loaded, by utterance id.
        """
        short = [utterance for utterance in utterances if utterance.duration <= chunks.chunk_seconds]
        planned = plan_evaluation([utterance.duration for utterance in short], batches, rank=0, world_size=1)
        loader = DataLoader(
            SpeechDataset(short, self.model.features, load=partial(_load, waveforms, load or load_utterance, check)),
            batch_sampler=BatchSampler(planned),
            collate_fn=partial(collate, labels=self.model.labels),
            num_workers=num_workers,
            multiprocessing_context=start_method(num_workers),
            pin_memory=self.model.device.type == "cuda",
        )
        for batch in self._waited(loader):
            yield from batch.rejected
            encoder_outs = self._encode(batch)
            for utterance, encoder_out, is_bad in zip(
                batch.utterances, encoder_outs, have_nan(encoder_outs), strict=True
            ):
                if is_bad:
                    yield Rejected(utterance, f"{printable_url(utterance.audio_filepath)}: {NO_NUMBERS}")
                else:
                    yield utterance, iter([Segment(0.0, encoder_out)])
        sample_rate = self.model.features.sample_rate
        for utterance in utterances:
            if utterance.duration > chunks.chunk_seconds:
                encode = partial(self._stream, bounds=batches, check=check, labels=utterance.labels)
                blocks = self._waited(_blocks(waveforms, load, utterance, sample_rate))
                segments = segmenter(blocks, encode, sample_rate, self.model.frame_samples, chunks)
                yield utterance, _checked(segments, utterance)

    def _waited(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items, and add the time until each is available to `waiting_seconds`."""
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

    def _stream(
        self, waveforms: Iterable[Tensor], bounds: BatchBounds, check: Check, labels: Mapping[str, str]
    ) -> Iterator[Tensor]:
        """Encode parts of one recording, (S,) each, in batches, and yield each encoder_out (T', D) in order.

        T' is 0 for a part without speech. `labels` are those of the recording.
        """
        features = self.model.features
        examples: list[Example] = []
        for waveform in waveforms:
            utterance = Utterance("", len(waveform) / features.sample_rate, "", "", labels=labels)
            longest = max(utterance.duration, *(example.utterance.duration for example in examples), 0)
            if examples and (longest * (len(examples) + 1) > bounds.seconds or len(examples) == bounds.max_utterances):
                yield from self._encode(collate(examples, labels=self.model.labels))
                examples = []
            checked = waveform if check(waveform, features.sample_rate) else waveform[:0]
            examples.append(Example(utterance, features(checked), torch.zeros(0, dtype=torch.int64)))
        if examples:
            yield from self._encode(collate(examples, labels=self.model.labels))

    @torch.inference_mode()
    def _encode(self, batch: Batch) -> list[Tensor]:
        """Encode a batch; return the encoder_out (T', D) of each utterance without padding, on the model's device."""
        model = self.model
        if len(batch) == 0 or batch.features.shape[1] == 0:  # too short for a single frame
            return [torch.zeros(0, model.encoder.output_dim, device=model.device)] * len(batch)
        moved = batch.to(model.device, non_blocking=model.device.type == "cuda")
        with self.autocast():
            encoded = model.encode(moved)
        return [out[:length] for out, length in zip(encoded.out, encoded.frame_counts, strict=True)]


def have_nan(tensors: Sequence[Tensor]) -> list[bool]:
    """Return whether each tensor contains NaN, with one wait for the device."""
    return torch.stack([tensor.isnan().any() for tensor in tensors]).tolist() if tensors else []


def _checked(segments: Segments, utterance: Utterance) -> Segments:
    for segment in segments:
        if segment.encoder_out.isnan().any():
            raise AudioError(f"{printable_url(utterance.audio_filepath)}: {NO_NUMBERS}")
        yield segment


def _anything(waveform: Tensor, sample_rate: int) -> bool:
    return True


def _load(waveforms: Mapping[str, Tensor], load: Load, check: Check, utterance: Utterance, sample_rate: int) -> Tensor:
    """Load an utterance; return an empty waveform if it cannot contain speech."""
    waveform = waveforms.get(utterance.id)
    waveform = load(utterance, sample_rate) if waveform is None else waveform
    return waveform if check(waveform, sample_rate) else waveform[:0]


def _blocks(
    waveforms: Mapping[str, Tensor], load: Load | None, utterance: Utterance, sample_rate: int
) -> Iterator[Tensor]:
    """Yield the waveform of a long recording: in small blocks if it is read from a file, otherwise in one block."""
    if load is None and utterance.id not in waveforms:
        yield from stream_utterance(utterance, sample_rate)
    else:
        waveform = waveforms.get(utterance.id)
        yield (load or load_utterance)(utterance, sample_rate) if waveform is None else waveform
