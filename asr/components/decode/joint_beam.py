"""Joint beam search of an attention decoder and CTC prefix scores, with shallow fusion."""

from collections.abc import Callable
from heapq import nlargest
from operator import itemgetter
from typing import Annotated, NamedTuple, cast

import torch
from torch import Tensor

from asr.base.settings.rule import DECODED_SECONDS, Fraction, whole
from asr.components.decode.fusion.shallow_fusion import NEVER, Bonus, FusionMaker, ShallowFusion
from asr.components.decode.prefixes import Prefix
from asr.interfaces import (
    BLANK_ID,
    BOUNDARY_ID,
    AttentionHead,
    Biasings,
    Cache,
    Encoded,
    Head,
    Hypothesis,
    Memory,
    TokenDecoder,
    Tokenizer,
    Tunable,
)

CTC_WEIGHTS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)  # values that asr.tune tries


class PrefixScores:
    """Compute the scores of several prefixes of one utterance in a batch.

    *Source*: Watanabe et al. 2017, "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition", algorithm 2.
    *Differs from the paper*: the loops over frames are cumulative sums, which need the range of float64.

    The `paths` of K prefixes, (K, 2, T' + 1), are log-probabilities. Element [k, i, t] sums all paths through the first
    t frames that spell prefix k and end in its last token (i = 0) or in blank (i = 1).

    Args:
        log_probs: log-probabilities of CTC, (T', V).
    """

    def __init__(self, log_probs: Tensor) -> None:
        self._log_probs = log_probs.double().T  # (V, T')

    def start(self) -> Tensor:
        """Return the `paths` of the empty prefix, (1, 2, T' + 1)."""
        in_blank = torch.cat([torch.zeros(1, dtype=torch.float64), self._log_probs[BLANK_ID].cumsum(0)])
        return torch.stack([torch.full_like(in_blank, -torch.inf), in_blank])[None]

    @staticmethod
    def whole(paths: Tensor) -> Tensor:
        """Return the log-probability of the prefixes as complete strings, (K,)."""
        return paths[:, :, -1].logsumexp(dim=1)

    def extended(self, paths: Tensor, last: Tensor, tokens: Tensor) -> Tensor:
        """Return the scores (K, C) of K prefixes with last tokens `last` (K,), each extended by C tokens (K, C)."""
        return (_before(paths, last, tokens) + self._log_probs[tokens]).logsumexp(dim=2)

    def grow(self, paths: Tensor, last: Tensor, tokens: Tensor) -> Tensor:
        """Return the `paths` of K prefixes, with last tokens (K,), each extended by one of `tokens` (K,)."""
        in_token = _follow(_before(paths, last, tokens[:, None])[:, 0], self._log_probs[tokens])
        in_blank = _follow(in_token[:, :-1], self._log_probs[BLANK_ID].expand(len(tokens), -1))
        return torch.stack([in_token, in_blank], dim=1)


def _before(paths: Tensor, last: Tensor, tokens: Tensor) -> Tensor:
    """Return the paths that tokens (K, C) may extend, (K, C, T'); a repeated token only those that end in a blank."""
    in_any, in_blank = paths.logsumexp(dim=1)[:, None, :-1], paths[:, 1, None, :-1]
    return torch.where((tokens == last[:, None])[:, :, None], in_blank, in_any)


def _follow(entering: Tensor, log_probs: Tensor) -> Tensor:
    """Return the paths (K, T' + 1) that stay in a token, or enter it from the paths `entering` (K, T').

    As probabilities, the results are r[0] = 0 and r[t] = (r[t-1] + entering[t-1]) p[t]. They are computed from
    cumulative sums: r[t] / P[t] is the sum of entering[s-1] / P[s-1] over all s up to t, where P[t] is the product of
    p up to t.
    """
    products = log_probs.cumsum(dim=1)
    before = torch.nn.functional.pad(products[:, :-1], (1, 0))
    reached = products + (entering - before).logcumsumexp(dim=1)
    return torch.nn.functional.pad(reached, (1, 0), value=-torch.inf)


class JointEvidence(NamedTuple):
    """Input of the search for one utterance.

    Args:
        encoder_out: (T', D).
        log_probs: log-probabilities of CTC, (T', V).
    """

    encoder_out: Tensor
    log_probs: Tensor


class JointBeam:
    """Search for the tokens with the highest total score of attention, CTC, language model, lexicon and hotwords.

    Each step extends every hypothesis by a token or ends it. The CTC score is the total probability of all strings that
    begin with the hypothesis, so without bonuses a further token never raises a score. Prefixes that the frames cannot
    spell are excluded. The search stops when the best ended hypothesis scores higher than all open ones by more than
    `beam_threshold`.

    *Source*: Watanabe et al. 2017, "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition", section IV.

    Args:
        head: a head with a frame head and a token decoder.
        beam_size: number of hypotheses after each step.
        beam_threshold: hypotheses are pruned if the best one scores higher by more than this (natural logarithm).
        tokens_per_step: number of the decoder's most likely tokens that extend a hypothesis.
        ctc_weight: factor of CTC's log-probability; the decoder's factor is 1 - ctc_weight.
        max_seconds: maximum seconds of audio decoded in one piece; longer recordings are cut at silences.
        fusion: makes the shallow fusion, given tokenizer and normalize.

    Raises:
        InputError: a setting is invalid, or a file cannot be used.
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
        fusion: FusionMaker,
    ) -> None:
        self._head = cast(AttentionHead, head)
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_step = min(tokens_per_step, tokenizer.vocab_size - 1)
        self.ctc_weight = ctc_weight
        self.max_seconds = max_seconds
        self.fusion = fusion(tokenizer, normalize)
        self.biasing, self.compile_hotwords = self.fusion.biasing, self.fusion.compile_hotwords
        self.tunable = {"ctc_weight": Tunable(ctc_weight, CTC_WEIGHTS), **self.fusion.tunable}
        self.description = self.fusion.describe(f"joint beam search, {beam_size} hypotheses, CTC {ctc_weight:g}")

    def evidence(self, encoded: Encoded) -> list[JointEvidence]:
        """Return encoder output and CTC log_probs of each utterance."""
        log_probs = encoded.log_probs_by(self._head.frame_head.log_probs).cpu()
        cut = zip(encoded.out, log_probs, encoded.frame_counts, strict=True)
        return [JointEvidence(out[:length], values[:length]) for out, values, length in cut]

    def search(
        self, evidence: list[JointEvidence], biasings: Biasings = None, **values: float
    ) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses per utterance."""
        ctc_weight = values.get("ctc_weight", self.ctc_weight)
        fusions = self.fusion.of_utterances(len(evidence), biasings, values)
        bounds = (self.beam_size, self.beam_threshold, self.tokens_per_step)
        return [
            _Search(frames, self._head.token_decoder, fusion, ctc_weight, *bounds)()
            for frames, fusion in zip(evidence, fusions, strict=True)
        ]


class _Beam(NamedTuple):
    """K open hypotheses.

    Args:
        prefixes: tokens and fusion scores of the hypotheses.
        last: last tokens, (K,).
        attention: log-probabilities under the token decoder, (K,).
        paths: paths of `PrefixScores`.
        cache: cache of the token decoder before it reads the last tokens.
    """

    prefixes: list[Prefix]
    last: Tensor
    attention: Tensor
    paths: Tensor
    cache: Cache


Grown = tuple[float, int, int, Prefix]  # score; row of the parent; column of the added token; prefix


class _Search:
    """Search over the frames of one utterance."""

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
        """Return the hypotheses, the best first."""
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
        """End each hypothesis that may end; the empty hypothesis may always end."""
        scores = self._joint(attention, self.ctc.whole(beam.paths)).tolist()
        ended: list[Hypothesis] = []
        for prefix, score in zip(beam.prefixes, scores, strict=True):
            gain = self.fusion.finish(prefix.context)
            if gain is not None and score > NEVER:
                ended.append(Hypothesis(prefix.tokens(), score + prefix.fused + gain))
        return ended

    def _grow(self, beam: _Beam, attention: Tensor, best_ended: float) -> _Beam:
        """Extend each hypothesis by its most likely tokens, given attention (K, V), and prune the extensions."""
        attention, tokens = attention.topk(self.tokens_per_step, dim=1)  # (K, C)
        scores = self._joint(attention, self.ctc.extended(beam.paths, beam.last, tokens))
        grown: list[Grown] = []
        for row, column in (scores > NEVER).nonzero().tolist():
            prefix = beam.prefixes[row].extend(self.fusion, int(tokens[row, column]))
            if prefix is not None:
                grown.append((float(scores[row, column]) + prefix.fused, row, column, prefix))
        grown = nlargest(self.beam_size, grown, key=itemgetter(0))
        floor = max([best_ended, *(score for score, *_ in grown[:1])]) - self.beam_threshold
        return self._next_beam(beam, attention, tokens, [extension for extension in grown if extension[0] >= floor])

    def _next_beam(self, beam: _Beam, attention: Tensor, tokens: Tensor, grown: list[Grown]) -> _Beam:
        rows = torch.tensor([row for _, row, _, _ in grown], dtype=torch.int64)
        columns = torch.tensor([column for _, _, column, _ in grown], dtype=torch.int64)
        last = tokens[rows, columns]
        paths = self.ctc.grow(beam.paths[rows], beam.last[rows], last)
        cache = [block[rows.to(self.device)] for block in beam.cache]
        return _Beam([prefix for *_, prefix in grown], last, attention[rows, columns], paths, cache)

    def _joint(self, attention: Tensor, ctc: Tensor) -> Tensor:
        """Combine attention and CTC scores; a prefix that CTC cannot spell is impossible even if ctc_weight is 0."""
        joint = (1 - self.ctc_weight) * attention + self.ctc_weight * ctc
        return joint.masked_fill(ctc == NEVER, NEVER)
