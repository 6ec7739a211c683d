"""CTC's beam search, whose hypotheses an attention decoder puts in order."""

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.decode.beam import Beam
from asr.decode.fusion.shallow_fusion import Bonus, Score, ShallowFusion
from asr.interfaces import AttentionHead, Head, Hypothesis, Tokenizer, Tunable
from asr.settings.rule import DECODED_SECONDS, number, whole

WEIGHTS = (0.0, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0, 5.0)  # of the attention decoder, that are worth trying


class RescoringEvidence(NamedTuple):
    """What is searched in of an utterance.

    Args:
        encoder_out: (T', D).
        ctc: evidence of CTC's beam search.
    """

    encoder_out: Tensor
    ctc: Any


class AttentionRescoring:
    """Two passes: CTC's beam search finds hypotheses, and the attention decoder scores each, all tokens at once.

    A score is CTC's, fusion included, plus the decoder's log-probability times `attention_weight`.

    *Source*: Yao et al. 2021 (WeNet), arXiv:2102.01547.

    Args:
        head: with a frame head and a token decoder.
        tokenizer: says what tokens spell.
        normalize: as texts are normalised that the hotwords have to fit.
        attention_weight: factor of the attention decoder's log-probability.
        max_seconds: of audio that is searched at once; longer recordings are cut at silences.
        beam_size: of CTC's beam search (`asr.decode.beam.Beam`), whose hypotheses are scored; what follows is its, too.
        beam_threshold: hypotheses that score less than the best one by more than this are not kept.
        tokens_per_frame: the most likely tokens, which are tried in a frame.
        token_threshold: of those, the ones with a smaller log-probability are not tried.
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
        attention_weight: Annotated[float, number(0, 1_000)],
        max_seconds: Annotated[float, DECODED_SECONDS],
        beam_size: Annotated[int, whole(1, 10_000)],
        beam_threshold: Bonus,
        tokens_per_frame: Annotated[int, whole(1, 10_000)],
        token_threshold: Score,
        fusion: Callable[[Tokenizer, Callable[[str], str]], ShallowFusion],
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
        self.hotwords = self.beam.hotwords

    @property
    def tunable(self) -> dict[str, Tunable]:
        """The decoder's weight; weight and word insertion bonus of the language model, if there is one."""
        return {"attention_weight": Tunable(self.attention_weight, WEIGHTS), **self.beam.tunable}

    @property
    def description(self) -> str:
        """The search, and what takes part in it."""
        return f"{self.beam.description}, rescored by attention, weight {self.attention_weight:g}"

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> list[RescoringEvidence]:
        """Keep the frames, and what CTC's beam search needs of them, utterance by utterance."""
        cut = zip(encoder_out, lengths.tolist(), self.beam.evidence(encoder_out, lengths), strict=True)
        return [RescoringEvidence(out[:length], ctc) for out, length, ctc in cut]

    def search(self, evidence: list[RescoringEvidence], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses an utterance.

        Args:
            evidence: see there.
            values: of what is tunable, instead of its own.
        """
        weight = values.get("attention_weight", self.attention_weight)
        first = self.beam.search([frames.ctc for frames in evidence], **values)
        return [self._reordered(*pair, weight) for pair in zip(evidence, first, strict=True)]

    def _reordered(self, frames: RescoringEvidence, hypotheses: list[Hypothesis], weight: float) -> list[Hypothesis]:
        scores = self._log_probs(frames.encoder_out, [hypothesis.tokens for hypothesis in hypotheses])
        rescored = [
            hypothesis._replace(score=hypothesis.score + weight * score)
            for hypothesis, score in zip(hypotheses, scores, strict=True)
        ]
        return sorted(rescored, key=lambda hypothesis: hypothesis.score, reverse=True)

    def _log_probs(self, encoder_out: Tensor, texts: list[list[int]]) -> list[float]:
        """Log-probability of each text and its end, by the attention decoder."""
        device = encoder_out.device
        tokens = pad_sequence([torch.tensor(text, dtype=torch.int64) for text in texts], batch_first=True).to(device)
        lengths = torch.tensor([len(text) for text in texts], device=device)
        memory = self._decoder.remember(encoder_out[None], torch.tensor([len(encoder_out)], device=device))
        log_probs, targets, padding = self._decoder.force(tokens, lengths, memory)
        of_targets = log_probs.gather(2, targets[:, :, None])[:, :, 0]  # (N, U + 1)
        scores: list[float] = of_targets.masked_fill(padding, 0.0).cpu().double().sum(dim=1).tolist()
        return scores
