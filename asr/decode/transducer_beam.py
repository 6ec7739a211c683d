"""Beam search of a transducer, with shallow fusion."""

from collections.abc import Callable
from typing import Annotated, cast

import torch
from torch import Tensor

from asr.decode.fusion.shallow_fusion import NEVER, Bonus, ShallowFusion
from asr.decode.predictions import PrefixReader
from asr.decode.prefixes import Prefix
from asr.decode.trails import Beams, Paths, add, score, timed_hypotheses
from asr.interfaces import BLANK_ID, Head, Hypothesis, Span, Tokenizer, TransducerHead, Tunable
from asr.settings.rule import whole


class TransducerBeam:
    """Search for the tokens that score highest over all their paths, with language model, lexicon and hotwords.

    *Source*: Saon et al. 2020, "Alignment-length synchronous decoding for RNN transducer", section 2.2:
    time-synchronous decoding. Times and confidences of tokens come from a CTC head beside the transducer; without one,
    or where there are more tokens than CTC can spell, from the most likely path and its probabilities.

    Args:
        head: with a joiner and a predictor.
        tokenizer: says what tokens spell.
        normalize: as texts are normalised that the hotwords have to fit.
        beam_size: prefixes kept from frame to frame, and from token to token within one.
        beam_threshold: those that score less than the best one by more than this are not kept (natural logarithm).
        tokens_per_frame: the most likely tokens, which are tried behind a prefix, as blank always is.
        max_symbols: tokens in a frame, at most.
        fusion: makes what is added to the acoustic score, given tokenizer and normalize.

    Raises:
        InputError: a setting does not hold, or a file cannot be used.
    """

    streaming = None
    needs = ("joiner",)
    max_seconds = None

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        beam_size: Annotated[int, whole(1, 10_000)],
        beam_threshold: Bonus,
        tokens_per_frame: Annotated[int, whole(1, 10_000)],
        max_symbols: Annotated[int, whole(1, 1_000)],
        fusion: Callable[[Tokenizer, Callable[[str], str]], ShallowFusion],
    ) -> None:
        self.head = cast(TransducerHead, head)
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size)
        self.max_symbols = max_symbols
        self.fusion = fusion(tokenizer, normalize)
        self.hotwords = self.fusion.hotwords

    @property
    def tunable(self) -> dict[str, Tunable]:
        """Weight and word insertion bonus of the language model, if there is one."""
        return self.fusion.tunable

    @property
    def description(self) -> str:
        """The search, and what takes part in it."""
        return ", ".join([f"beam search, {self.beam_size} hypotheses", *self.fusion.description])

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> list[Tensor]:
        """What the joiner takes of each frame, (T', J), utterance by utterance."""
        rows = self.head.joiner.of_frames(encoder_out)  # (B, T', J)
        return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]

    @torch.inference_mode()
    def search(self, evidence: list[Tensor], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses an utterance.

        Args:
            evidence: see there.
            values: of what is tunable, instead of its own.
        """
        fusion = self.fusion.weighed(**values)
        return [
            [self._aligned(hypothesis, len(frames)) for hypothesis in _Search(self, fusion)(frames)]
            for frames in evidence
        ]

    def _aligned(self, hypothesis: Hypothesis, num_frames: int) -> Hypothesis:
        """Leave times to the CTC head, if it can spell the tokens."""
        frame_head = self.head.frame_head
        if frame_head is None or frame_head.min_frames(hypothesis.tokens) > num_frames:
            return hypothesis
        return hypothesis._replace(frames=None, confidences=None)


class _Search:
    """The search in one utterance's frames."""

    def __init__(self, settings: TransducerBeam, fusion: ShallowFusion) -> None:
        self.settings = settings
        self.fusion = fusion
        self.gains = fusion.at_most()
        self.joiner = settings.head.joiner
        self.empty = Prefix(None, BLANK_ID, fusion.start(), 0.0)
        self.reader = PrefixReader(settings.head.predictor, self.joiner, self.empty)

    def __call__(self, frames: Tensor) -> list[Hypothesis]:
        """Find the hypotheses in frames (T', J), the best first."""
        beams: Beams = {self.empty: Paths(0.0, 0.0, None)}
        for number, frame in enumerate(frames):
            beams = self._step(beams, frame, Span(number, number + 1))
            self.reader.forget_all_but(beams)
        return timed_hypotheses(self.fusion, beams)

    def _step(self, waiting: Beams, frame: Tensor, place: Span) -> Beams:
        """Write tokens in a frame, then the blank behind them: the beams before the frame to those behind it."""
        settings = self.settings
        done: Beams = {}
        for number in range(settings.max_symbols + 1):
            log_probs = self.joiner(frame, self.reader(waiting)).log_softmax(dim=-1)  # (N, V)
            for (prefix, paths), blank in zip(waiting.items(), log_probs[:, BLANK_ID].tolist(), strict=True):
                add(done, prefix, paths.passed(blank))
            if number == settings.max_symbols:
                break
            waiting = self._longer(waiting, log_probs, self._floor(done), place)
            if not waiting:
                break
        floor = self._floor(done)
        best = sorted(done.items(), key=lambda pair: score(*pair), reverse=True)[: settings.beam_size]
        return {prefix: paths for prefix, paths in best if score(prefix, paths) >= floor}

    def _longer(self, waiting: Beams, log_probs: Tensor, floor: float, place: Span) -> Beams:
        """Find the prefixes that are longer by a token and may yet be kept, the best first."""
        log_probs[:, BLANK_ID] = NEVER
        values, tokens = log_probs.topk(min(self.settings.tokens_per_frame, log_probs.shape[1] - 1), dim=-1)
        longer: list[tuple[Prefix, Paths]] = []
        rows = zip(waiting.items(), values.tolist(), tokens.tolist(), strict=True)
        self.fusion.read(prefix.context for prefix in waiting)
        for (prefix, paths), row_values, row_tokens in rows:
            for value, token in zip(row_values, row_tokens, strict=True):
                if score(prefix, paths) + value + self.gains[token] < floor:
                    continue
                child = prefix.extend(self.fusion, token)
                if child is not None and paths.total + value + child.fused >= floor:
                    longer.append((child, paths.wrote(value, place, value)))
        longer.sort(key=lambda pair: score(*pair), reverse=True)
        return dict(longer[: self.settings.beam_size])

    def _floor(self, done: Beams) -> float:
        """What a prefix must score to be kept beside those that are done with a frame."""
        scores = sorted((score(*pair) for pair in done.items()), reverse=True)
        enough = len(scores) >= self.settings.beam_size
        return max(scores[0] - self.settings.beam_threshold, scores[self.settings.beam_size - 1] if enough else NEVER)
