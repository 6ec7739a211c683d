"""Beam search of an attention decoder that CTC's prefix scores keep to the frames, with shallow fusion."""

from collections.abc import Callable
from heapq import nlargest
from typing import Annotated, NamedTuple, cast

import torch
from torch import Tensor

from asr.decode.ctc_prefix import PrefixScores
from asr.decode.fusion.shallow_fusion import NEVER, Bonus, ShallowFusion
from asr.decode.prefixes import Prefix
from asr.interfaces import (
    BOUNDARY_ID,
    AttentionHead,
    Cache,
    Head,
    Hypothesis,
    Memory,
    TokenDecoder,
    Tokenizer,
    Tunable,
)
from asr.settings.rule import DECODED_SECONDS, Fraction, whole


class JointEvidence(NamedTuple):
    """What is searched in of an utterance.

    Args:
        encoder_out: (T', D).
        log_probs: of CTC, (T', V).
    """

    encoder_out: Tensor
    log_probs: Tensor


class JointBeam:
    """Search for the tokens that attention decoder and CTC, with language model, lexicon and hotwords, score highest.

    Token by token: each hypothesis is a token longer than a step before, or has ended. CTC counts for all strings that
    begin as a hypothesis does, so that without bonuses no score rises by a further token; what the frames cannot spell
    is no hypothesis. The search ends where what has not ended is worse than the best that has by `beam_threshold`.

    *Source*: Watanabe et al. 2017, "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition", section IV.

    Args:
        head: with a frame head and a token decoder.
        tokenizer: says what tokens spell.
        normalize: as texts are normalised that the hotwords have to fit.
        beam_size: hypotheses kept from token to token.
        beam_threshold: those that score less than the best one by more than this are not kept (natural logarithm).
        tokens_per_step: the tokens that the decoder holds most likely, which are tried behind a hypothesis.
        ctc_weight: factor of CTC's log-probability; the decoder's has the rest.
        max_seconds: of audio that is searched at once; longer recordings are cut at silences.
        fusion: makes what is added to the acoustic score, given tokenizer and normalize.

    Raises:
        InputError: a setting does not hold, or a file cannot be used.
    """

    streaming = None
    needs = ("frame_head", "token_decoder")

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        beam_size: Annotated[int, whole(1, 10_000)],
        beam_threshold: Bonus,
        tokens_per_step: Annotated[int, whole(1, 10_000)],
        ctc_weight: Fraction,
        max_seconds: Annotated[float, DECODED_SECONDS],
        fusion: Callable[[Tokenizer, Callable[[str], str]], ShallowFusion],
    ) -> None:
        self._head = cast(AttentionHead, head)
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_step = min(tokens_per_step, tokenizer.vocab_size - 1)
        self.ctc_weight = ctc_weight
        self.max_seconds = max_seconds
        self.fusion = fusion(tokenizer, normalize)
        self.hotwords = self.fusion.hotwords

    @property
    def tunable(self) -> dict[str, Tunable]:
        """CTC's weight; weight and word insertion bonus of the language model, if there is one."""
        return {"ctc_weight": Tunable(self.ctc_weight, (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)), **self.fusion.tunable}

    @property
    def description(self) -> str:
        """The search, and what takes part in it."""
        return ", ".join(
            [f"joint beam search, {self.beam_size} hypotheses, CTC {self.ctc_weight:g}", *self.fusion.description]
        )

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> list[JointEvidence]:
        """Keep the frames, and what CTC says of them, utterance by utterance."""
        log_probs = self._head.frame_head.log_probs(encoder_out).cpu()
        cut = zip(encoder_out, log_probs, lengths.tolist(), strict=True)
        return [JointEvidence(out[:length], values[:length]) for out, values, length in cut]

    def search(self, evidence: list[JointEvidence], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses an utterance.

        Args:
            evidence: see there.
            values: of what is tunable, instead of its own.
        """
        ctc_weight = values.get("ctc_weight", self.ctc_weight)
        fusion = self.fusion.weighed(**values)
        bounds = (self.beam_size, self.beam_threshold, self.tokens_per_step)
        return [_Search(frames, self._head.token_decoder, fusion, ctc_weight, *bounds)() for frames in evidence]


class _Beam(NamedTuple):
    """K hypotheses that have not ended.

    Args:
        prefixes: their tokens, and what fusion says to them.
        last: their last tokens, (K,).
        attention: log-probability by the token decoder, (K,).
        paths: of `PrefixScores`.
        cache: of the token decoder, without the last tokens.
    """

    prefixes: list[Prefix]
    last: Tensor
    attention: Tensor
    paths: Tensor
    cache: Cache


Grown = tuple[float, int, int, Prefix]  # score, which of the beam grew, by which of its tokens, to what


class _Search:
    """The search in one utterance's frames."""

    def __init__(
        self,
        frames: JointEvidence,
        decoder: TokenDecoder,
        fusion: ShallowFusion,
        ctc_weight: float,
        beam_size: int,
        beam_threshold: float,
        tokens_per_step: int,
    ) -> None:
        device = frames.encoder_out.device
        self.device = device
        self.decoder = decoder
        self.memory: Memory = decoder.remember(frames.encoder_out[None], torch.tensor([len(frames[0])], device=device))
        self.ctc = PrefixScores(frames.log_probs)
        self.fusion = fusion
        self.ctc_weight = ctc_weight
        self.beam_size = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_step = tokens_per_step

    def __call__(self) -> list[Hypothesis]:
        """Find the hypotheses, the best first."""
        empty = Prefix(None, BOUNDARY_ID, self.fusion.start(), 0.0)
        nothing = torch.zeros(1, dtype=torch.float64)
        beam = _Beam([empty], torch.tensor([BOUNDARY_ID]), nothing, self.ctc.start(), self.decoder.start(1))
        ended: list[Hypothesis] = []
        while beam.prefixes:
            self.fusion.read(prefix.context for prefix in beam.prefixes)
            log_probs, cache = self.decoder(beam.last[:, None].to(self.device), self.memory, beam.cache)
            attention = beam.attention[:, None] + log_probs[:, 0].cpu().double()  # (K, V)
            ended += self._end(beam, attention[:, BOUNDARY_ID])
            attention[:, BOUNDARY_ID] = NEVER
            best = max((hypothesis.score for hypothesis in ended), default=NEVER)
            beam = self._grow(beam._replace(cache=cache), attention, best)
        ended.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
        return ended[: self.beam_size]

    def _end(self, beam: _Beam, attention: Tensor) -> list[Hypothesis]:
        """End each hypothesis that may end here; the empty one always may."""
        scores = self._joint(attention, self.ctc.whole(beam.paths)).tolist()
        ended: list[Hypothesis] = []
        for prefix, score in zip(beam.prefixes, scores, strict=True):
            gain = self.fusion.finish(prefix.context)
            if gain is not None and score > NEVER:
                ended.append(Hypothesis(prefix.tokens(), score + prefix.fused + gain))
        return ended

    def _grow(self, beam: _Beam, attention: Tensor, best_ended: float) -> _Beam:
        """Try the likeliest tokens (of attention, (K, V)) behind each hypothesis and keep the best of what comes."""
        attention, tokens = attention.topk(self.tokens_per_step, dim=1)  # (K, C)
        scores = self._joint(attention, self.ctc.extended(beam.paths, beam.last, tokens))
        grown: list[Grown] = []
        for row, column in (scores > NEVER).nonzero().tolist():
            prefix = beam.prefixes[row].extend(self.fusion, int(tokens[row, column]))
            if prefix is not None:
                grown.append((float(scores[row, column]) + prefix.fused, row, column, prefix))
        grown = nlargest(self.beam_size, grown, key=lambda one: one[0])
        floor = max([best_ended, *(score for score, *_ in grown[:1])]) - self.beam_threshold
        return self._kept(beam, attention, tokens, [one for one in grown if one[0] >= floor])

    def _kept(self, beam: _Beam, attention: Tensor, tokens: Tensor, grown: list[Grown]) -> _Beam:
        rows = torch.tensor([row for _, row, _, _ in grown], dtype=torch.int64)
        columns = torch.tensor([column for _, _, column, _ in grown], dtype=torch.int64)
        last = tokens[rows, columns]
        paths = self.ctc.grow(beam.paths[rows], beam.last[rows], last)
        cache = [block[rows.to(self.device)] for block in beam.cache]
        return _Beam([prefix for *_, prefix in grown], last, attention[rows, columns], paths, cache)

    def _joint(self, attention: Tensor, ctc: Tensor) -> Tensor:
        """Weigh both; what CTC cannot spell is impossible whatever CTC weighs."""
        joint = (1 - self.ctc_weight) * attention + self.ctc_weight * ctc
        return joint.masked_fill(ctc == NEVER, NEVER)
