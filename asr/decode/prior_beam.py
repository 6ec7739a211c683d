"""CTC prefix beam search on posteriors that are divided by the prior of their labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Self

from torch import Tensor

from asr.decode.beam import Beam, Frame, Grown
from asr.decode.fusion.shallow_fusion import Bonus, Score, ShallowFusion
from asr.interfaces import BLANK_ID, Head, Hypothesis, Tokenizer, Tunable
from asr.settings.rule import Rule, list_of, number, or_null, whole

WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)  # of the priors, that are worth trying
PRIORS = or_null(list_of(number(-1_000, 0), "of log-probabilities, one a token, the blank's first"))


class PriorBeam:
    """The beam search, in which a frame's label k scores log p(k | frame) - prior_weight * log p(k).

    The net's posteriors hold the prior of the labels in its training text, and a language model holds it again. The
    search tries the same tokens in a frame as it does without priors.

    *Source*: Miao et al. 2015 (EESEN), arXiv:1507.08240, section 4.3. *Differs from the paper*: the prior of a label is
    its mean posterior over recordings, so no transcripts are needed (`asr.tune --label-priors`).

    Args:
        head: with a frame head.
        tokenizer: says what tokens spell.
        normalize: as texts are normalised that the hotwords have to fit.
        label_priors: log p of each token, the blank's first; None: nothing is subtracted.
        prior_weight: factor of the priors' logarithm.
        beam_size: of the search (`asr.decode.beam.Beam`); what follows is its, too.
        beam_threshold: hypotheses that score less than the best one by more than this are not kept.
        tokens_per_frame: the most likely tokens, which are tried in a frame.
        token_threshold: of those, the ones with a smaller log-probability are not tried.
        fusion: makes what is added to the acoustic score, given tokenizer and normalize.

    Raises:
        InputError: a setting does not hold, or a file cannot be used.
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
        fusion: Callable[[Tokenizer, Callable[[str], str]], ShallowFusion],
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
        self.max_hypotheses = self.beam.max_hypotheses
        self.hotwords = self.beam.hotwords

    @property
    def tunable(self) -> dict[str, Tunable]:
        """The weight of the priors, if there are any; weight and word insertion bonus of the language model, too."""
        own = {} if self.label_priors is None else {"prior_weight": Tunable(self.prior_weight, WEIGHTS)}
        return {**own, **self.beam.tunable}

    @property
    def description(self) -> str:
        """The search, and what takes part in it."""
        if self.label_priors is None:
            return self.beam.description
        return f"{self.beam.description}, label priors, weight {self.prior_weight:g}"

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> list[list[Frame]]:
        """Find the tokens of each frame that are tried, utterance by utterance."""
        return self.beam.evidence(encoder_out, lengths)

    def search(self, evidence: list[list[Frame]], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses an utterance.

        Args:
            evidence: see there.
            values: of what is tunable, instead of its own.
        """
        weight = values.get("prior_weight", self.prior_weight)
        return self.beam.search([self._divided(frames, weight) for frames in evidence], **values)

    def _divided(self, frames: list[Frame], weight: float) -> list[Frame]:
        """Subtract the weighed priors from a frame's log-probabilities; of a weight of 0 the frames are the same."""
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
        """Itself: it can go on from chunk to chunk."""
        return self

    def initial_state(self) -> Grown:
        """Begin a stream."""
        return self.beam.initial_state()

    def step(
        self, encoder_out: Tensor, lengths: Tensor, states: Sequence[Grown]
    ) -> tuple[list[list[Hypothesis]], list[Grown]]:
        """Go on with streams by encoder_out (B, T', D), (B,); tokens that all of a beam begin with change no more."""
        evidence = self.evidence(encoder_out, lengths)
        return self.beam.advance([self._divided(frames, self.prior_weight) for frames in evidence], states)

    def forget(self, state: Grown, num_tokens: int) -> Grown:
        """Leave out the first tokens, which all of the beam begin with."""
        return self.beam.forget(state, num_tokens)

    def decide(self, state: Grown, tokens: list[int]) -> Grown:
        """Keep only the prefixes that begin so."""
        return self.beam.decide(state, tokens)

    def settle(self, state: Grown) -> tuple[Hypothesis, Grown]:
        """Take the best hypothesis, and go on behind it; where no word is at its end, from the start."""
        return self.beam.settle(state)
