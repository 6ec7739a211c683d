"""The recogniser: the one path from audio to transcripts.

`evaluate` and `transcribe` come through `segments` and `transcript`; a validation, which has encoder_out of whole
utterances already, through `hypotheses` and `text`: the same search and the same spelling. So the WER seen in training
is, for the same weights, the WER reported.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import cast, overload

import torch
from torch import Tensor

from asr.data.batch import Rejected
from asr.data.manifest import Utterance
from asr.errors import AudioError, InputError, shown
from asr.interfaces import Decoder, FrameHead, Hypothesis
from asr.recognition.chunks import pause_between, pause_in_blanks
from asr.recognition.confidence import Calibration
from asr.recognition.inference import INFERENCE, NO_NUMBERS, NOTHING, Inference, RecordingEncoder
from asr.recognition.long_form import Segments, at_silences, in_chunks
from asr.recognition.model import Model
from asr.recognition.recordings import Recording, as_utterances, is_single
from asr.recognition.timing import with_times, word_times
from asr.recognition.transcript import Alternative, Transcript, Word
from asr.settings.rule import above, whole
from asr.storage.location import printable_url
from asr.system.devices import usable_device
from asr.text.words import spell

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
        self.recording_encoder = RecordingEncoder(model)
        self.decode = decode
        self.calibration = calibration

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
            AudioError: it gives NaN, which decoders would take for silence.
        """
        with self.recording_encoder.autocast():
            log_probs = self.frame_head.log_probs(encoder_out[None])[0].cpu()
        if log_probs.isnan().any():
            raise AudioError(NO_NUMBERS)
        return log_probs

    def checked_log_probs(self, encoder_out: Tensor) -> Tensor | None:
        """encoder_out (T', D) to log_probs (T', V) of the frame head, if there is one.

        Raises:
            AudioError: the net gives NaN, which decoders would take for silence.
        """
        if self.model.head.frame_head is not None:
            return self.log_probs(encoder_out)
        if encoder_out.isnan().any():
            raise AudioError(NO_NUMBERS)
        return None

    def hypotheses(self, encoder_out: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """encoder_out (B, T', D), (B,) to the hypotheses of each utterance, the best first."""
        return self.search(self.evidence(encoder_out, lengths))

    @torch.inference_mode()
    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> object:
        """encoder_out (B, T', D), (B,) to what the decoder searches in."""
        with self.recording_encoder.autocast():
            return self.decode.evidence(encoder_out, lengths)

    @torch.inference_mode()
    def search(self, evidence: object, values: Mapping[str, float] = OWN_VALUES) -> list[list[Hypothesis]]:
        """Search in what `evidence` gave; a decoder may run a part of the net for it.

        Args:
            evidence: see there.
            values: of what the decoder can tune, instead of its own.
        """
        with self.recording_encoder.autocast():
            return self.decode.search(evidence, **values)

    def text(self, hypothesis: Hypothesis) -> str:
        """Spell a hypothesis, normalised."""
        words = [self.model.normalize(word.text) for word in spell(hypothesis.tokens, self.model.tokenizer.pieces)]
        return " ".join(word for word in words if word)

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
        yield from self._recognize(utterances, how, advance, NOTHING)

    @overload
    def transcribe(  # type: ignore[overload-overlap]  # a path is an iterable of paths to mypy
        self,
        recordings: Recording,
        how: Inference = INFERENCE,
        *,
        sample_rate: int | None = None,
        nbest: int | None = None,
        batch_seconds: float | None = None,
        device: str | torch.device | None = None,
    ) -> Transcript: ...

    @overload
    def transcribe(
        self,
        recordings: Iterable[Recording],
        how: Inference = INFERENCE,
        *,
        sample_rate: int | None = None,
        nbest: int | None = None,
        batch_seconds: float | None = None,
        device: str | torch.device | None = None,
    ) -> list[Transcript]: ...

    def transcribe(
        self,
        recordings: Recording | Iterable[Recording],
        how: Inference = INFERENCE,
        *,
        sample_rate: int | None = None,
        nbest: int | None = None,
        batch_seconds: float | None = None,
        device: str | torch.device | None = None,
    ) -> Transcript | list[Transcript]:
        """Recognise audio files and waveforms of any length.

        Args:
            recordings: a path, or a waveform, a float tensor or NumPy array (S,) in [-1, 1]; or several of them.
            how: settings of `asr.recognition.inference.Inference`, which the next two replace.
            sample_rate: of all waveforms given, in Hz. It must be given with waveforms; files have their own.
            nbest: number of alternatives in a transcript, at most.
            batch_seconds: most audio in one batch, padding included; less takes less memory.
            device: to move the model to, such as "cuda"; it stays there.

        Returns:
            A transcript for a single recording; for several a list in their order.

        Raises:
            InputError: an argument does not hold, or a recording cannot be used; it names the first of them.
        """
        if is_single(recordings):
            return self.transcribe(
                [cast(Recording, recordings)],
                how,
                sample_rate=sample_rate,
                nbest=nbest,
                batch_seconds=batch_seconds,
                device=device,
            )[0]
        if not isinstance(recordings, Iterable):
            raise InputError(f"recordings must be a path, a waveform, or several of them; got {shown(recordings)}.")
        if device is not None:
            self.to(device)
        if nbest is not None:
            whole(1).check("nbest", nbest)
            if nbest > 1 and self.decode.max_hypotheses == 1:
                must = f"nbest must be 1 with a decoder that finds one hypothesis ({self.decode.description})"
                raise InputError(f'{must}; got {nbest}. Load the model with decode={{"name": "beam"}}.')
            how = replace(how, nbest=nbest)
        if batch_seconds is not None:
            above(0).check("batch_seconds", batch_seconds)
            how = replace(how, batches=replace(how.batches, batch_seconds=batch_seconds))
        given = [*recordings]
        utterances, waveforms = as_utterances(given, sample_rate, self.model.features.sample_rate)
        transcripts: dict[str, Transcript] = {}
        for result in self._recognize(utterances, how, lambda seconds: None, waveforms):
            if isinstance(result, Rejected):
                raise AudioError(result.reason)
            utterance, transcript = result
            transcripts[utterance.id] = transcript
        return [transcripts[utterance.id] for utterance in utterances]

    def to(self, device: str | torch.device, name: str = "device") -> "Recognizer":
        """Move the model to a device.

        Args:
            device: a kind of device that torch has here, such as "cpu" or "cuda:1".
            name: of the setting or option, for the message.

        Raises:
            InputError: torch cannot use it here, or the model is an exported program, which runs on the CPU.
        """
        if self.model.is_program and str(device) != "cpu":
            raise InputError(f"{name} must be cpu with a model exported to ONNX; got {str(device)!r}.")
        self.model.to(usable_device(device, name))
        return self

    def _recognize(
        self,
        utterances: Sequence[Utterance],
        how: Inference,
        advance: Callable[[float], None],
        waveforms: Mapping[str, Tensor],
    ) -> Iterator[tuple[Utterance, Transcript] | Rejected]:
        for result in self.segments(utterances, how, waveforms):
            if isinstance(result, Rejected):
                yield result
                continue
            utterance, segments = result
            try:
                yield utterance, self.transcript(utterance.duration, segments, how.nbest, advance)
            except AudioError as error:  # a long recording is read while it is recognised
                named = "" if str(error) != NO_NUMBERS else f"{printable_url(utterance.audio_filepath)}: "
                yield Rejected(utterance, f"{named}{error}")

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
        most = self.decode.max_seconds
        chunks = how.chunks if most is None else how.chunks.within(most)
        segmenter = how.segmenter or (partial(in_chunks, pause=self._pause) if most is None else at_silences)
        bounds = how.batches, chunks, segmenter
        return self.recording_encoder.segments(utterances, *bounds, how.num_workers, how.load, how.check, waveforms)

    def _pause(self, encoder_out: Tensor) -> int:
        """Find the frame of encoder_out (T', D) to cut at: in a pause, as the frame head or else the decoder tells."""
        if self.model.head.frame_head is not None:
            return pause_in_blanks(self.log_probs(encoder_out))
        length = torch.tensor([len(encoder_out)], device=encoder_out.device)
        [[best, *_]] = self.hypotheses(encoder_out[None], length)
        return pause_between(best.frames or [], len(encoder_out))

    def transcript(
        self,
        duration: float,
        segments: Segments,
        nbest: int = 1,
        advance: Callable[[float], None] = lambda seconds: None,
        values: Mapping[str, float] = OWN_VALUES,
        on_words: Callable[[Sequence[Word]], object] = lambda words: None,
    ) -> Transcript:
        """Decode an utterance's segments, one by one, and join what comes out.

        Args:
            duration: of the utterance, in seconds.
            segments: as `segments` yields them.
            nbest: how many alternatives are kept, at most.
            advance: told how many seconds of audio were decoded, as they are.
            values: of what the decoder can tune, instead of its own.
            on_words: called after each segment with its words, which are final.
        """
        words: list[Word] = []
        alternatives = [Alternative("", 0.0)]
        speech = False
        for start, encoder_out in segments:
            speech = speech or len(encoder_out) > 0
            log_probs = self.checked_log_probs(encoder_out)
            length = torch.tensor([len(encoder_out)], device=encoder_out.device)
            [hypotheses] = self.search(self.evidence(encoder_out[None], length), values)
            end = min(start + len(encoder_out) * self.model.frame_seconds, duration)  # the last frame may reach beyond
            segment_words = [*self.words(with_times(hypotheses[0], log_probs), start, end)]
            words += segment_words
            alternatives = _combine(alternatives, self._alternatives(hypotheses, nbest), nbest)
            on_words(segment_words)
            advance(len(encoder_out) * self.model.frame_seconds)
        return Transcript(tuple(words), tuple(alternatives), duration, speech)

    def words(self, hypothesis: Hypothesis, start: float, end: float) -> Iterator[Word]:
        """Give words the times and the confidence of their tokens.

        A word is as sure as all of its tokens together (arXiv:2212.08703, section 3.4: product).

        Args:
            hypothesis: with frames and confidences.
            start: of its first frame, in seconds.
            end: of its audio, in seconds.
        """
        frames, confidences = hypothesis.frames or [], hypothesis.confidences or []
        words = spell(hypothesis.tokens, self.model.tokenizer.pieces)
        times = word_times(words, frames, self.model.frame_seconds, start, end, hypothesis.has_ends)
        for word, (first, last) in zip(words, times, strict=True):
            confidence = self.calibration(math.prod(confidences[word.first : word.last + 1]))
            for text in self.model.normalize(word.text).split():
                yield Word(text, first, last, confidence)

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
        Alternative(" ".join(filter(None, (first.text, second.text))), first.score + second.score)
        for first in before
        for second in after
    ]
    best: dict[str, Alternative] = {}
    for pair in sorted(pairs, key=lambda pair: -pair.score):
        best.setdefault(pair.text, pair)  # a word may be the end of one or the beginning of the other
    return list(best.values())[:nbest]
