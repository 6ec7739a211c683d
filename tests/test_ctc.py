"""CTC losses equal those of an enumeration of all paths, and greedy decoding follows its definition."""

from itertools import groupby, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.base.text.normalize import as_written
from asr.components.decode.greedy import Greedy
from asr.components.head.ctc import CTC
from asr.components.tokenizer.char import Char
from asr.interfaces import BLANK_ID, Encoded
from tests.identity import IDENTITY, decoded
from tests.targets import targets_of


def collapse(path: tuple[int, ...]) -> list[int]:
    """Map a path to tokens as CTC does: merge repeats, then drop blanks."""
    merged = [token for token, _ in groupby(path)]
    return [token for token in merged if token != BLANK_ID]


def loss_by_enumeration(log_probs: Tensor, tokens: list[int]) -> Tensor:
    """Return -log of the total probability of all paths through log_probs (T', V) that spell `tokens`."""
    frames, vocab_size = log_probs.shape
    paths = [path for path in product(range(vocab_size), repeat=frames) if collapse(path) == tokens]
    scores = [sum((log_probs[t, token] for t, token in enumerate(path)), log_probs.new_zeros(())) for path in paths]
    return -torch.stack(scores).logsumexp(dim=0)


def random_head(vocab_size: int) -> CTC:
    return CTC(output_dim=6, block_dims={}, vocab_size=vocab_size).double()


def pad(tokens: list[list[int]], value: int) -> tuple[Tensor, Tensor]:
    longest = max(len(sequence) for sequence in tokens)
    rows = [sequence + [value] * (longest - len(sequence)) for sequence in tokens]
    return torch.tensor(rows, dtype=torch.int64), torch.tensor([len(sequence) for sequence in tokens])


def losses_of(head: CTC, encoder_out: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
    return head.losses(Encoded(encoder_out, lengths, {}), targets_of(tokens, token_lengths))["loss"]


TOKENS = [[], [1], [2, 1], [1, 1], [1, 2, 1], [2, 2, 1], [1, 1, 1], [2, 1, 2, 1, 2]]


@pytest.mark.parametrize("frames", [1, 2, 3, 5])
def test_losses_and_gradients_equal_enumeration_of_all_paths(frames: int) -> None:
    head = random_head(vocab_size=3)
    tokens = [sequence for sequence in TOKENS if CTC.min_frames(sequence) <= frames]
    encoder_out = torch.randn(len(tokens), frames + 2, 6, dtype=torch.float64)  # two frames of padding
    losses = losses_of(head, encoder_out, torch.full((len(tokens),), frames), *pad(tokens, value=2))
    expected = torch.stack(
        [
            loss_by_enumeration(head.log_probs(row[:frames]), spelled)
            for row, spelled in zip(encoder_out, tokens, strict=True)
        ]
    )
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-10)  # float64 rounding

    weights = torch.rand(len(tokens), dtype=torch.float64)
    gradient = torch.autograd.grad(losses @ weights, head.linear.weight)[0]
    gradient_expected = torch.autograd.grad(expected @ weights, head.linear.weight)[0]
    torch.testing.assert_close(gradient, gradient_expected, rtol=0, atol=1e-10)


def test_tokens_that_do_not_fit_their_frames_have_infinite_loss() -> None:
    head = random_head(vocab_size=3)
    encoder_out = torch.randn(3, 4, 6, dtype=torch.float64)
    tokens = [[1, 2, 1], [1, 1, 2], [1, 1, 1]]  # need 3, 4 and 5 frames
    losses = losses_of(head, encoder_out, torch.tensor([4, 4, 4]), *pad(tokens, value=0))
    assert losses.isfinite().tolist() == [True, True, False]
    assert losses[2] == float("inf")


def test_without_tokens_the_loss_is_that_of_a_blank_in_every_frame() -> None:
    head = random_head(vocab_size=4)
    encoder_out = torch.randn(2, 5, 6, dtype=torch.float64)
    log_probs = head.log_probs(encoder_out)
    losses = losses_of(
        head, encoder_out, torch.tensor([5, 3]), torch.zeros(2, 0, dtype=torch.int64), torch.tensor([0, 0])
    )
    expected = torch.stack([-log_probs[0, :, BLANK_ID].sum(), -log_probs[1, :3, BLANK_ID].sum()])
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-12)


def test_without_frames_the_loss_is_0_for_no_tokens_and_infinite_otherwise() -> None:
    head = random_head(vocab_size=3)
    encoder_out = torch.randn(2, 4, 6, dtype=torch.float64)
    losses = losses_of(head, encoder_out, torch.tensor([0, 0]), *pad([[], [1]], value=0))
    assert losses.tolist() == [0.0, float("inf")]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 2), max_size=4))
def test_min_frames_is_the_smallest_number_of_frames_that_has_a_path(tokens: list[int]) -> None:
    frames = 0
    while not any(collapse(path) == tokens for path in product(range(3), repeat=frames)):
        frames += 1
    assert CTC.min_frames(tokens) == frames


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=8))
def test_the_loss_is_infinite_one_frame_below_min_frames_and_finite_at_min_frames(tokens: list[int]) -> None:
    head = random_head(vocab_size=4)
    needed = head.min_frames(tokens)
    encoder_out = torch.randn(2, needed, 6, dtype=torch.float64)
    losses = losses_of(head, encoder_out, torch.tensor([needed - 1, needed]), *pad([tokens, tokens], value=0))
    assert losses.isfinite().tolist() == [False, True]


def test_log_probs_are_float32_under_bfloat16_autocast() -> None:
    head = CTC(output_dim=6, block_dims={}, vocab_size=50)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = head.log_probs(4 * torch.randn(3, 5, 6))
    # In bfloat16 the sum of the probabilities would differ from 1 by up to 4e-3.
    torch.testing.assert_close(log_probs.logsumexp(dim=-1), torch.zeros(3, 5), rtol=0, atol=1e-6)


greedy = Greedy(IDENTITY, Char(), as_written)


def one_hot(paths: list[list[int]], vocab_size: int) -> Tensor:
    """Return log_probs whose best tokens are these paths of equal length."""
    best = torch.nn.functional.one_hot(torch.tensor(paths, dtype=torch.int64), vocab_size).float()
    return (best + 0.1 * torch.rand_like(best)).log_softmax(dim=-1)


@settings(deadline=None)
@given(st.integers(1, 9).flatmap(lambda t: st.lists(st.lists(st.integers(0, 3), min_size=t, max_size=t), min_size=1)))
def test_greedy_decoding_merges_repeats_and_then_drops_blanks(paths: list[list[int]]) -> None:
    hypotheses = decoded(greedy, one_hot(paths, vocab_size=4), torch.full((len(paths),), len(paths[0])))
    assert [hypothesis.tokens for [hypothesis] in hypotheses] == [collapse(tuple(path)) for path in paths]


def test_greedy_decoding_ignores_padded_frames() -> None:
    path = [1, 1, 0, 1, 2, 2, 3]
    hypotheses = decoded(greedy, one_hot([path] * 4, vocab_size=4), torch.tensor([0, 2, 4, 7]))
    assert [hypothesis.tokens for [hypothesis] in hypotheses] == [[], [1], [1, 1], [1, 1, 2, 3]]
