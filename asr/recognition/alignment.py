"""Forced alignment: which encoder frames spell which token, and how much a text costs against another."""

import torch
import torchaudio.functional
from torch import Tensor

from asr.errors import InputError
from asr.interfaces import BLANK_ID, Span

FLOOR = -1e4  # what a log-probability is at least; where no path is possible, torchaudio's would be no path of the text
MAX_CELLS = 1 << 31  # of the table of frames x states, a byte each


def token_spans(log_probs: Tensor, tokens: list[int]) -> list[Span]:
    """Find the most likely path that spells `tokens`; its frames, token by token.

    *Source*: Kürzinger et al. 2020, arXiv:2007.09127, section 2; the search is torchaudio's.

    Args:
        log_probs: of one utterance, (T', V), on the CPU.
        tokens: without blanks; at least `head.min_frames(tokens)` frames must be there.

    Raises:
        InputError: frames times tokens are more than fit into memory.
    """
    if not tokens:
        return []
    if len(log_probs) * (2 * len(tokens) + 1) > MAX_CELLS:
        size = f"{len(log_probs)} frames and {len(tokens)} tokens"
        raise InputError(f"an utterance must be short enough to be aligned at once; it has {size}. Cut it.")
    path, _ = torchaudio.functional.forced_align(
        log_probs.float().clamp(min=FLOOR).contiguous()[None], torch.tensor([tokens], dtype=torch.int32), blank=BLANK_ID
    )
    changes = torch.cat([path[0, 1:] != path[0, :-1], path.new_ones(1, dtype=torch.bool)])  # (T',) the last of a run
    ends = changes.nonzero()[:, 0] + 1
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    runs = zip(path[0, starts].tolist(), starts.tolist(), ends.tolist(), strict=True)
    return [Span(start, end) for token, start, end in runs if token != BLANK_ID]


def frame_deficits(log_probs: Tensor, tokens: list[int], spans: list[Span]) -> Tensor:
    """Tell how much less likely the path of `tokens` is, frame by frame, than the best path of all.

    Shapes:
        log_probs: (T', V).
        returns: (T',), at most 0; 0 where the net would write the same.
    """
    path = torch.full((len(log_probs),), BLANK_ID)
    for token, span in zip(tokens, spans, strict=True):
        path[span.start : span.end] = token
    return log_probs.gather(1, path[:, None])[:, 0] - log_probs.max(dim=-1).values
