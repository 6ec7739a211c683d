"""Each convolution module of conf/encoder/block/convolution equals plain loops over frames."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.base.settings.conf import names
from asr.components.encoder.block.activation.gelu import GELU
from asr.core.build import component
from asr.lengths import padding_mask
from tests.conftest import resolved

DIM, KERNEL, DILATION = 4, 5, 3  # KERNEL: of all modules; an even size is tested, too, where it is valid
EXPANSION = 2  # of expanded_convolution
LENGTHS = [9, 1, 6]


class Half(nn.Module):
    """A substitute for a norm; it halves its input, so that its position in the module affects the output."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        assert dim in (DIM, EXPANSION * DIM)

    def forward(self, x: Tensor, padding_mask: Tensor) -> Tensor:
        assert padding_mask.shape == x.shape[:2]
        return 0.5 * x


def make(name: str, kernel: int) -> Any:
    config = resolved(f"encoder/block/convolution={name}")["encoder"]["block"]["convolution"]
    small = {key: value for key, value in (("kernel_size", kernel), ("dilation", DILATION)) if key in config}
    return component("encoder/block/convolution", config | small)(DIM, Half, GELU).double()


def by_loops(module: Any, name: str, x: Tensor) -> Tensor:
    """Compute the convolution module of arXiv:2005.08100, figure 2, for one utterance (T, D), tap by tap."""
    dilation = DILATION if name == "dilated_convolution" else 1
    convolution = module.convolution if name == "plain_convolution" else module.depthwise
    kernel = convolution.weight.shape[2]
    latest = 0 if name == "causal_convolution" else kernel // 2  # frames after the output frame
    left, right = module.pointwise1(x).chunk(2, dim=-1)
    gated = left * right.sigmoid()
    rows = []
    for frame in range(len(x)):
        row = torch.zeros(convolution.out_channels).double() if convolution.bias is None else convolution.bias
        for tap in range(kernel):
            seen = frame + (tap + 1 - kernel + latest) * dilation
            if 0 <= seen < len(x):
                weight = convolution.weight[:, :, tap]  # (D, D), or (D, 1)
                row = row + (weight @ gated[seen] if weight.shape[1] > 1 else weight[:, 0] * gated[seen])
        rows.append(row)
    return module.pointwise2(nn.functional.gelu(0.5 * torch.stack(rows)))


NAMES = names("encoder/block/convolution")
EVEN = [(name, 4) for name in NAMES if name == "same_convolution"]


@pytest.mark.parametrize(("name", "kernel"), [*((name, KERNEL) for name in NAMES), *EVEN])
def test_a_module_and_its_gradients_equal_plain_loops_over_the_frames_of_each_utterance(name: str, kernel: int) -> None:
    module = make(name, kernel)
    padding = padding_mask(torch.tensor(LENGTHS), max(LENGTHS))
    x = torch.randn(len(LENGTHS), max(LENGTHS), DIM, dtype=torch.float64, requires_grad=True)
    out = module(x.masked_fill(padding[:, :, None], 1e30), padding)
    assert out.isfinite().all()
    plain = torch.cat([by_loops(module, name, row[:length]) for row, length in zip(x, LENGTHS, strict=True)])
    weights = torch.randn_like(plain)
    wanted = [x, *module.parameters()]
    results = [[frames, *torch.autograd.grad((frames * weights).sum(), wanted)] for frames in (out[~padding], plain)]
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)  # float64 rounding
