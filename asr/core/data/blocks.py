"""Computation on long columns in blocks, so that only the intermediate results of one block are in memory."""

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 1 << 20  # rows


def in_blocks(function: Callable[..., Tensor], *columns: Tensor) -> Tensor:
    """Apply a row-wise function to columns, each (n,) or (n, K), block by block.

    Shapes:
        columns: (N, ...) each.
        returns: (N, ...), of the dtype that the function returns.
    """
    number = len(columns[0])
    if number <= BLOCK:
        return function(*columns)
    out: Tensor | None = None
    for start in range(0, number, BLOCK):
        block = function(*(column[start : start + BLOCK] for column in columns))
        if out is None:
            out = torch.empty(number, *block.shape[1:], dtype=block.dtype)
        out[start : start + BLOCK] = block
    assert out is not None
    return out
