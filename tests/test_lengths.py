"""Formulas for lengths, compared with the lengths of the convolutions' outputs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from asr.components.encoder.subsampling.strided_conv import StridedConv
from asr.lengths import padding_mask, strided_lengths

KERNELS, STRIDES, PADDINGS, EXTRA = st.integers(1, 9), st.integers(1, 4), st.integers(0, 4), st.integers(0, 40)


@settings(deadline=None)
@given(EXTRA, KERNELS, STRIDES, PADDINGS)
def test_strided_lengths_is_the_number_of_outputs_of_conv1d(
    extra: int, kernel_size: int, stride: int, padding: int
) -> None:
    length = max(1, kernel_size - 2 * padding) + extra  # Conv1d refuses inputs shorter than its kernel
    outputs = nn.Conv1d(1, 1, kernel_size, stride, padding)(torch.zeros(1, 1, length)).shape[-1]
    assert strided_lengths(length, kernel_size=kernel_size, stride=stride, padding=padding) == outputs
    many = strided_lengths(torch.tensor([length, 0]), kernel_size=kernel_size, stride=stride, padding=padding)
    assert many.tolist() == [outputs, 0]


@settings(deadline=None)
@given(st.tuples(EXTRA, EXTRA), KERNELS, STRIDES, PADDINGS)
def test_strided_lengths_holds_for_both_axes_of_conv2d(
    extra: tuple[int, int], kernel_size: int, stride: int, padding: int
) -> None:
    shape = [max(1, kernel_size - 2 * padding) + more for more in extra]
    outputs = nn.Conv2d(1, 1, kernel_size, stride, padding)(torch.zeros(1, 1, *shape)).shape[-2:]
    counted = [strided_lengths(axis, kernel_size=kernel_size, stride=stride, padding=padding) for axis in shape]
    assert counted == list(outputs)


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_an_empty_input_has_an_empty_output(padding: int) -> None:
    assert strided_lengths(0, kernel_size=3, stride=2, padding=padding) == 0
    assert strided_lengths(torch.tensor([0]), kernel_size=3, stride=2, padding=padding).tolist() == [0]


@pytest.mark.parametrize(("length", "kernel_size", "padding"), [(1, 2, 0), (1, 9, 0), (2, 9, 3), (4, 31, 1)])
def test_an_input_shorter_than_the_kernel_has_an_empty_output(length: int, kernel_size: int, padding: int) -> None:
    for stride in (1, 2, 3):
        assert strided_lengths(length, kernel_size=kernel_size, stride=stride, padding=padding) == 0
        many = strided_lengths(torch.tensor([length]), kernel_size=kernel_size, stride=stride, padding=padding)
        assert many.tolist() == [0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 12))
def test_padding_mask_is_true_after_each_length(lengths: list[int], max_length: int) -> None:
    mask = padding_mask(torch.tensor(lengths), max_length)
    assert mask.tolist() == [[frame >= length for frame in range(max_length)] for length in lengths]


def test_the_front_end_halves_the_number_of_frames_twice_and_rounds_up() -> None:
    front_end = StridedConv(input_dim=8, output_dim=4, num_channels=2, dropout=0.0)
    for frames in range(1, 42):
        out, lengths = front_end(torch.zeros(1, frames, 8), torch.tensor([frames]))
        expected = math.ceil(math.ceil(frames / 2) / 2)
        assert out.shape == (1, expected, 4)
        assert lengths.tolist() == [expected]
        assert front_end.output_lengths(frames) == expected
        assert front_end.output_lengths(torch.tensor([frames])).tolist() == [expected]


@pytest.mark.parametrize("input_dim", [1, 7, 40, 79, 80, 81])
def test_the_front_end_accepts_any_number_of_mel_bins(input_dim: int) -> None:
    front_end = StridedConv(input_dim=input_dim, output_dim=4, num_channels=2, dropout=0.0)
    out, _ = front_end(torch.zeros(1, 9, input_dim), torch.tensor([9]))
    assert out.shape == (1, 3, 4)


def test_the_output_length_of_an_utterance_is_the_same_alone_and_in_a_batch() -> None:
    front_end = StridedConv(input_dim=8, output_dim=4, num_channels=2, dropout=0.0)
    feature_lengths = torch.tensor([0, 1, 4, 5, 16, 17])
    _, lengths = front_end(torch.zeros(6, 17, 8), feature_lengths)
    assert lengths.tolist() == [front_end.output_lengths(length) for length in feature_lengths.tolist()]
