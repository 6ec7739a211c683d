"""The recogniser: the single path from audio to transcripts.

The commands evaluate and transcribe call `recognize`, which decodes the segments of a batch together. Validation
already has encoder_out of whole utterances and calls `hypotheses` and `text`, which use the same search and spelling.
For equal weights, the WER of validation is therefore the WER that evaluate reports.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from types import MappingProxyType
from typing import Any, TypedDict, Unpack, cast, overload

import torch
from torch import Tensor

from asr.base.settings.rule import HOTWORD_SCORE, above, whole
from asr.base.storage.location import printable_url
from asr.base.system.devices import usable_device
from asr.base.text.hidden_pieces import language_of
from asr.base.text.numbers import counted
from asr.base.text.printable import listed
from asr.base.text.words import spell
from asr.core.data.batch import Rejected
from asr.core.data.labels import LANGUAGE
from asr.core.data.manifest import HOTWORDS, Utterance
from asr.core.recognition.chunks import pause_between, pause_in_blanks
from asr.core.recognition.confidence import Calibration
from asr.core.recognition.inference import INFERENCE, NO_NUMBERS, NOTHING, Inference, RecordingEncoder
from asr.core.recognition.long_form import Segment, Segments, at_silences, in_chunks
from asr.core.recognition.model import Model
from asr.core.recognition.pieces import Piece, joined_rows, pieces_of, together
from asr.core.recognition.recordings import Recording, as_utterances, is_single
from asr.core.recognition.timing import with_times, word_times
from asr.core.recognition.transcript import Alternative, Transcript, Word
from asr.errors import AudioError, InputError, shown
from asr.interfaces import NO_BIASING, Biasing, Biasings, Decoder, Encoded, FrameHead, Hypothesis

ELSEWHERE = {  # arguments of other toolkits, and what to give instead
    "batch_size": ". Give batch_seconds, the maximum seconds of audio in a batch",
    "timestamps": ". Leave it out: transcript.words always have start and end, in seconds",
    "return_timestamps": ". Leave it out: transcript.words always have start and end, in seconds",
    "word_timestamps": ". Leave it out: transcript.words always have start and end, in seconds",
    "sampling_rate": ". Give sample_rate",
    "how": ". Give options",
    "num_workers": ". Give options=Inference(num_workers=...), of asr.core.recognition.inference",
}
NUM_CACHED = 64  # compiled lists of hotwords that a recogniser caches
OWN_VALUES: Mapping[str, float] = MappingProxyType({})

logger = logging.getLogger(__name__)


class TranscribeOptions(TypedDict, total=False):
    """Arguments of `Recognizer.transcribe` by name."""

    sample_rate: int | None
    nbest: int | None
    batch_seconds: float | None
    device: str | torch.device | None
    language: str | None
    hotwords: Iterable[str]
    hotword_score: float | None


class Recognizer:
    """A speech recogniser: a model and a decoder.

    Args:
        model: maps features to encoder_out.
        decode: maps encoder_out to hypotheses.
        calibration: calibration of the confidence of words.
    """

    def __init__(self, model: Model, decode: Decoder, calibration: Calibration) -> None:
        self.model = model
        self.recording_encoder = RecordingEncoder(model)
        self.decode = decode
        self.calibration = calibration
        self._compiled = lru_cache(NUM_CACHED)(self._compile)

    def __repr__(self) -> str:
        model = self.model
        encoder, head = type(model.encoder).__name__, type(model.head).__name__
        num_weights = sum(weight.numel() for weight in model.parameters())
        weights = "an exported program" if model.is_program else counted(num_weights, "weight")
        tokens = f"{model.tokenizer.vocab_size - 1:,} tokens"
        rate = f"{model.features.sample_rate:,} Hz"
        return f"<Recognizer: {encoder} with {head}, {weights}, {tokens}, {rate}, {self.decode.description}>"

    @property
    def frame_head(self) -> FrameHead:
        """The head that gives each frame a distribution over tokens.

        Raises:
            InputError: the model has no such head.
        """
        head = self.model.head.frame_head
        if head is None:
            must = "the model's head must give token probabilities for each frame, to align words or show posteriors"
            raise InputError(f"{must}; {type(self.model.head).__name__} does not.")
        return head

    @torch.inference_mode()
    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """Map encoder_out (T', D) to log_probs (T', V) on the CPU.

        Raises:
            InputError: the model has no frame head.
            AudioError: log_probs contain NaN, which decoders would treat as silence.
        """
        with self.recording_encoder.autocast():
            return without_nan(self.frame_head.log_probs(encoder_out[None])[0].cpu())

    def hypotheses(self, encoded: Encoded) -> list[list[Hypothesis]]:
        """Decode the output of the encoder; return each utterance's hypotheses, best first."""
        return self.search(self.evidence(encoded))

    @torch.inference_mode()
    def evidence(self, encoded: Encoded) -> object:
        """Compute the input of the decoder's search."""
        with self.recording_encoder.autocast():
            return self.decode.evidence(encoded)

    @torch.inference_mode()
    def search(
        self, evidence: object, values: Mapping[str, float] = OWN_VALUES, biasings: Biasings = None
    ) -> list[list[Hypothesis]]:
        """Search for the best hypotheses; some decoders also run a part of the network."""
        has_own = biasings is not None and any(biasing.lists for biasing in biasings)
        given: dict[str, Any] = {**values, "biasings": biasings} if has_own else {**values}
        with self.recording_encoder.autocast():
            return self.decode.search(evidence, **given)

    @property
    def label_names(self) -> list[str]:
        """Keys of manifest lines that change what is recognised."""
        own = [] if self.decode.compile_hotwords is None else [HOTWORDS]
        return [*self.model.labels.names, *own]

    def biasing(self, hotwords: Iterable[str], score: float | None = None) -> Biasing:
        """Compile hotwords of an utterance or a stream; the result of the last lists is cached.

        Args:
            hotwords: names and terms as users write them.
            score: bonus for each word of a hotword (natural logarithm); None: the decoder's own.

        Raises:
            InputError: an argument is invalid, or the decoder prefers no hotwords.
        """
        phrases = tuple(hotwords)
        if isinstance(hotwords, str) or not all(isinstance(phrase, str) for phrase in phrases):
            raise InputError(f"hotwords must be a list of phrases; got {shown(hotwords)}.")
        if score is not None:
            HOTWORD_SCORE.check("hotword_score", score)
        return self._compiled(phrases, score)

    @property
    def _beam_hint(self) -> str:
        """Advice to load the model with the beam search that its head prefers; "" if it has none."""
        beams = self.model.head.decoders.beam
        return f' Load the model with decode={{"name": "{beams[0]}"}}.' if beams else ""

    def _compile(self, hotwords: tuple[str, ...], score: float | None) -> Biasing:
        if not hotwords:
            return NO_BIASING
        if self.decode.compile_hotwords is None:
            must = f"hotwords need a beam search; this decoder is {self.decode.description}"
            raise InputError(f"{must}.{self._beam_hint}")
        biasing = self.decode.compile_hotwords(hotwords, score)
        if biasing.impossible:
            names, count = listed([*map(repr, biasing.impossible)]), len(hotwords)
            logger.warning("hotwords: %d of %d phrases cannot be recognised: %s", len(biasing.impossible), count, names)
        return biasing

    def _biasing_of(self, utterance: Utterance) -> Biasing:
        """Return the hotwords of an utterance's labels."""
        return self.biasing(utterance.labels.get(HOTWORDS, "").splitlines())

    def text(self, hypothesis: Hypothesis) -> str:
        """Return the normalised text of a hypothesis."""
        words = [self.model.normalize(word.text) for word in spell(hypothesis.tokens, self.model.tokenizer.pieces)]
        return " ".join(word for word in words if word)

    def recognize(
        self,
        utterances: Sequence[Utterance],
        options: Inference = INFERENCE,
        on_progress: Callable[[float], None] = lambda seconds: None,
        waveforms: Mapping[str, Tensor] = NOTHING,
    ) -> Iterator[tuple[Utterance, Transcript] | Rejected]:
        """Recognise utterances; yield each with its transcript, or a `Rejected` if it cannot be read.

        Args:
            utterances: utterances in any order. Results are yielded batch by batch, sorted by decreasing length within
                a batch; long recordings come last.
            options: inference options.
            on_progress: called with the seconds of audio recognised since the last call.
            waveforms: waveforms of utterances that are already loaded, by utterance id.
        """
        biasing_of = options.biasing_of or self._biasing_of
        joined = _Joined(self, options.nbest)
        failed: Utterance | None = None  # the utterance of `joined`, if one of its segments has an error
        encoded = self.segments(utterances, options, waveforms)
        pieces = pieces_of(encoded, lambda utterance: utterance is failed)
        for group in together(pieces, options.batches, self.model.frame_seconds):
            found = iter(self._found(group, biasing_of))
            for utterance, segment, error in group:
                if segment is not None:
                    joined.add(segment, next(found), utterance.duration)
                    failed = utterance if joined.error else None
                    on_progress(len(segment.encoder_out) * self.model.frame_seconds)
                    continue
                ended, joined, failed = joined, _Joined(self, options.nbest), None
                error = error or ended.error
                if error is None:
                    yield utterance, ended.transcript(utterance.duration)
                else:
                    name = "" if str(error) != NO_NUMBERS else f"{printable_url(utterance.audio_filepath)}: "
                    yield Rejected(utterance, f"{name}{error}")

    def transcripts(
        self, utterances: Sequence[Utterance], options: Inference = INFERENCE, waveforms: Mapping[str, Tensor] = NOTHING
    ) -> list[Transcript]:
        """Recognise utterances; return their transcripts in order.

        Raises:
            AudioError: an utterance cannot be recognised.
        """
        transcripts: dict[str, Transcript] = {}
        for result in self.recognize(utterances, options, waveforms=waveforms):
            if isinstance(result, Rejected):
                raise AudioError(result.reason)
            utterance, transcript = result
            transcripts[utterance.id] = transcript
        return [transcripts[utterance.id] for utterance in utterances]

    @overload
    def transcribe(  # type: ignore[overload-overlap]  # a path is an iterable of paths to mypy
        self, recordings: Recording, options: Inference = INFERENCE, **others: Unpack[TranscribeOptions]
    ) -> Transcript: ...

    @overload
    def transcribe(
        self, recordings: Iterable[Recording], options: Inference = INFERENCE, **others: Unpack[TranscribeOptions]
    ) -> list[Transcript]: ...

    def transcribe(
        self,
        recordings: Recording | Iterable[Recording],
        options: Inference = INFERENCE,
        *,
        sample_rate: int | None = None,
        nbest: int | None = None,
        batch_seconds: float | None = None,
        device: str | torch.device | None = None,
        language: str | None = None,
        hotwords: Iterable[str] = (),
        hotword_score: float | None = None,
        **others: object,
    ) -> Transcript | list[Transcript]:
        """Recognise audio files and waveforms of any length.

        Args:
            recordings: a path, a waveform (a float tensor or NumPy array (S,) in [-1, 1]), a mapping of `array` and
                `sampling_rate`, or several of them.
            options: inference options (`asr.core.recognition.inference.Inference`); `nbest` and `batch_seconds`
                override them.
            sample_rate: sample rate of all given waveforms, in Hz; required for waveforms, ignored for files.
            nbest: maximum number of alternatives in a transcript.
            batch_seconds: maximum audio in one batch, including padding; a smaller value takes less memory.
            device: device to which the model is moved permanently, such as "cuda".
            language: language of the recordings, for a model with a prompt; None: unknown.
            hotwords: names and terms to recognise more easily, in addition to those of the decoder's settings.
            hotword_score: bonus for each word of a hotword (natural logarithm); None: that of the decoder's settings.
            others: none; names that other toolkits use are answered with the name that asr uses.

        Returns:
            The transcript of a single recording; for several recordings, a list in the given order.

        Raises:
            InputError: an argument is invalid, or a recording cannot be used; the message names the first such
                recording.
        """
        for name, value in others.items():
            instead = ELSEWHERE.get(name, "; see help(asr.Recognizer.transcribe)")
            raise InputError(f"transcribe has no argument {name}; got {shown(value)}{instead}.")
        if not (single := is_single(recordings)) and not isinstance(recordings, Iterable):
            raise InputError(f"recordings must be a path, a waveform, or several of them; got {shown(recordings)}.")
        if device is not None:
            self.to(device)
        if nbest is not None:
            whole(1).check("nbest", nbest)
            if nbest > 1 and self.decode.max_hypotheses == 1:
                must = f"nbest must be 1 with a decoder that finds only one hypothesis ({self.decode.description})"
                raise InputError(f"{must}; got {nbest}.{self._beam_hint}")
            options = replace(options, nbest=nbest)
        if batch_seconds is not None:
            above(0).check("batch_seconds", batch_seconds)
            options = replace(options, batches=replace(options.batches, batch_seconds=batch_seconds))
        if language is not None:
            self.model.labels.check(LANGUAGE, language, "language")
            options = replace(options, language=language)
        biasing = self.biasing(hotwords, hotword_score)
        if biasing.lists:
            options = replace(options, biasing_of=lambda utterance: biasing)
        given = [cast(Recording, recordings)] if single else [*cast(Iterable[Recording], recordings)]
        utterances, waveforms = as_utterances(given, sample_rate, self.model.features.sample_rate)
        transcripts = self.transcripts(utterances, options, waveforms)
        return transcripts[0] if single else transcripts

    def to(self, device: str | torch.device, name: str = "device") -> "Recognizer":
        """Move the model to a device.

        Args:
            device: name of the device, such as "cpu" or "cuda:1".
            name: name of the setting or option, for the error message.

        Raises:
            InputError: torch cannot use the device, or the model is an exported program, which runs on the CPU.
        """
        if self.model.is_program and str(device) != "cpu":
            raise InputError(f"{name} must be cpu with a model exported to ONNX; got {str(device)!r}.")
        self.model.to(usable_device(device, name))
        return self

    def _found(
        self, group: Iterable[Piece], biasing_of: Callable[[Utterance], Biasing]
    ) -> list[list[Hypothesis] | AudioError]:
        """Decode the segments among pieces of utterances."""
        segments = [(piece.segment.encoder_out, biasing_of(piece.utterance)) for piece in group if piece.segment]
        return self.decoded([rows for rows, _ in segments], biasings=[biasing for _, biasing in segments])

    def segments(
        self, utterances: Sequence[Utterance], options: Inference = INFERENCE, waveforms: Mapping[str, Tensor] = NOTHING
    ) -> Iterator[tuple[Utterance, Segments] | Rejected]:
        """Yield encoder_out of each utterance, as one segment or, for a long recording, as several.

        Segments of a long recording are computed lazily; iterating over them raises an AudioError if the recording
        cannot be read.

        Args:
            utterances: utterances in any order.
            options: inference options.
            waveforms: waveforms of utterances that are already loaded, by utterance id.
        """
        limit = self.decode.max_seconds
        chunks = options.chunks if limit is None else options.chunks.within(limit)
        segmenter = options.segmenter or (partial(in_chunks, pause=self._pause) if limit is None else at_silences)
        bounds = options.batches, chunks, segmenter
        return self.recording_encoder.segments(
            options.labelled(utterances), *bounds, options.num_workers, options.load, options.check, waveforms
        )

    def _pause(self, encoder_out: Tensor) -> int:
        """Return the frame of a pause in encoder_out (T', D); without a frame head, the decoder finds the pause."""
        if self.model.head.frame_head is not None:
            return pause_in_blanks(self.log_probs(encoder_out))
        [[best, *_]] = self.hypotheses(joined_rows([encoder_out]))
        return pause_between(best.frames or [], len(encoder_out))

    def transcript(
        self,
        duration: float,
        segments: Segments,
        nbest: int = 1,
        values: Mapping[str, float] = OWN_VALUES,
        on_words: Callable[[Sequence[Word]], object] = lambda words: None,
        biasing: Biasing = NO_BIASING,
    ) -> Transcript:
        """Decode the segments of an utterance one by one, and join their words.

        Args:
            duration: duration of the utterance, in seconds.
            segments: output of the method `segments` for the utterance.
            nbest: maximum number of alternatives.
            values: values of tunable settings that replace the decoder's own values.
            on_words: called after each segment with its words, which are final.

        Raises:
            AudioError: the network's output contains NaN, or a long recording cannot be read to its end.
        """
        joined = _Joined(self, nbest)
        for segment in segments:
            [found] = self.decoded([segment.encoder_out], values, [biasing])
            on_words(joined.add(segment, found, duration))
            if joined.error is not None:
                raise joined.error
        return joined.transcript(duration)

    def decoded(
        self, rows: Sequence[Tensor], values: Mapping[str, float] = OWN_VALUES, biasings: Biasings = None
    ) -> list[list[Hypothesis] | AudioError]:
        """Decode several encoder_out (T', D) together.

        Args:
            rows: the encoder's output for utterances or segments, without padding.
            values: values of tunable settings that replace the decoder's own values.
            biasings: hotwords of each row.

        Returns:
            For each row its hypotheses, best first, with frames and confidences of the best; or the error of this row,
            for example because the network's output contains NaN, which decoders would treat as silence. Errors of
            other kinds are raised.
        """
        try:
            return [*self._decoded(rows, values, biasings)]
        except Exception as error:
            if len(rows) == 1:
                if isinstance(error, AudioError):
                    return [error.with_traceback(None)]  # a traceback would keep the tensors
                raise
            logger.debug("%d segments are decoded one by one, because of this error", len(rows), exc_info=error)
        # An error of one row, which is found alone, or too little memory for all, which the end of `except` has freed.
        alone = zip(rows, biasings or [NO_BIASING] * len(rows), strict=True)
        return [found for row, biasing in alone for found in self.decoded([row], values, [biasing])]

    @torch.inference_mode()
    def _decoded(
        self, rows: Sequence[Tensor], values: Mapping[str, float], biasings: Biasings
    ) -> list[list[Hypothesis]]:
        if not rows:
            return []
        encoded = joined_rows(rows)

        @cache
        def log_probs() -> Tensor:
            with self.recording_encoder.autocast():
                return without_nan(self.frame_head.log_probs(encoded.out))

        if "frame_head" in self.decode.needs:
            encoded = encoded._replace(log_probs=log_probs())  # NaN in `out` is NaN here
        else:
            without_nan(encoded.out)
        hypotheses = self.search(self.evidence(encoded), values, biasings)

        def frames_of(number: int) -> Tensor:
            return log_probs()[number, : len(rows[number])]

        return [
            [with_times(best, partial(frames_of, number)), *others] for number, (best, *others) in enumerate(hypotheses)
        ]

    def words(self, hypothesis: Hypothesis, start: float, end: float) -> Iterator[Word]:
        """Yield the words of a hypothesis with their times, to the millisecond, and their confidences.

        A word's confidence is the calibrated product of its tokens' confidences (arXiv:2212.08703, section 3.4).

        Args:
            hypothesis: hypothesis with frames and confidences.
            start: start of the hypothesis's first frame, in seconds.
            end: end of the hypothesis's audio, in seconds.
        """
        frames, confidences = hypothesis.frames or [], hypothesis.confidences or []
        words = spell(hypothesis.tokens, self.model.tokenizer.pieces)
        times = word_times(words, frames, self.model.frame_seconds, start, end, hypothesis.has_ends)
        for word, (first, last) in zip(words, times, strict=True):
            confidence = self.calibration(math.prod(confidences[word.first : word.last + 1]))
            for text in self.model.normalize(word.text).split():
                yield Word(text, round(first, 3), round(last, 3), confidence)

    def alternatives(self, hypotheses: list[Hypothesis], nbest: int) -> list[Alternative]:
        """Return the best hypothesis of each distinct text, at most `nbest`."""
        best: dict[str, float] = {}
        for hypothesis in hypotheses:
            best.setdefault(self.text(hypothesis), hypothesis.score)
            if len(best) == nbest:
                break
        return [Alternative(text, score) for text, score in best.items()]


class _Joined:
    """The words and alternatives of the segments of an utterance so far; `error` is the first error of a segment."""

    def __init__(self, recognizer: Recognizer, nbest: int) -> None:
        self.error: AudioError | None = None
        self._recognizer, self._nbest = recognizer, nbest
        self._words: list[Word] = []
        self._alternatives = [Alternative("", 0.0)]
        self._speech = False
        self._language: str | None = None

    def add(self, segment: Segment, found: list[Hypothesis] | AudioError, duration: float) -> list[Word]:
        """Add a segment of an utterance that lasts `duration` seconds; return its words."""
        if isinstance(found, AudioError):
            self.error = self.error or found
            return []
        num_frames = len(segment.encoder_out)
        self._speech = self._speech or num_frames > 0
        # The last frame may end after the audio.
        end = min(segment.start + num_frames * self._recognizer.model.frame_seconds, duration)
        words = [*self._recognizer.words(found[0], segment.start, end)]
        self._language = language_of(found[0].tokens, self._recognizer.model.tokenizer.names) or self._language
        self._words += words
        self._alternatives = _combine(
            self._alternatives, self._recognizer.alternatives(found, self._nbest), self._nbest
        )
        return words

    def transcript(self, duration: float) -> Transcript:
        """Return the transcript of all segments."""
        return Transcript(tuple(self._words), tuple(self._alternatives), duration, self._speech, self._language)


def _combine(before: list[Alternative], after: list[Alternative], nbest: int) -> list[Alternative]:
    """Join the alternatives of two consecutive segments: return the `nbest` pairs with the highest sums of scores."""
    pairs = [
        Alternative(" ".join(filter(None, (first.text, second.text))), first.score + second.score)
        for first in before
        for second in after
    ]
    best: dict[str, Alternative] = {}
    for pair in sorted(pairs, key=lambda pair: -pair.score):
        best.setdefault(pair.text, pair)  # different pairs of hypotheses can have equal texts
    return list(best.values())[:nbest]


def without_nan(tensor: Tensor) -> Tensor:
    """Return the tensor unless it contains NaN.

    Raises:
        AudioError: it does.
    """
    if tensor.isnan().any():
        raise AudioError(NO_NUMBERS)
    return tensor
