"""The recogniser: the one path from audio to transcripts.

Validation, `evaluate` and `transcribe` all come through here, so the WER seen in training is, for the same weights,
the WER reported.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from asr.audio.load import SAMPLES_MUST, audio_info, unusable_samples
from asr.data.batch import Batch, Example, Rejected, collate
from asr.data.batch_plan import BatchBounds, BatchSampler, plan_evaluation
from asr.data.dataset import SpeechDataset, load_utterance, stream_utterance
from asr.data.manifest import Utterance
from asr.errors import AudioError, InputError
from asr.interfaces import Decoder, FrameHead, Hypothesis
from asr.recognition.alignment import token_spans
from asr.recognition.chunks import ChunkBounds
from asr.recognition.confidence import Calibration, frame_confidence
from asr.recognition.long_form import Segment, Segmenter, Segments, at_silences, in_chunks
from asr.recognition.model import Model
from asr.recognition.transcript import Alternative, Transcript, Word
from asr.text.words import spell

BATCHES = BatchBounds(batch_seconds=200, max_utterances=64)
CHUNKS = ChunkBounds(chunk_seconds=30, context_seconds=4)


@dataclass(frozen=True)
class Inference:
    """How recordings are recognised, other than by the model: what bounds memory, and how much is told.

    Args:
        batches: of utterances, and of the chunks of a long recording.
        chunks: recordings that are longer than one are recognised in several.
        segmenter: what becomes of those, out of `asr.recognition.long_form`; None: as the model can.
        nbest: how many alternatives a transcript has, at most.
        num_workers: processes that read audio.
    """

    batches: BatchBounds = BATCHES
    chunks: ChunkBounds = CHUNKS
    segmenter: Segmenter | None = None
    nbest: int = 1
    num_workers: int = 0


INFERENCE = Inference()
NO_NUMBERS = "the net must compute numbers; it gave NaN. Use float32, or weights that hold none."  # not silence
NOTHING: Mapping[str, Tensor] = MappingProxyType({})
OWN_VALUES: Mapping[str, float] = MappingProxyType({})


class Recognizer:
    """A speech recogniser: a model, and how its encoder_out becomes transcripts.

    Args:
        model: features to encoder_out.
        decode: encoder_out to hypotheses.
        calibration: of the words' confidence.
    """

    def __init__(self, model: Model, decode: Decoder, calibration: Calibration) -> None:
        self.model = model
        self.decode = decode
        self.calibration = calibration
        self.precision = torch.float32  # of the net's products; autocast, if it is another

    @property
    def frame_head(self) -> FrameHead:
        """What says of each frame which token it spells.

        Raises:
            InputError: the model has no such head.
        """
        head = self.model.head.frame_head
        if head is None:
            must = "the model's head must say which token each frame spells, to align words or show posteriors"
            raise InputError(f"{must}; {type(self.model.head).__name__} does not.")
        return head

    @torch.inference_mode()
    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """encoder_out (T', D) to log_probs (T', V), on the CPU.

        Raises:
            InputError: the model has no frame head.
        """
        with self._autocast():
            return self.frame_head.log_probs(encoder_out[None])[0].cpu()

    def hypotheses(self, encoder_out: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """encoder_out (B, T', D), (B,) to the hypotheses of each utterance, the best first."""
        return self.decode.search(self.evidence(encoder_out, lengths))

    @torch.inference_mode()
    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> object:
        """encoder_out (B, T', D), (B,) to what the decoder searches in."""
        with self._autocast():
            return self.decode.evidence(encoder_out, lengths)

    def text(self, hypothesis: Hypothesis) -> str:
        """Spell a hypothesis, normalised."""
        words = [self.model.normalize(word.text) for word in spell(hypothesis.tokens, self.model.tokenizer.pieces)]
        return " ".join(word for word in words if word)

    def _autocast(self) -> torch.autocast:
        device = self.model.device.type
        return torch.autocast(device, self.precision, enabled=self.precision != torch.float32)

    def recognize(
        self,
        utterances: Sequence[Utterance],
        how: Inference = INFERENCE,
        advance: Callable[[float], None] = lambda seconds: None,
    ) -> Iterator[tuple[Utterance, Transcript] | Rejected]:
        """Recognise utterances; yield transcripts, and what could not be read, as they come.

        Args:
            utterances: in any order; those of one batch come longest first, those in chunks last.
            how: see there.
            advance: told how many seconds of audio were recognised, as they are.
        """
        for result in self.segments(utterances, how):
            if isinstance(result, Rejected):
                yield result
                continue
            utterance, segments = result
            try:
                yield utterance, self.transcript(utterance.duration, segments, how.nbest, advance)
            except AudioError as error:  # a long recording is read while it is recognised
                yield Rejected(utterance, str(error))

    def transcribe(self, recordings: Sequence[str | Path | Tensor], how: Inference = INFERENCE) -> list[Transcript]:
        """Recognise audio files, or waveforms (S,) in [-1, 1] at `features.sample_rate`, of any length.

        Raises:
            InputError: naming the first recording that cannot be used.
        """
        if isinstance(recordings, str | Path | Tensor):
            raise InputError(f"recordings must be a list of paths and waveforms; got one {type(recordings).__name__}.")
        utterances: list[Utterance] = []
        waveforms: dict[str, Tensor] = {}
        for number, recording in enumerate(recordings):
            if isinstance(recording, str | Path):
                utterances.append(whole_file(recording, str(number)))
            else:
                waveform = _checked_waveform(recording, number)
                seconds = len(waveform) / self.model.features.sample_rate
                utterances.append(Utterance(f"recording {number}", seconds, "", str(number)))
                waveforms[str(number)] = waveform
        transcripts: dict[str, Transcript] = {}
        for result in self.segments(utterances, how, waveforms):
            if isinstance(result, Rejected):
                raise AudioError(result.reason)
            utterance, segments = result
            transcripts[utterance.id] = self.transcript(utterance.duration, segments, how.nbest)
        return [transcripts[str(number)] for number in range(len(recordings))]

    def segments(
        self, utterances: Sequence[Utterance], how: Inference = INFERENCE, waveforms: Mapping[str, Tensor] = NOTHING
    ) -> Iterator[tuple[Utterance, Segments] | Rejected]:
        """Yield what the encoder gives of each utterance, in one segment or, if it is long, in several.

        Segments of a long recording are computed while they are asked for, and raise an AudioError if it turns out
        that it cannot be read.

        Args:
            utterances: as for `recognize`.
            how: the same.
            waveforms: of the utterances that need not be read, by id.
        """
        load = partial(_load, waveforms)
        bounds = self._chunk_bounds(how)
        short = [utterance for utterance in utterances if utterance.duration <= bounds.chunk_seconds]
        batches = plan_evaluation([utterance.duration for utterance in short], how.batches, rank=0, world_size=1)
        loader = DataLoader(
            SpeechDataset(short, self.model.features, load=load),
            batch_sampler=BatchSampler(batches),
            collate_fn=collate,
            num_workers=how.num_workers,
        )
        for batch in loader:
            yield from batch.rejected
            for utterance, encoder_out in zip(batch.utterances, self._encode(batch), strict=True):
                if self._has_nan(encoder_out):
                    yield Rejected(utterance, f"{utterance.audio_filepath}: {NO_NUMBERS}")
                else:
                    yield utterance, iter([Segment(0.0, encoder_out)])
        for utterance in utterances:
            if utterance.duration > bounds.chunk_seconds:
                yield utterance, self._long(utterance, how, waveforms.get(utterance.id))

    def _chunk_bounds(self, how: Inference) -> ChunkBounds:
        """How long chunks are, as the decoder allows."""
        most = self.decode.max_seconds
        if most is None or how.chunks.chunk_seconds <= most:
            return how.chunks
        return ChunkBounds(most, min(how.chunks.context_seconds, most / 4))

    def _segmenter(self, how: Inference) -> Segmenter:
        """What cuts long recordings: overlapping chunks are one stream, whose pauses only a frame head can tell."""
        can_join = self.model.head.frame_head is not None and self.decode.max_seconds is None
        return how.segmenter or (partial(in_chunks, log_probs=self.log_probs) if can_join else at_silences)

    def _long(self, utterance: Utterance, how: Inference, waveform: Tensor | None) -> Segments:
        sample_rate = self.model.features.sample_rate
        blocks = stream_utterance(utterance, sample_rate) if waveform is None else iter([waveform])
        encode = partial(self._stream, bounds=how.batches)
        bounds = self._chunk_bounds(how)
        for segment in self._segmenter(how)(blocks, encode, sample_rate, self.model.frame_samples, bounds):
            if self._has_nan(segment.encoder_out):
                raise AudioError(f"{utterance.audio_filepath}: {NO_NUMBERS}")
            yield segment

    def _has_nan(self, encoder_out: Tensor) -> bool:
        """Whether the net gave NaN, be it only the frame head: decoders would take that for silence."""
        says = encoder_out if self.model.head.frame_head is None else self.log_probs(encoder_out)
        return bool(says.isnan().any())

    def _stream(self, waveforms: Iterable[Tensor], bounds: BatchBounds) -> Iterator[Tensor]:
        """Waveforms (S,) to encoder_out (T', D), in order and a batch at a time."""
        features = self.model.features
        waiting: list[Example] = []
        most = bounds.batch_seconds * features.sample_rate
        for waveform in waveforms:
            utterance = Utterance("", len(waveform), "", "")  # samples; only the batch looks
            longest = max(utterance.duration, *(example.utterance.duration for example in waiting), 0)
            if waiting and (longest * (len(waiting) + 1) > most or len(waiting) == bounds.max_utterances):
                yield from self._encode(collate(waiting))
                waiting = []
            waiting.append(Example(utterance, features(waveform), torch.zeros(0, dtype=torch.int64)))
        if waiting:
            yield from self._encode(collate(waiting))

    @torch.inference_mode()
    def _encode(self, batch: Batch) -> list[Tensor]:
        """Run the encoder; each utterance's encoder_out (T', D) without padding, on the model's device."""
        model = self.model
        if len(batch) == 0 or batch.features.shape[1] == 0:  # too short for a single frame
            return [torch.zeros(0, model.encoder.output_dim, device=model.device)] * len(batch)
        moved = batch.to(model.device)
        with self._autocast():
            encoded = model(moved.features, moved.feature_lengths)
        return [out[:length] for out, length in zip(encoded.out, encoded.lengths.tolist(), strict=True)]

    def transcript(
        self,
        duration: float,
        segments: Segments,
        nbest: int = 1,
        advance: Callable[[float], None] = lambda seconds: None,
        values: Mapping[str, float] = OWN_VALUES,
    ) -> Transcript:
        """Decode an utterance's segments, one by one, and join what comes out.

        Args:
            duration: of the utterance, in seconds.
            segments: as `segments` yields them.
            nbest: how many alternatives are kept, at most.
            advance: told how many seconds of audio were decoded, as they are.
            values: of what the decoder can tune, instead of its own.
        """
        words: list[Word] = []
        alternatives = [Alternative("", 0.0)]
        for start, encoder_out in segments:
            length = torch.tensor([len(encoder_out)], device=encoder_out.device)
            [hypotheses] = self.decode.search(self.evidence(encoder_out[None], length), **values)
            words += self._words(hypotheses[0], encoder_out, start, duration)
            alternatives = _combine(alternatives, self._alternatives(hypotheses, nbest), nbest)
            advance(len(encoder_out) * self.model.frame_seconds)
        return Transcript(tuple(words), tuple(alternatives), duration)

    def _words(self, hypothesis: Hypothesis, encoder_out: Tensor, start: float, duration: float) -> Iterator[Word]:
        """Give words the times and the confidence of their tokens.

        A word is as sure as all of its tokens together (arXiv:2212.08703, section 3.4: product).
        """
        hypothesis = self._timed(hypothesis, encoder_out)
        frames, confidences = hypothesis.frames or [], hypothesis.confidences or []
        frame_seconds = self.model.frame_seconds
        for word in spell(hypothesis.tokens, self.model.tokenizer.pieces):
            confidence = self.calibration(math.prod(confidences[word.first : word.last + 1]))
            begin = start + frames[word.first].start * frame_seconds
            end = min(start + frames[word.last].end * frame_seconds, duration)  # the last frame may reach beyond
            for text in self.model.normalize(word.text).split():
                yield Word(text, begin, end, confidence)

    def _timed(self, hypothesis: Hypothesis, encoder_out: Tensor) -> Hypothesis:
        """Align a hypothesis and weigh its tokens, where its decoder has not: each is as sure as its clearest frame."""
        frames, confidences = hypothesis.frames, hypothesis.confidences
        if not hypothesis.tokens or (frames is not None and confidences is not None):
            return hypothesis
        log_probs = self.log_probs(encoder_out)
        frames = token_spans(log_probs, hypothesis.tokens) if frames is None else frames
        if confidences is None:
            sure = frame_confidence(log_probs)
            confidences = [float(sure[span.start : span.end].max()) for span in frames]
        return hypothesis._replace(frames=frames, confidences=confidences)

    def _alternatives(self, hypotheses: list[Hypothesis], nbest: int) -> list[Alternative]:
        """Hypotheses with different texts, the best of each text."""
        best: dict[str, float] = {}
        for hypothesis in hypotheses:
            best.setdefault(self.text(hypothesis), hypothesis.score)
            if len(best) == nbest:
                break
        return [Alternative(text, score) for text, score in best.items()]


def _combine(before: list[Alternative], after: list[Alternative], nbest: int) -> list[Alternative]:
    """The best hypotheses of two segments that were decoded apart: every pair, since their scores add up."""
    pairs = [
        Alternative(" ".join(filter(None, (one.text, other.text))), one.score + other.score)
        for one in before
        for other in after
    ]
    best: dict[str, Alternative] = {}
    for pair in sorted(pairs, key=lambda pair: -pair.score):
        best.setdefault(pair.text, pair)  # a word may be the end of one or the beginning of the other
    return list(best.values())[:nbest]


def _load(waveforms: Mapping[str, Tensor], utterance: Utterance, sample_rate: int) -> Tensor:
    waveform = waveforms.get(utterance.id)
    return load_utterance(utterance, sample_rate) if waveform is None else waveform


def _checked_waveform(recording: object, number: int) -> Tensor:
    must = f"recording {number}: must be a path, or a float tensor (S,) in [-1, 1]"
    if not isinstance(recording, Tensor):
        raise InputError(f"{must}; got {type(recording)!r}.")
    if recording.ndim != 1 or not recording.is_floating_point():
        raise InputError(f"{must}; got {tuple(recording.shape)} {recording.dtype}.")
    waveform = recording.detach().to("cpu", torch.float32)
    num_bad = len(unusable_samples(waveform))
    if num_bad:
        raise InputError(f"recording {number}: {SAMPLES_MUST}; {num_bad} do not.")
    return waveform


def whole_file(path: str | Path, utterance_id: str) -> Utterance:
    """Make a whole audio file an utterance without text.

    Raises:
        AudioError: the file cannot be read.
    """
    sample_rate, _, num_samples = audio_info(path)
    return Utterance(str(path), num_samples / sample_rate, "", utterance_id)
