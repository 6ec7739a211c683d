"""CTC beam search whose hypotheses are rescored by an attention decoder."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.base.settings.rule import DECODED_SECONDS, number, whole
from asr.components.decode.beam import Beam
from asr.components.decode.fusion.shallow_fusion import Bonus, FusionMaker, Score
from asr.interfaces import AttentionHead, Biasings, Encoded, Head, Hypothesis, Tokenizer, Tunable

WEIGHTS = (0.0, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 5.0)  # values of attention_weight that asr.tune tries


class RescoringEvidence(NamedTuple):
    """Input of the search for one utterance.

    Args:
        encoder_out: (T', D).
        ctc: evidence of the CTC beam search.
    """

    encoder_out: Tensor
    ctc: Any


class AttentionRescoring:
    """Find hypotheses by CTC beam search, then rescore each with the attention decoder, all tokens in parallel.

    A hypothesis's score is its score in the CTC search with fusion, plus `attention_weight` times the decoder's
    log-probability.

    *Source*: Yao et al. 2021 (WeNet), arXiv:2102.01547.

    Args:
        head: a head with a frame head and a token decoder.
        attention_weight: factor of the attention decoder's log-probability.
        max_seconds: maximum seconds of audio decoded in one piece; longer recordings are cut at silences.
        beam_size: this and all following settings are those of the CTC beam search (`asr.components.decode.beam.Beam`).
        beam_threshold: prefixes are pruned if the best prefix scores higher by more than this (natural logarithm).
        tokens_per_frame: number of most likely tokens of a frame, including the blank, that the search tries.
        token_threshold: minimum log-probability of a token that is tried; the most likely token is always tried.
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
        attention_weight: Annotated[float, number(0, 1_000)],
        max_seconds: Annotated[float, DECODED_SECONDS],
        beam_size: Annotated[int, whole(1, 10_000)],
        beam_threshold: Bonus,
        tokens_per_frame: Annotated[int, whole(1, 10_000)],
        token_threshold: Score,
        fusion: FusionMaker,
    ) -> None:
        self._decoder = cast(AttentionHead, head).token_decoder
        self.attention_weight = attention_weight
        self.max_seconds = max_seconds
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
        self.biasing, self.compile_hotwords = self.beam.biasing, self.beam.compile_hotwords
        self.tunable = {"attention_weight": Tunable(attention_weight, WEIGHTS), **self.beam.tunable}
        self.description = f"{self.beam.description}, rescored by attention, weight {attention_weight:g}"

    def evidence(self, encoded: Encoded) -> list[RescoringEvidence]:
        """Return encoder output and CTC evidence of each utterance."""
        cut = zip(encoded.out, encoded.frame_counts, self.beam.evidence(encoded), strict=True)
        return [RescoringEvidence(out[:length], ctc) for out, length, ctc in cut]

    def search(
        self, evidence: list[RescoringEvidence], biasings: Biasings = None, **values: float
    ) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses per utterance."""
        weight = values.get("attention_weight", self.attention_weight)
        first = self.beam.search([frames.ctc for frames in evidence], biasings, **values)
        return [self._reordered(*pair, weight) for pair in zip(evidence, first, strict=True)]

    def _reordered(self, frames: RescoringEvidence, hypotheses: list[Hypothesis], weight: float) -> list[Hypothesis]:
        scores = self._log_probs(frames.encoder_out, [hypothesis.tokens for hypothesis in hypotheses])
        rescored = [
            hypothesis._replace(score=hypothesis.score + weight * score)
            for hypothesis, score in zip(hypotheses, scores, strict=True)
        ]
        return sorted(rescored, key=lambda hypothesis: hypothesis.score, reverse=True)

    def _log_probs(self, encoder_out: Tensor, texts: list[list[int]]) -> list[float]:
        """Return the attention decoder's log-probability of each text, including its end."""
        device = encoder_out.device
        tokens = pad_sequence([torch.tensor(text, dtype=torch.int64) for text in texts], batch_first=True).to(device)
        lengths = torch.tensor([len(text) for text in texts], device=device)
        memory = self._decoder.remember(encoder_out[None], torch.tensor([len(encoder_out)], device=device))
        log_probs, targets, padding = self._decoder.force(tokens, lengths, memory)
        target_log_probs = log_probs.gather(2, targets[:, :, None])[:, :, 0]  # (N, U + 1)
        scores: list[float] = target_log_probs.masked_fill(padding, 0.0).cpu().double().sum(dim=1).tolist()
        return scores
