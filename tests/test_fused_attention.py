"""Attention padded for CUDA kernels equals unpadded attention. The tests run on a CPU, which needs no padding."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from asr.base.kernels import fused_attention
from asr.base.kernels.fused_attention import padded_attention

SCALES = pytest.mark.parametrize("scale", [1.0, None])
SHAPES = pytest.mark.parametrize(
    ("queries", "keys", "head_dim"),
    [(1, 1, 4), (7, 7, 36), (5, 19, 44), (16, 16, 64), (9, 32, 36)],
)


def drawn(queries: int, keys: int, head_dim: int) -> list[Tensor]:
    """Draw query, key, value and an additive mask that hides some keys, in float64."""
    torch.manual_seed(0)
    parts = [torch.randn(2, 3, frames, head_dim, dtype=torch.float64) for frames in (queries, keys, keys)]
    mask = torch.randn(2, 3, queries, keys, dtype=torch.float64)
    mask[1, :, :, keys // 2 + 1 :] = torch.finfo(torch.bfloat16).min / 2
    return [part.requires_grad_() for part in (*parts, mask)]


def outcome(attend: Any, inputs: list[Tensor], dtype: torch.dtype, **options: Any) -> list[Tensor]:
    """Compute the output and the gradients of all inputs in `dtype`; return them as float64."""
    inputs = [part.detach().to(dtype).requires_grad_() for part in inputs]
    torch.manual_seed(1)  # the seed of dropout
    out = attend(*inputs, **options)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(dtype)
    return [part.detach().double() for part in (out, *torch.autograd.grad(out, inputs, weights))]


def plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float | None) -> Tensor:
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale) + mask
    return scores.softmax(dim=-1) @ value


@SCALES
@SHAPES
def test_padding_changes_neither_the_output_nor_the_gradients(
    queries: int, keys: int, head_dim: int, scale: float | None
) -> None:
    inputs = drawn(queries, keys, head_dim)
    expected = outcome(plain, inputs, torch.float64, scale=scale)
    actual = outcome(padded_attention, inputs, torch.float64, dropout=0.0, scale=scale)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)  # float64, sums in another order


@SCALES
@SHAPES
def test_in_bfloat16_padding_adds_no_error(queries: int, keys: int, head_dim: int, scale: float | None) -> None:
    """With and without padding, the errors against float64 have equal size; only the order of rounding differs."""
    inputs = drawn(queries, keys, head_dim)
    expected = outcome(plain, [part.bfloat16() for part in inputs], torch.float64, scale=scale)
    padded = outcome(padded_attention, inputs, torch.bfloat16, dropout=0.0, scale=scale)
    unpadded = outcome(
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=scale), inputs, torch.bfloat16
    )
    for ours, theirs, exact in zip(padded, unpadded, expected, strict=True):
        unit = 2**-8 * float(exact.abs().max())
        assert float((ours - exact).abs().max()) <= float((theirs - exact).abs().max()) + unit


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dropout_drops_the_same_weights_with_and_without_padding(dtype: torch.dtype) -> None:
    inputs = drawn(5, 19, 36)
    with sdpa_kernel(SDPBackend.MATH):
        actual = outcome(padded_attention, inputs, dtype, dropout=0.4, scale=1.0)
        expected = outcome(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, 0.4, scale=1.0), inputs, dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 0.05
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert not torch.equal(actual[0], outcome(plain, inputs, torch.float64, scale=1.0)[0])


def test_a_query_that_sees_no_key_has_finite_results() -> None:
    query, key, value, mask = drawn(3, 5, 36)
    hidden = torch.full_like(mask, torch.finfo(torch.bfloat16).min / 2)
    actual = outcome(padded_attention, [query, key, value, hidden], torch.bfloat16, dropout=0.0)
    assert all(part.isfinite().all() for part in actual)


@pytest.mark.parametrize("head_dim", [36, 44, 64])
@pytest.mark.parametrize("is_bool", [True, False])
def test_on_a_gpu_torch_receives_shapes_and_backends_that_its_kernel_accepts(
    head_dim: int, is_bool: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fake tensors replace tensors on a GPU; after the call the enabled backends are restored."""
    calls: list[tuple[list[Tensor], float, list[bool]]] = []

    def enabled() -> list[bool]:
        cuda = torch.backends.cuda
        return [
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
            cuda.flash_sdp_enabled(),
        ]

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, dropout: float, *, scale: float) -> Tensor:
        calls.append(([query, key, value, mask], scale, enabled()))
        return query

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    before = enabled()
    with FakeTensorMode():
        query, key, value = (torch.empty(2, 3, 7, head_dim, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        mask = torch.empty(2, 3, 7, 7, dtype=torch.bool if is_bool else torch.bfloat16, device="cuda")
        out = fused_attention.fused_attention(query, key, value, mask, dropout=0.1)
    [((query, key, value, mask), scale, backends)] = calls
    assert {part.shape[-1] for part in (query, key, value)} == {math.ceil(head_dim / 8) * 8}
    assert mask.shape == (2, 3, 7, 7)
    assert is_bool or all(stride % 8 == 0 for stride in mask.stride()[:-1])
    assert scale == head_dim**-0.5
    assert backends == [True, True, False, False]
    assert out.shape == (2, 3, 7, head_dim)
    assert enabled() == before


@pytest.mark.parametrize("compiled", [False, True])
def test_padded_attention_equals_plain_attention_even_if_compiled(compiled: bool) -> None:
    def attend(query: Tensor, mask: Tensor) -> Tensor:
        with sdpa_kernel(fused_attention.BACKENDS):
            return padded_attention(query, query, query, mask, dropout=0.0)

    query, _, _, mask = drawn(6, 6, 36)
    form = torch.compile(attend, backend="eager", fullgraph=True) if compiled else attend
    torch.testing.assert_close(form(query, mask), plain(query, query, query, mask, None))
