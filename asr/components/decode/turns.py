"""A transducer whose prediction network starts anew when an utterance has ended."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from asr.base.text.hidden_pieces import END_OF_UTTERANCE
from asr.interfaces import BLANK_ID, FrameHead, Head, JointNetwork, Predictor, Tokenizer, TransducerHead


class TurnPredictor:
    """A prediction network that reads <EOU> as the beginning of an utterance: the blank, from the initial state.

    In training no token follows <EOU>, so a network that read it as a token would predict the next utterance from a
    state that it has never been in.

    Args:
        predictor: the prediction network.
        end_id: id of <EOU>.
    """

    def __init__(self, predictor: Predictor, end_id: int) -> None:
        self._predictor, self._end_id = predictor, end_id
        self.output_dim = predictor.output_dim
        self.initial_state = predictor.initial_state

    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take one token per hypothesis, (B,), and the state before it; return (B, P) and the state after it."""
        ends = tokens == self._end_id
        initial = self.initial_state(len(tokens))
        state = torch.where(ends.view(-1, *[1] * (state.dim() - 1)), initial.to(state.dtype), state)
        return self._predictor.step(tokens.masked_fill(ends, BLANK_ID), state)


class _Searched(NamedTuple):
    """The parts of a transducer head that searches use."""

    predictor: TurnPredictor
    joiner: JointNetwork
    durations: tuple[int, ...]
    frame_head: FrameHead | None


def searched(head: Head, tokenizer: Tokenizer) -> TransducerHead:
    """Return a transducer head for searches; without the piece <EOU>, it is the head itself."""
    given = cast(TransducerHead, head)
    if END_OF_UTTERANCE not in tokenizer.names:
        return given
    predictor = TurnPredictor(given.predictor, list(tokenizer.names).index(END_OF_UTTERANCE))
    return cast(TransducerHead, _Searched(predictor, given.joiner, given.durations, given.frame_head))
