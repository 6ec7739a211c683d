"""Beam search of a transducer, with shallow fusion."""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from asr.base.settings.rule import whole
from asr.components.decode.fusion.shallow_fusion import Bonus, FusionMaker
from asr.components.decode.search_by_durations import DurationSearch
from asr.components.decode.search_by_frames import FrameSearch
from asr.components.decode.token_times import with_times_of
from asr.components.decode.trails import BeamLimits
from asr.components.decode.turns import searched
from asr.interfaces import Biasings, Encoded, Head, Hypothesis, Tokenizer


class TransducerBeam:
    """Search for the tokens with the highest total score of all their paths, language model, lexicon and hotwords.

    `asr.components.decode.search_by_frames` and, with durations, `asr.components.decode.search_by_durations` have the
    searches and their sources. Times and confidences of tokens: `asr.components.decode.token_times`.

    Args:
        head: a head with a joiner and a predictor.
        beam_size: maximum number of prefixes at a frame; the limit also applies after each token within a frame.
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
        self.head = searched(head, tokenizer)
        self.max_hypotheses = beam_size
        tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size - 1)  # the blank is not a token
        self.limits = BeamLimits(beam_size, beam_threshold, tokens_per_frame, max_symbols)
        self.fusion = fusion(tokenizer, normalize)
        self.biasing, self.tunable = self.fusion.biasing, self.fusion.tunable
        self.compile_hotwords = self.fusion.compile_hotwords
        self.description = self.fusion.describe(f"beam search, {beam_size} hypotheses")

    def evidence(self, encoded: Encoded) -> list[Tensor]:
        """Return the joiner's input from the frames of each utterance, (T', J)."""
        rows = self.head.joiner.of_frames(encoded.out)  # (B, T', J)
        return [row[:length] for row, length in zip(rows, encoded.frame_counts, strict=True)]

    @torch.inference_mode()
    def search(self, evidence: list[Tensor], biasings: Biasings = None, **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses per utterance."""
        fusions = self.fusion.of_utterances(len(evidence), biasings, values)
        search = DurationSearch if self.head.durations else FrameSearch
        return [
            [
                with_times_of(self.head, hypothesis, len(frames))
                for hypothesis in search(self.head, self.limits, fusion)(frames)
            ]
            for frames, fusion in zip(evidence, fusions, strict=True)
        ]
