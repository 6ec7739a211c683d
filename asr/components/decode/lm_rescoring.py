"""N-best rescoring with a neural language model."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from asr.base.language_model.token_scores import text_log_probs
from asr.base.settings.rule import TEXT, or_null
from asr.components.decode.fusion.shallow_fusion import Bonus, Score
from asr.interfaces import Biasings, Decoder, Encoded, Head, Hypothesis, Tokenizer, TokenModel, Tunable

AT_ONCE = 2**16  # maximum tokens in a batch, including padding; for a vocabulary of 1,024, log_probs take 256 MiB
TOKENS = 512  # tokens of a hypothesis per forward pass; each pass continues from the state after the previous one

Scores = dict[tuple[int, ...], float]  # log p(tokens, end) of each hypothesis of an utterance

WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)  # values of rescoring_weight that asr.tune tries
TOKEN_INSERTION_BONUSES = (-0.5, 0.0, 0.5, 1.0, 1.5)


class RescoredEvidence(NamedTuple):
    """Input of the search for one utterance.

    Args:
        first: input of the search of the first pass.
        scores: scores of hypotheses, cached because searches with other weights mostly find the same hypotheses.
        device: device for scoring.
    """

    first: Any
    scores: Scores
    device: torch.device


class LMRescoring:
    """Find hypotheses by a beam search, then rescore them in batches with a language model over tokens.

    A hypothesis's score is its score in the search with fusion, plus `rescoring_weight` times log p(tokens, end), plus
    `token_insertion_bonus` per token. Without a language model, scores do not change.

    Args:
        head: as required by the first pass.
        tokenizer: tokenizer of the first pass.
        normalize: normaliser of the first pass.
        language_model: path of a model that asr.train_lm trained over the tokenizer's tokens; None: no
            language model.
        rescoring_weight: factor of the language model's log-probability.
        token_insertion_bonus: added per token, to offset the language model's preference for short texts.
        first: makes the search of the first pass.
    """

    streaming = None  # hypotheses are ranked only after the search has ended
    needs: tuple[str, ...] = ()  # properties of the head that the second pass needs
    wraps = "first"  # name of the setting that makes the decoder of the first pass

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        language_model: Annotated[TokenModel | None, or_null(TEXT)],
        rescoring_weight: Bonus,
        token_insertion_bonus: Score,
        first: Callable[[Head, Tokenizer, Callable[[str], str]], Decoder],
    ) -> None:
        self.first = first(head, tokenizer, normalize)
        self.language_model = language_model
        self.rescoring_weight = rescoring_weight
        self.token_insertion_bonus = token_insertion_bonus
        self.needs = self.first.needs
        self.max_seconds = self.first.max_seconds
        self.max_hypotheses = self.first.max_hypotheses
        self.biasing, self.compile_hotwords = self.first.biasing, self.first.compile_hotwords

    @property
    def tunable(self) -> dict[str, Tunable]:
        """The first pass's tunable settings; with a language model also its weight and the token insertion bonus."""
        own = {
            "rescoring_weight": Tunable(self.rescoring_weight, WEIGHTS),
            "token_insertion_bonus": Tunable(self.token_insertion_bonus, TOKEN_INSERTION_BONUSES),
        }
        return {**(own if self.language_model is not None else {}), **self.first.tunable}

    @property
    def description(self) -> str:
        """The search and its models, for logs."""
        if self.language_model is None:
            return self.first.description
        return f"{self.first.description}, rescored by a neural language model, weight {self.rescoring_weight:g}"

    def evidence(self, encoded: Encoded) -> list[RescoredEvidence]:
        """Return the input of the search for each utterance, including the input of the first pass."""
        return [RescoredEvidence(first, {}, encoded.out.device) for first in self.first.evidence(encoded)]

    def search(
        self, evidence: list[RescoredEvidence], biasings: Biasings = None, **values: float
    ) -> list[list[Hypothesis]]:
        """Find the hypotheses of the first pass and rank them."""
        given: dict[str, Any] = {**values} if biasings is None else {**values, "biasings": biasings}
        nbest = self.first.search([utterance.first for utterance in evidence], **given)
        if self.language_model is None or not nbest:
            return nbest
        weight = values.get("rescoring_weight", self.rescoring_weight)
        bonus = values.get("token_insertion_bonus", self.token_insertion_bonus)
        self._score(self.language_model, evidence, nbest)
        ranked = []
        for utterance, hypotheses in zip(evidence, nbest, strict=True):
            tokens = [hypothesis.tokens for hypothesis in hypotheses]
            gains = [weight * utterance.scores[tuple(text)] + bonus * len(text) for text in tokens]
            pairs = zip(hypotheses, gains, strict=True)
            rescored = [hypothesis._replace(score=hypothesis.score + gain) for hypothesis, gain in pairs]
            ranked.append(sorted(rescored, key=lambda hypothesis: hypothesis.score, reverse=True))
        return ranked

    @staticmethod
    def _score(model: TokenModel, evidence: Sequence[RescoredEvidence], nbest: list[list[Hypothesis]]) -> None:
        """Score those hypotheses of a batch that have no cached score, longest hypotheses first."""
        missing: list[tuple[tuple[int, ...], Scores]] = []
        for utterance, hypotheses in zip(evidence, nbest, strict=True):
            texts = dict.fromkeys(tuple(hypothesis.tokens) for hypothesis in hypotheses)
            missing += [(text, utterance.scores) for text in texts if text not in utterance.scores]
        missing.sort(key=lambda pair: len(pair[0]), reverse=True)
        device = evidence[0].device
        if isinstance(model, nn.Module):
            model.to(device)
        while missing:
            number = max(1, AT_ONCE // (min(len(missing[0][0]), TOKENS) + 1))
            batch, missing = missing[:number], missing[number:]
            log_probs = hypothesis_log_probs(model, [text for text, _ in batch], device)
            for (text, scores), log_prob in zip(batch, log_probs, strict=True):
                scores[text] = log_prob


@torch.no_grad()
def hypothesis_log_probs(model: TokenModel, texts: Sequence[Sequence[int]], device: torch.device) -> list[float]:
    """Compute log p(tokens, end) of each text, natural logarithm, in one padded batch."""
    tokens = pad_sequence([torch.tensor(text, dtype=torch.int64) for text in texts], batch_first=True).to(device)
    lengths = torch.tensor([len(text) for text in texts], device=device)
    scores: list[float] = text_log_probs(model, tokens, lengths, TOKENS).cpu().tolist()
    return scores
