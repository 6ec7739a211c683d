"""CTC prefix scores, which constrain an attention decoder: the probability of all strings with a given prefix."""

import torch
from torch import Tensor

from asr.interfaces import BLANK_ID


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
