"""The recogniser: features, tokenizer, encoder, head and decoder in one object, and the one path from audio to text.

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
from torch import Tensor, nn
from torch.utils.data import DataLoader

from asr.audio.load import SAMPLES_MUST, audio_info, unusable_samples
from asr.data.batch import Batch, Example, Rejected, collate
from asr.data.batch_plan import BatchBounds, BatchSampler, plan_evaluation
from asr.data.dataset import Reference, SpeechDataset, load_utterance, stream_utterance
from asr.data.manifest import Utterance
from asr.errors import AudioError, InputError
from asr.interfaces import Decoder, Encoder, Features, Head, Hypothesis, Tokenizer
from asr.recognition.alignment import token_spans
from asr.recognition.confidence import Calibration, frame_confidence
from asr.recognition.long_form import Segmenter, Segments, in_windows
from asr.recognition.transcript import Alternative, Transcript, Word
from asr.recognition.windows import WindowBounds
from asr.text.normalize import Normalizer
from asr.text.words import spell

BATCHES = BatchBounds(batch_seconds=200, max_utterances=64)
WINDOWS = WindowBounds(window_seconds=30, context_seconds=4)


@dataclass(frozen=True)
class Inference:
    """How recordings are recognised, other than by the model: what bounds memory, and how much is told.

    Args:
        batches: of utterances, and of the windows of a long recording.
        windows: recordings that are longer than one are recognised in several.
        segmenter: what becomes of those, out of `asr.recognition.long_form`.
        nbest: how many alternatives a transcript has, at most.
        num_workers: processes that read audio.
    """

    batches: BatchBounds = BATCHES
    windows: WindowBounds = WINDOWS
    segmenter: Segmenter = in_windows
    nbest: int = 1
    num_workers: int = 0


INFERENCE = Inference()
NO_NUMBERS = "the net must compute numbers; it gave NaN. Use float32, or weights that hold none."  # not silence
NOTHING: Mapping[str, Tensor] = MappingProxyType({})


class Recognizer(nn.Module):
    """A speech recogniser.

    Args:
        normalize: text normaliser, for references and hypotheses.
        tokenizer: fitted.
        features: fitted; on the CPU, also in data workers.
        encoder: features to encoder_out.
        head: encoder_out to log_probs.
        decode: log_probs to token ids.
        calibration: of the words' confidence.
    """

    def __init__(
        self,
        normalize: Normalizer,
        tokenizer: Tokenizer,
        features: Features,
        encoder: Encoder,
        head: Head,
        decode: Decoder,
        calibration: Calibration,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.tokenizer = tokenizer
        self.features = features
        self.encoder = encoder
        self.head = head
        self.decode = decode
        self.calibration = calibration
        self.precision = torch.float32  # of the net's products; autocast, if it is another

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F), (B,) to log_probs (B, T', V) and encoder_out_lengths (B,)."""
        encoder_out, lengths = self.encoder(features, feature_lengths)
        return self.head(encoder_out), lengths

    def hypotheses(self, log_probs: Tensor, lengths: Tensor) -> list[str]:
        """Decode to normalised text."""
        return [self._text(readings[0]) for readings in self.decode(log_probs, lengths)]

    @property
    def reference(self) -> Reference:
        """How a text becomes tokens that this recogniser can be trained on."""
        return Reference(self.tokenizer.encode, self.head.min_frames, self.encoder.output_lengths)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def frame_samples(self) -> int:
        """Samples from one encoder frame to the next."""
        return self.encoder.stride * self.features.hop

    @property
    def frame_seconds(self) -> float:
        """Seconds from one encoder frame to the next."""
        return self.frame_samples / self.features.sample_rate

    def recognize(
        self,
        utterances: Sequence[Utterance],
        how: Inference = INFERENCE,
        advance: Callable[[float], None] = lambda seconds: None,
    ) -> Iterator[tuple[Utterance, Transcript] | Rejected]:
        """Recognise utterances; yield transcripts, and what could not be read, as they come.

        Args:
            utterances: in any order; those of one batch come longest first, those in windows last.
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
                seconds = len(waveform) / self.features.sample_rate
                utterances.append(Utterance(f"recording {number}", seconds, "", str(number)))
                waveforms[str(number)] = waveform
        transcripts: dict[str, Transcript] = {}
        for result in self.segments(utterances, how, waveforms):
            if isinstance(result, Rejected):
                raise AudioError(result.reason)
            utterance, segments = result
            transcripts[utterance.id] = self.transcript(utterance.duration, segments, how.nbest)
        return [transcripts[str(number)] for number in range(len(recordings))]

    @torch.inference_mode()
    def segments(
        self, utterances: Sequence[Utterance], how: Inference = INFERENCE, waveforms: Mapping[str, Tensor] = NOTHING
    ) -> Iterator[tuple[Utterance, Segments] | Rejected]:
        """Yield each utterance's log_probs (T', V), on the CPU, in one segment or, if it is long, in several.

        Segments of a long recording are computed while they are asked for, and raise an AudioError if it turns out
        that it cannot be read.

        Args:
            utterances: as for `recognize`.
            how: the same.
            waveforms: of the utterances that need not be read, by id.
        """
        load = partial(_load, waveforms)
        short = [one for one in utterances if one.duration <= how.windows.window_seconds]
        batches = plan_evaluation([one.duration for one in short], how.batches, rank=0, world_size=1)
        loader = DataLoader(
            SpeechDataset(short, self.features, load=load),
            batch_sampler=BatchSampler(batches),
            collate_fn=collate,
            num_workers=how.num_workers,
        )
        for batch in loader:
            yield from batch.rejected
            for utterance, log_probs in zip(batch.utterances, self._log_probs(batch), strict=True):
                if log_probs.isnan().any():
                    yield Rejected(utterance, f"{utterance.audio_filepath}: {NO_NUMBERS}")
                else:
                    yield utterance, iter([(0.0, log_probs)])
        for utterance in utterances:
            if utterance.duration > how.windows.window_seconds:
                yield utterance, self._long(utterance, how, waveforms.get(utterance.id))

    @torch.inference_mode()
    def _long(self, utterance: Utterance, how: Inference, waveform: Tensor | None) -> Segments:
        sample_rate = self.features.sample_rate
        blocks = stream_utterance(utterance, sample_rate) if waveform is None else iter([waveform])
        to_log_probs = partial(self._stream, bounds=how.batches)
        for start, log_probs in how.segmenter(blocks, to_log_probs, sample_rate, self.frame_samples, how.windows):
            if log_probs.isnan().any():
                raise AudioError(f"{utterance.audio_filepath}: {NO_NUMBERS}")
            yield start, log_probs

    def _stream(self, waveforms: Iterable[Tensor], bounds: BatchBounds) -> Iterator[Tensor]:
        """Waveforms (S,) to log_probs (T', V), in order and a batch at a time."""
        waiting: list[Example] = []
        most = bounds.batch_seconds * self.features.sample_rate
        for waveform in waveforms:
            utterance = Utterance("", len(waveform), "", "")  # samples; only the batch looks
            longest = max(utterance.duration, *(one.utterance.duration for one in waiting), 0)
            if waiting and (longest * (len(waiting) + 1) > most or len(waiting) == bounds.max_utterances):
                yield from self._log_probs(collate(waiting))
                waiting = []
            waiting.append(Example(utterance, self.features(waveform), torch.zeros(0, dtype=torch.int64)))
        if waiting:
            yield from self._log_probs(collate(waiting))

    def _log_probs(self, batch: Batch) -> list[Tensor]:
        """Run the net; each utterance's log_probs (T', V) without padding, on the CPU."""
        if len(batch) == 0 or batch.features.shape[1] == 0:  # too short for a single frame
            return [torch.zeros(0, self.tokenizer.vocab_size)] * len(batch)
        moved = batch.to(self.device)
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            log_probs, lengths = self(moved.features, moved.feature_lengths)
        return [one[:length] for one, length in zip(log_probs.cpu(), lengths.tolist(), strict=True)]

    def transcript(
        self,
        duration: float,
        segments: Segments,
        nbest: int = 1,
        advance: Callable[[float], None] = lambda seconds: None,
    ) -> Transcript:
        """Decode an utterance's segments, one by one, and join what comes out.

        Args:
            duration: of the utterance, in seconds.
            segments: as `segments` yields them.
            nbest: how many alternatives are kept, at most.
            advance: told how many seconds of audio were decoded, as they are.
        """
        words: list[Word] = []
        alternatives = [Alternative("", 0.0)]
        for start, log_probs in segments:
            [readings] = self.decode(log_probs[None], torch.tensor([len(log_probs)]))
            words += self._words(readings[0].tokens, log_probs, start, duration)
            alternatives = _combine(alternatives, self._alternatives(readings, nbest), nbest)
            advance(len(log_probs) * self.frame_seconds)
        return Transcript(tuple(words), tuple(alternatives), duration)

    def _words(self, tokens: list[int], log_probs: Tensor, start: float, duration: float) -> Iterator[Word]:
        """Give words their times, from the frames that spell them, and their confidence, from those frames' entropy.

        A token is as sure as the clearest of its frames, a word as all of its tokens together (arXiv:2212.08703,
        section 3.4: maximum, then product).
        """
        spans = token_spans(log_probs, tokens)
        for spelt in spell(tokens, self.tokenizer.pieces):
            those = spans[spelt.first : spelt.last + 1]
            clearest = [float(frame_confidence(log_probs[span.start : span.end]).max()) for span in those]
            confidence = self.calibration(math.prod(clearest))
            begin = start + those[0].start * self.frame_seconds
            end = min(start + those[-1].end * self.frame_seconds, duration)  # the last frame may reach beyond
            for text in self.normalize(spelt.text).split():
                yield Word(text, begin, end, confidence)

    def _alternatives(self, readings: list[Hypothesis], nbest: int) -> list[Alternative]:
        """Readings with different texts, the best of each text."""
        best: dict[str, float] = {}
        for reading in readings:
            best.setdefault(self._text(reading), reading.score)
            if len(best) == nbest:
                break
        return [Alternative(text, score) for text, score in best.items()]

    def _text(self, reading: Hypothesis) -> str:
        words = [self.normalize(spelt.text) for spelt in spell(reading.tokens, self.tokenizer.pieces)]
        return " ".join(word for word in words if word)


def _combine(before: list[Alternative], after: list[Alternative], nbest: int) -> list[Alternative]:
    """The best readings of two segments that were decoded apart: every pair, since their scores add up."""
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
