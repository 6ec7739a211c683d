"""Greedy decoding of a token-and-duration transducer in batches."""

import torch
from torch import Tensor

from asr.decode.greedy_paths import Cursor, GreedyTransducer, TokenSteps, WrittenTokens
from asr.interfaces import BLANK_ID, Hypothesis, JointNetwork, Span


class TDTGreedy(GreedyTransducer):
    """Repeatedly emit the most likely token and advance by the most likely duration, until the frames end.

    A token starts at the frame where it is emitted and lasts for its duration; its confidence is its probability.

    *Source*: Xu et al. 2023, arXiv:2304.06795, section 3.4. A batch is decoded in a loop over labels (Bataev et al.
    2024, arXiv:2406.06220): each utterance skips its blanks, then the prediction network reads the next token of all
    utterances. A blank whose most likely duration is 0 lasts one frame, as in NVIDIA NeMo.

    Args:
        head: a head with a joiner of tokens and durations.
        tokenizer: not used.
        normalize: not used.
        max_symbols: maximum number of tokens in a frame; after them, a blank of one frame is emitted.
    """

    needs = ("duration_joiner",)
    description = "greedy: the most likely token and duration"

    @property
    def joiner(self) -> JointNetwork:
        """The joint network of tokens and durations."""
        joiner: JointNetwork = self.head.duration_joiner
        return joiner

    def finished(self, hypothesis: Hypothesis, num_frames: int | None = None) -> Hypothesis:
        """End the last token with the utterance; its duration may be longer."""
        frames = hypothesis.frames or []
        if num_frames is not None:
            frames = [Span(start, min(end, num_frames)) for start, end in frames]
        return hypothesis._replace(frames=frames, has_ends=True)

    def walk(self, frames: Tensor, lengths: Tensor, cursor: Cursor) -> tuple[list[WrittenTokens], Cursor]:
        """Emit tokens from frames (B, T', J); each pass of the outer loop emits at most one token per utterance."""
        steps = TokenSteps(len(lengths))
        number = cursor.frames  # current frame of each utterance
        scores, symbols = cursor.scores, torch.zeros_like(lengths)  # symbols: tokens emitted in the current frame
        while bool((number < lengths).any()):
            searching = number < lengths
            token, log_prob = torch.full_like(lengths, BLANK_ID), scores.new_zeros(len(lengths))
            duration = torch.zeros_like(lengths)
            while bool(searching.any()):
                is_full = symbols >= self.max_symbols
                here, score, taken, token_log_prob = self._arc(frames, number, cursor.before, is_full)
                writes, passes = searching & (here != BLANK_ID), searching & (here == BLANK_ID)
                scores = torch.where(searching, scores + score, scores)
                token, duration = torch.where(writes, here, token), torch.where(writes, taken, duration)
                log_prob = torch.where(writes, token_log_prob, log_prob)
                number = torch.where(passes, number + taken, number)
                symbols = symbols.masked_fill(passes, 0)
                searching = passes & (number < lengths)
            steps.add(token, number, number + duration.clamp(min=1), log_prob)
            symbols = torch.where((token != BLANK_ID) & (duration == 0), symbols + 1, 0)
            number = number + duration
            cursor = self.read(cursor, token)
        return steps.written(), cursor._replace(frames=number - lengths, scores=scores)

    def _arc(
        self, frames: Tensor, number: Tensor, before: Tensor, is_full: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Choose the most likely token and duration of each utterance in its current frame.

        Args:
            frames: (B, T', J).
            number: current frame of each utterance, (B,).
            before: the joiner's input from the tokens so far, (B, J).
            is_full: whether the current frame already has the maximum number of tokens, (B,).

        Returns:
            Token, log-probability of token and duration, duration, and log-probability of the token alone; (B,) each.
        """
        durations = torch.tensor(self.head.durations, device=frames.device)
        rows = torch.arange(len(frames), device=frames.device)
        here = frames[rows, number.clamp(max=frames.shape[1] - 1)]
        logits = self.joiner(here, before)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        token_logits, duration_logits = logits.split([logits.shape[1] - len(durations), len(durations)], dim=1)
        token_log_probs, duration_log_probs = token_logits.log_softmax(dim=1), duration_logits.log_softmax(dim=1)
        token = token_log_probs.argmax(dim=1).masked_fill(is_full, BLANK_ID)
        kind = duration_log_probs.argmax(dim=1)
        one_frame = is_full | ((token == BLANK_ID) & (durations[kind] == 0))
        kind = kind.masked_fill(one_frame, self.head.durations.index(1))
        token_log_prob = token_log_probs[rows, token]
        return token, token_log_prob + duration_log_probs[rows, kind], durations[kind], token_log_prob
