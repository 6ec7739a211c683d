"""The same model, trained on equal batches, has equal losses in asr and in other toolkits."""

import math
from importlib.util import find_spec

import pytest

from benchmarks.equal_training import PEERS, compared

TOLERANCE = 1e-5  # rounding, which 50 steps amplify


@pytest.mark.slow
@pytest.mark.parametrize("peer", [*PEERS])
@pytest.mark.parametrize("is_padded", [False, True])
def test_the_losses_of_50_steps_are_equal(peer: str, is_padded: bool) -> None:
    if find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed")
    result = compared(peer, is_padded, counts_padding=is_padded, num_steps=50)
    assert all(map(math.isfinite, result.ours))
    assert result.ours[-1] < 0.5 * result.ours[0], "the model must learn"
    assert result.difference < TOLERANCE


@pytest.mark.slow
def test_batch_norms_that_count_padding_are_the_only_difference() -> None:
    assert compared("transformers", is_padded=True, counts_padding=False, num_steps=50).difference > 100 * TOLERANCE
