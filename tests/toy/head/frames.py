"""CTC."""

from itertools import pairwise
from types import MappingProxyType

import torch.nn.functional as F
from torch import nn

from asr.interfaces import Decoders


class Frames(nn.Module):
    """A linear layer, trained with CTC."""

    loss_names = ()
    decoders = Decoders(greedy=("best",), beam=())
    views = 1
    taps = MappingProxyType({})
    restrict = None

    def __init__(self, output_dim, block_dims, vocab_size):
        super().__init__()
        self.linear = nn.Linear(output_dim, vocab_size)

    @property
    def frame_head(self):
        return self

    def log_probs(self, encoder_out):
        return self.linear(encoder_out).log_softmax(dim=-1)

    def losses(self, encoded, targets):
        log_probs = self.log_probs(encoded.out).transpose(0, 1)
        lengths = encoded.lengths, targets["token_lengths"]
        return {"loss": F.ctc_loss(log_probs, targets["tokens"], *lengths, reduction="none")}

    @staticmethod
    def min_frames(tokens):
        return len(tokens) + sum(a == b for a, b in pairwise(tokens))

    @staticmethod
    def cells(frames, tokens):
        return frames
