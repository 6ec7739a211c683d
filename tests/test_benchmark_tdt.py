"""The benchmark of TDT: equal losses and tokens of all toolkits, and the number of frames that a path visits."""

import pytest
import torch

from benchmarks import tdt
from benchmarks.tdt import OURS, TRANSFORMERS

LENGTHS = torch.tensor([20, 20])


def test_the_losses_of_asr_and_transformers_are_equal() -> None:
    pytest.importorskip("transformers")
    ours, theirs = (tdt.make_loss(name, LENGTHS, 5)() for name in (OURS, TRANSFORMERS))
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_the_searches_of_asr_and_transformers_find_equal_tokens() -> None:
    pytest.importorskip("transformers")
    table = tdt.compare_searches(LENGTHS, [4.0], turns=1)
    assert [row["search"] for row in table.rows] == [OURS, TRANSFORMERS]
    assert [row["texts that differ from ours"] for row in table.rows] == ["0 of 2", "0 of 2"]
    assert all(row["tokens per s"] > 1 for row in table.rows)


@torch.no_grad()
@pytest.mark.parametrize(("duration", "visits"), [(1, 20), (3, 7), (4, 5)])
def test_a_path_of_blanks_visits_a_frame_per_duration(duration: int, visits: int) -> None:
    head = tdt.random_head(blank_bias=1e3)
    head.joiner.output.bias[tdt.VOCAB_SIZE + duration] += 1e3
    assert tdt.num_visited(head, torch.randn(2, 20, tdt.OUTPUT_DIM), LENGTHS, 10) == 2 * visits
