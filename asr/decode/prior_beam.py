"""CTC prefix beam search on posteriors divided by the priors of their labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Self

from torch import Tensor

from asr.decode.beam import Beam, Frame, Grown
from asr.decode.fusion.shallow_fusion import Bonus, FusionMaker, Score
from asr.interfaces import BLANK_ID, Head, Hypothesis, Tokenizer, Tunable
from asr.settings.rule import Rule, list_of, number, or_null, whole

WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)  # values of prior_weight that asr.tune tries
PRIORS = or_null(list_of(number(-1_000, 0), "of log-probabilities, one per token, the blank's first"))


class PriorBeam:
    """CTC beam search in which label k of a frame scores log p(k | frame) - prior_weight * log p(k).

    The network's posteriors contain the prior of the labels in its training texts. A language model also contains this
    prior, so without the subtraction it would count twice. Priors do not change which tokens are tried in a frame.

    *Source*: Miao et al. 2015 (EESEN), arXiv:1507.08240, section 4.3. *Differs from the paper*: the prior of a label is
    its mean posterior over recordings, so no transcripts are needed (`asr.tune --label-priors`).

    Args:
        head: a head with a frame head.
        tokenizer: its pieces spell the words of language model, lexicon and hotwords.
        normalize: the text normaliser, applied to hotwords.
        label_priors: log p of each token, beginning with the blank; None: nothing is subtracted.
        prior_weight: factor of the priors' logarithm.
        beam_size: this and all following settings are those of the beam search (`asr.decode.beam.Beam`).
        beam_threshold: prefixes are pruned if the best prefix scores higher by more than this (natural logarithm).
        tokens_per_frame: number of most likely tokens of a frame, including the blank, that the search tries.
        token_threshold: minimum log-probability of a token that is tried; the most likely token is always tried.
        fusion: makes the shallow fusion, given tokenizer and normalize.

    Raises:
        InputError: a setting is invalid, or a file cannot be used.
    """

    needs = ("frame_head",)
    max_seconds = None

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        label_priors: Annotated[Sequence[float] | None, PRIORS],
        prior_weight: Bonus,
        beam_size: Annotated[int, whole(1, 10_000)],
        beam_threshold: Bonus,
        tokens_per_frame: Annotated[int, whole(1, 10_000)],
        token_threshold: Score,
        fusion: FusionMaker,
    ) -> None:
        if label_priors is not None:
            must = f"the number of tokens, {tokenizer.vocab_size} (asr.tune --label-priors estimates them)"
            fits = Rule(must, lambda count: count == tokenizer.vocab_size)
            fits.check("the number of decode.label_priors", len(label_priors))
        self.label_priors = label_priors
        self.prior_weight = prior_weight
        self.beam = Beam(
            head,
            tokenizer,
            normalize,
            beam_size=beam_size,
            beam_threshold=beam_threshold,
            tokens_per_frame=tokens_per_frame,
            token_threshold=token_threshold,
            fusion=fusion,
        )
        self.max_hypotheses, self.hotwords = self.beam.max_hypotheses, self.beam.hotwords
        self.tunable, self.description = self.beam.tunable, self.beam.description
        if label_priors is not None:
            self.tunable = {"prior_weight": Tunable(prior_weight, WEIGHTS), **self.tunable}
            self.description += f", label priors, weight {prior_weight:g}"

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> list[list[Frame]]:
        """Find the tokens to try in each frame of each utterance."""
        return self.beam.evidence(encoder_out, lengths)

    def search(self, evidence: list[list[Frame]], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses per utterance.

        Args:
            evidence: output of the method `evidence`.
            values: values of tunable settings that replace the decoder's own values.
        """
        weight = values.get("prior_weight", self.prior_weight)
        return self.beam.search([self._divided(frames, weight) for frames in evidence], **values)

    def _divided(self, frames: list[Frame], weight: float) -> list[Frame]:
        """Subtract the weighted priors from log-probabilities; with a weight of 0 return the frames unchanged."""
        if self.label_priors is None or weight == 0:
            return frames
        costs = [weight * prior for prior in self.label_priors]
        divided: list[Frame] = []
        for blank, count, log_probs, tokens in frames:
            values = [log_prob - costs[token] for log_prob, token in zip(log_probs, tokens, strict=True)]
            divided.append((blank - costs[BLANK_ID], count, values, tokens))
        return divided

    @property
    def streaming(self) -> Self:
        """Return this decoder, because the search continues from chunk to chunk."""
        return self

    def initial_state(self) -> Grown:
        """Begin a stream."""
        return self.beam.initial_state()

    def step(
        self, encoder_out: Tensor, lengths: Tensor, states: Sequence[Grown]
    ) -> tuple[list[list[Hypothesis]], list[Grown]]:
        """Continue streams with encoder_out (B, T', D), lengths (B,); tokens shared by all prefixes are final."""
        evidence = self.evidence(encoder_out, lengths)
        return self.beam.advance([self._divided(frames, self.prior_weight) for frames in evidence], states)

    def forget(self, state: Grown, num_tokens: int) -> Grown:
        """Drop the first `num_tokens` tokens, which all prefixes of the beam share."""
        return self.beam.forget(state, num_tokens)

    def decide(self, state: Grown, tokens: list[int]) -> Grown:
        """Prune all prefixes that do not begin with these tokens."""
        return self.beam.decide(state, tokens)

    def settle(self, state: Grown) -> tuple[Hypothesis, Grown]:
        """Make the best hypothesis final; return it and the state that continues after it.

        If the hypothesis leaves out an incomplete last word, the search continues from the initial state.
        """
        return self.beam.settle(state)
