"""Greedy decoding of a transducer, a batch at a time."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, cast

import torch
from torch import Tensor

from asr.interfaces import BLANK_ID, NO_HOTWORDS, Head, Hypothesis, Tokenizer, TransducerHead, Tunable
from asr.kernels.choice import exact
from asr.system.settings import whole


class TransducerGreedy:
    """Write the most likely token, frame by frame, until that is the blank; then go on to the next frame.

    *Source*: Graves 2012, arXiv:1211.3711. Each utterance of a batch is in a frame of its own (Bataev et al. 2024,
    arXiv:2406.06220), so that none waits for another's tokens. No more tokens are written than the frames can spell
    by CTC, which gives them their times.

    Args:
        head: with a joiner and a predictor.
        tokenizer, normalize: as for every decoder; the most likely token asks neither.
        max_symbols: tokens in a frame, at most.
    """

    needs = ("joiner",)
    max_seconds = None
    max_hypotheses = 1
    hotwords = NO_HOTWORDS
    tunable: Mapping[str, Tunable] = MappingProxyType({})
    description = "greedy: the most likely token"

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        max_symbols: Annotated[int, whole(1, 1_000)],
    ) -> None:
        self.head = cast(TransducerHead, head)
        self.max_symbols = max_symbols

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """What the joiner takes of each frame, (B, T', J), and the lengths."""
        return self.head.joiner.of_frames(encoder_out), lengths

    @torch.inference_mode()
    def search(self, evidence: tuple[Tensor, Tensor]) -> list[list[Hypothesis]]:
        """Find one hypothesis of each utterance, scored by its path."""
        frames, lengths = evidence
        number = torch.zeros_like(lengths)  # of the frame that each utterance is in
        written = torch.zeros_like(lengths)  # tokens, in that frame
        needed = torch.zeros_like(lengths)  # frames, to spell the tokens so far
        scores = torch.zeros(len(lengths), dtype=exact(lengths.device), device=lengths.device)
        tokens, rows = torch.full_like(lengths, BLANK_ID), torch.arange(len(lengths), device=lengths.device)
        out, state = self.head.predictor.step(tokens, self.head.predictor.initial_state(len(lengths)))
        before = self.head.joiner.of_tokens(out)  # (B, J)
        steps: list[Tensor] = []
        while bool((is_going := number < lengths).any()):
            here = frames[rows, number.clamp(max=frames.shape[1] - 1)]  # (B, J)
            log_probs = self.head.joiner(here, before).log_softmax(dim=-1)  # (B, V)
            best, token = log_probs.max(dim=-1)
            cost = 1 + (token == tokens).long()
            writes = (token != BLANK_ID) & (written < self.max_symbols) & (needed + cost <= lengths) & is_going
            scores += torch.where(writes, best, log_probs[:, BLANK_ID]).where(is_going, torch.zeros_like(best))
            steps.append(torch.where(writes, token, BLANK_ID))
            number += (is_going & ~writes).long()
            written = (written + 1) * writes
            needed += cost * writes
            if bool(writes.any()):
                tokens = torch.where(writes, token, tokens)
                out, after = self.head.predictor.step(tokens, state)
                state = torch.where(writes.view(-1, *[1] * (state.dim() - 1)), after, state)
                before = torch.where(writes[:, None], self.head.joiner.of_tokens(out), before)
        found = torch.stack(steps, dim=1).tolist() if steps else [[]] * len(lengths)
        return [
            [Hypothesis([token for token in row if token != BLANK_ID], score)]
            for row, score in zip(found, scores.tolist(), strict=True)
        ]
