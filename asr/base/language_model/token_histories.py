"""A neural language model with the interface of an n-gram model, evaluated for many hypotheses at once."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from asr.interfaces import BOUNDARY_ID, State, TokenModel


class TokenHistory:
    """The language-model state of a hypothesis.

    Args:
        state: state before the last token, a batch of 1; `TokenHistories.read` replaces it by the state after this
            token.
        token: the last token.
    """

    __slots__ = ("log_probs", "state", "token")

    def __init__(self, state: State, token: int) -> None:
        self.state, self.token = state, token
        self.log_probs: Sequence[float] | None = None  # for the next token; None until the last token is processed


class TokenHistories:
    """A neural language model for beam search.

    It runs on the CPU, like the search.

    Args:
        model: language model over the recogniser's tokens.
    """

    def __init__(self, model: TokenModel) -> None:
        self._model = model

    def __deepcopy__(self, memo: dict[int, Any]) -> "TokenHistories":
        """Share the immutable model between copies of a recogniser."""
        return self

    def start(self) -> TokenHistory:
        """Return the history at the beginning of a text."""
        return TokenHistory(self._model.initial_state(1), BOUNDARY_ID)

    def score(self, history: TokenHistory, token: int) -> tuple[float, TokenHistory]:
        """Return log p(token | history), natural logarithm, and the next history."""
        return self._log_probs(history)[token], TokenHistory(history.state, token)

    def end(self, history: TokenHistory) -> float:
        """Return log p(end | history), natural logarithm."""
        return self._log_probs(history)[BOUNDARY_ID]

    @torch.no_grad()
    def read(self, histories: Iterable[TokenHistory]) -> None:
        """Process the last tokens of all unprocessed histories in one batch."""
        new = [history for history in dict.fromkeys(histories) if history.log_probs is None]
        if not new:
            return
        tokens = torch.tensor([[history.token] for history in new])
        log_probs, states = self._model(tokens, self._model.join([history.state for history in new]))
        rows = log_probs[:, 0].tolist()
        for number, (history, row) in enumerate(zip(new, rows, strict=True)):
            history.log_probs = row
            # A copy: a view would keep the whole batch's tensor in memory.
            history.state = {name: value[number : number + 1].clone() for name, value in states.items()}

    def _log_probs(self, history: TokenHistory) -> Sequence[float]:
        if history.log_probs is None:
            self.read([history])
        assert history.log_probs is not None
        return history.log_probs
