"""The same model, trained on equal batches, has equal losses in asr and in other toolkits."""

import math
from importlib.util import find_spec

import pytest
import torch

from benchmarks.equal_training import PEERS, compared

# Rounding, which AdamW amplifies: steps of weights without an effect on the loss are noise. transformers computes the
# loss in float32; NeMo's losses are larger at first.
PRECISIONS = {"transformers": (torch.float32, 1e-5), "nemo": (torch.float64, 1e-7)}


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("is_padded", [False, True])
def test_the_losses_of_50_steps_are_equal(peer: str, is_padded: bool) -> None:
    if find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed")
    dtype, tolerance = PRECISIONS[peer]
    result = compared(peer, is_padded, is_padded, 50, dtype)
    assert all(map(math.isfinite, result.ours))
    assert result.ours[-1] < 0.5 * result.ours[0], "the model must learn"
    assert result.difference < tolerance


@pytest.mark.slow
def test_batch_norms_that_count_padding_are_the_only_difference() -> None:
    assert compared("transformers", True, False, 50, torch.float32).difference > 1e-3
