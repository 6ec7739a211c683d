"""Beam search of a transducer, with shallow fusion."""

from collections.abc import Callable
from typing import Annotated, cast

import torch
from torch import Tensor

from asr.decode.fusion.shallow_fusion import NEVER, Bonus, FusionMaker, ShallowFusion
from asr.decode.predictions import PrefixReader
from asr.decode.prefixes import Prefix
from asr.decode.trails import Beams, Paths, add, score, timed_hypotheses
from asr.interfaces import BLANK_ID, Encoded, Head, Hypothesis, Span, Tokenizer, TransducerHead
from asr.settings.rule import whole


class TransducerBeam:
    """Search for the tokens with the highest total score of all their paths, language model, lexicon and hotwords.

    *Source*: Saon et al. 2020, "Alignment-length synchronous decoding for RNN transducer", section 2.2:
    time-synchronous decoding. Times and confidences of tokens come from a CTC head beside the transducer. Without a
    CTC head, or if the utterance has too few frames for CTC to spell the tokens, they come from the most likely path.

    Args:
        head: a head with a joiner and a predictor.
        tokenizer: its pieces spell the words of language model, lexicon and hotwords.
        normalize: the text normaliser, applied to hotwords.
        beam_size: maximum number of prefixes after each frame; the limit also applies after each token within a frame.
        beam_threshold: prefixes are pruned if the best prefix scores higher by more than this (natural logarithm).
        tokens_per_frame: number of most likely tokens that extend a prefix, not counting the blank.
        max_symbols: maximum number of tokens in a frame.
        fusion: makes the shallow fusion, given tokenizer and normalize.

    Raises:
        InputError: a setting is invalid, or a file cannot be used.
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
        fusion: FusionMaker,
    ) -> None:
        self.head = cast(TransducerHead, head)
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size)
        self.max_symbols = max_symbols
        self.fusion = fusion(tokenizer, normalize)
        self.hotwords, self.tunable = self.fusion.hotwords, self.fusion.tunable
        self.description = self.fusion.describe(f"beam search, {beam_size} hypotheses")

    def evidence(self, encoded: Encoded) -> list[Tensor]:
        """Return the joiner's input from the frames of each utterance, (T', J)."""
        rows = self.head.joiner.of_frames(encoded.out)  # (B, T', J)
        return [row[:length] for row, length in zip(rows, encoded.frame_counts, strict=True)]

    @torch.inference_mode()
    def search(self, evidence: list[Tensor], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses per utterance."""
        fusion = self.fusion.weighed(**values)
        return [
            [self._aligned(hypothesis, len(frames)) for hypothesis in _Search(self, fusion)(frames)]
            for frames in evidence
        ]

    def _aligned(self, hypothesis: Hypothesis, num_frames: int) -> Hypothesis:
        """Remove times and confidences if the CTC head can align the tokens; it then computes better ones."""
        frame_head = self.head.frame_head
        if frame_head is None or frame_head.min_frames(hypothesis.tokens) > num_frames:
            return hypothesis
        return hypothesis._replace(frames=None, confidences=None)


class _Search:
    """Search over the frames of one utterance."""

    def __init__(self, settings: TransducerBeam, fusion: ShallowFusion) -> None:
        self.settings = settings
        self.fusion = fusion
        self.gains = fusion.at_most()
        self.joiner = settings.head.joiner
        self.empty = Prefix(None, BLANK_ID, fusion.start(), 0.0)
        self.reader = PrefixReader(settings.head.predictor, self.joiner, self.empty)

    def __call__(self, frames: Tensor) -> list[Hypothesis]:
        """Return the hypotheses of frames (T', J), the best first."""
        beams: Beams = {self.empty: Paths(0.0, 0.0, None)}
        for number, frame in enumerate(frames):
            beams = self._step(beams, frame, Span(number, number + 1))
            self.reader.forget_all_but(beams)
        return timed_hypotheses(self.fusion, beams)

    def _step(self, active: Beams, frame: Tensor, span: Span) -> Beams:
        """Extend beams by the tokens of a frame, then by its blank; return the beams after the frame."""
        settings = self.settings
        done: Beams = {}
        for number in range(settings.max_symbols + 1):
            log_probs = self.joiner(frame, self.reader(active)).log_softmax(dim=-1)  # (N, V)
            for (prefix, paths), blank in zip(active.items(), log_probs[:, BLANK_ID].tolist(), strict=True):
                add(done, prefix, paths.passed(blank))
            if number == settings.max_symbols:
                break
            active = self._longer(active, log_probs, self._floor(done), span)
            if not active:
                break
        floor = self._floor(done)
        best = sorted(done.items(), key=lambda pair: score(*pair), reverse=True)[: settings.beam_size]
        return {prefix: paths for prefix, paths in best if score(prefix, paths) >= floor}

    def _longer(self, active: Beams, log_probs: Tensor, floor: float, span: Span) -> Beams:
        """Extend prefixes by a token; return the extensions whose scores reach the floor, the best first."""
        log_probs[:, BLANK_ID] = NEVER
        values, tokens = log_probs.topk(min(self.settings.tokens_per_frame, log_probs.shape[1] - 1), dim=-1)
        longer: list[tuple[Prefix, Paths]] = []
        rows = zip(active.items(), values.tolist(), tokens.tolist(), strict=True)
        self.fusion.read(prefix.context for prefix in active)
        for (prefix, paths), row_values, row_tokens in rows:
            for value, token in zip(row_values, row_tokens, strict=True):
                if score(prefix, paths) + value + self.gains[token] < floor:
                    continue
                child = prefix.extend(self.fusion, token)
                if child is not None and paths.total + value + child.fused >= floor:
                    longer.append((child, paths.wrote(value, span, value)))
        longer.sort(key=lambda pair: score(*pair), reverse=True)
        return dict(longer[: self.settings.beam_size])

    def _floor(self, done: Beams) -> float:
        """Return the minimum score to enter the beams that have completed a frame."""
        scores = sorted((score(*pair) for pair in done.items()), reverse=True)
        enough = len(scores) >= self.settings.beam_size
        return max(scores[0] - self.settings.beam_threshold, scores[self.settings.beam_size - 1] if enough else NEVER)
