"""A label of the utterance, such as its language, concatenated to each frame of the encoder's output."""

from typing import Annotated

import torch
from torch import Tensor, nn

from asr.base.settings.rule import LABEL, Dim, Probability, or_null, whole
from asr.errors import InputError
from asr.interfaces import UNKNOWN_ID, Encoded


class LabelPrompt(nn.Module):
    """Tell the head the value of a label: one-hot, concatenated to each frame, Linear, ReLU, Linear.

    *Source*: NVIDIA's Nemotron 3.5 ASR, with 128 values and a hidden width of 2,048. *Differs from the source*: id 0
    means unknown, and dropout of the label trains it.

    Args:
        output_dim: number D of values per encoder frame, of the input and of the output.
        num_values: largest id of a value of the label.
        label: name of the label.
        num_labels: number of values that the one-hot vector has room for, besides unknown; None: `num_values`.
        hidden_dim: number of values of the hidden layer.
        dropout: probability that the label of a training utterance is replaced by unknown.

    Raises:
        InputError: the training data has more than `num_labels` values.
    """

    def __init__(
        self,
        output_dim: int,
        num_values: int,
        *,
        label: Annotated[str, LABEL],
        num_labels: Annotated[int | None, or_null(whole(1, 65_536))],
        hidden_dim: Dim,
        dropout: Probability,
    ) -> None:
        super().__init__()
        if num_labels is not None and num_values > num_labels:
            must = f"prompt.num_labels must be at least the number of values of {label} in the training data"
            raise InputError(f"{must}, {num_values}; got {num_labels}. Raise it, or set it to null.")
        self.label, self.dropout = label, dropout
        self.num_ids = 1 + (num_values if num_labels is None else num_labels)  # id 0: unknown
        self.layers = nn.Sequential(
            nn.Linear(output_dim + self.num_ids, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, output_dim)
        )

    def forward(self, encoded: Encoded) -> Encoded:
        """Map `out` (B, T', D), with the ids of the label in `conditions` (B,), to another `out` (B, T', D)."""
        ids, x = encoded.conditions[self.label], encoded.out
        if self.training and self.dropout:
            ids = ids.masked_fill(torch.rand(ids.shape, device=ids.device) < self.dropout, UNKNOWN_ID)
        one_hot = (ids[:, None] == torch.arange(self.num_ids, device=ids.device)).to(x.dtype)  # (B, N)
        joined: Tensor = torch.cat([x, one_hot[:, None].expand(-1, x.shape[1], -1)], dim=-1)  # (B, T', D + N)
        return encoded._replace(out=self.layers(joined))
