"""The front-end computed by matrix products in blocks, compared with two plain convolutions."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.base.kernels import strided_conv
from asr.components.encoder.subsampling.strided_conv import StridedConv
from asr.lengths import padding_mask


def plainly(front_end: StridedConv, features: Tensor, lengths: Tensor) -> Tensor:
    """Apply convolution and ReLU twice, with frames after an utterance's end set to zero before each."""
    x = features[:, None]
    for conv in (front_end.conv1, front_end.conv2):
        x = x.masked_fill(padding_mask(lengths, x.shape[2])[:, None, :, None], 0.0)
        x = F.relu(F.conv2d(x, conv.weight, conv.bias, stride=2, padding=1))
        lengths = (lengths + 1) // 2
    return front_end.linear(x.transpose(1, 2).flatten(2))  # (B, T', C * F/4)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    more=st.integers(0, 5),
    dim=st.integers(1, 20),
    block=st.sampled_from([1, 300, 2000, 10**6]),
)
def test_the_output_and_its_gradients_equal_those_of_two_convolutions(
    lengths: list[int], more: int, dim: int, block: int
) -> None:
    torch.manual_seed(0)
    front_end = StridedConv(dim, 6, num_channels=5, dropout=0.0).double()
    shape = (len(lengths), max(1, max(lengths) + more), dim)
    features = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strided_conv, "CPU_BLOCK", block)
        out, out_lengths = front_end(features, torch.tensor(lengths))
        expected = plainly(front_end, features, torch.tensor(lengths))
        there = ~padding_mask(out_lengths, out.shape[1])[:, :, None]
        weights = torch.randn_like(out) * there
        wanted = [features, *front_end.parameters()]
        gradients = torch.autograd.grad(out, wanted, weights)
    assert out.shape == expected.shape
    assert out_lengths.tolist() == [(length + 3) // 4 for length in lengths]
    torch.testing.assert_close(out * there, expected * there, rtol=0, atol=1e-12)  # rounding of float64
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, wanted, weights), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)  # sums of up to 100 frames


def test_in_bfloat16_the_error_is_no_larger_than_that_of_the_convolutions() -> None:
    torch.manual_seed(0)
    front_end = StridedConv(20, 16, num_channels=12, dropout=0.0)
    features, lengths = torch.randn(3, 90, 20), torch.tensor([90, 71, 30])
    there = ~padding_mask((lengths + 3) // 4, 23)[:, :, None]
    weights = torch.randn(3, 23, 16) * there

    def error(function: object, truth: list[Tensor] | None) -> list[float]:
        with torch.autocast("cpu", torch.bfloat16):
            out = function()  # type: ignore[operator]
        results = [out * there, *torch.autograd.grad(out, list(front_end.parameters()), weights.to(out.dtype))]
        return [
            float((ours - exact).detach().norm() / exact.detach().norm())
            for ours, exact in zip(results, truth or results, strict=True)
        ]

    exact = plainly(front_end, features, lengths)
    truth = [exact * there, *torch.autograd.grad(exact, list(front_end.parameters()), weights)]
    ours = error(lambda: front_end(features, lengths)[0], truth)
    theirs = error(lambda: plainly(front_end, features, lengths), truth)
    for mine, plain in zip(ours, theirs, strict=True):
        assert mine < 2 * plain + 2**-8, (ours, theirs)  # one rounding to 8 bits


def test_no_activation_between_the_convolutions_is_stored() -> None:
    front_end = StridedConv(80, 32, num_channels=32, dropout=0.0)
    features, lengths = torch.randn(2, 400, 80), torch.tensor([400, 300])
    stored_sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        stored_sizes[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        front_end(features, lengths)
    between = 2 * 200 * 40 * 32  # the first convolution's output
    assert max(stored_sizes.values()) < between / 2
