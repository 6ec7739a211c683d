"""The front-end of encoders that read waveforms, as in wav2vec 2.0."""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.choice import wants_plain
from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import Bias, Dim, Probability
from asr.errors import InputError
from asr.lengths import Lengths, padding_mask

KERNEL_SIZES, STRIDES = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
WINDOW, HOP = 400, 320  # samples that an output of all convolutions reads, and from one output to the next
BLOCK_FRAMES = 1_024  # frames convolved at a time: the first convolution has 79 outputs for each


class SampleConv(nn.Module):
    """Seven convolutions over samples without padding, each with LayerNorm and GELU; LayerNorm, and a linear layer.

    A feature frame has the 400 samples that one encoder frame depends on, as `features=waveform` makes them, so that
    T' = T. Frames are computed independently: neighbours repeat 80 samples, a fifth of the work. Fewer samples are
    padded with zeros.

    *Source*: Baevski et al. 2020 (wav2vec 2.0), arXiv:2006.11477, section 2; LayerNorm instead of the first layer's
    group norm as in its large models (transformers' `feat_extract_norm: layer`).

    Args:
        num_channels: C, number of channels of each convolution.
        bias: whether the convolutions have a bias.
        dropout: dropout after the linear layer.

    Raises:
        InputError: a frame has more samples than the convolutions read.
    """

    stride = 1
    streaming = None

    def __init__(self, input_dim: int, output_dim: int, *, num_channels: Dim, bias: Bias, dropout: Probability) -> None:
        super().__init__()
        if input_dim > WINDOW:
            must = f"frames must have at most {WINDOW} samples for encoder.subsampling=sample_conv"
            raise InputError(f"{must}; got {input_dim}. Use features=waveform.")
        inputs = [1, *[num_channels] * (len(STRIDES) - 1)]
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, num_channels, kernel_size, stride, bias=bias)
            for channels, kernel_size, stride in zip(inputs, KERNEL_SIZES, STRIDES, strict=True)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(num_channels) for _ in STRIDES)
        self.norm = nn.LayerNorm(num_channels)
        self.linear = nn.Linear(num_channels, output_dim)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F), (B,) to (B, T, D), (B,)."""
        x = features.masked_fill(padding_mask(feature_lengths, features.shape[1])[:, :, None], 0.0)
        x = F.pad(x.flatten(0, 1), (0, WINDOW - x.shape[2]))  # (BT, 400)
        # Only training needs all results at once. A GPU then launches few kernels.
        blocks: Sequence[Tensor] = [x] if wants_plain() or torch.is_grad_enabled() else x.split(BLOCK_FRAMES)
        x = torch.cat([self._convolved(block) for block in blocks]).unflatten(0, features.shape[:2])
        return self.dropout(self.linear(self.norm(x))), feature_lengths

    def _convolved(self, samples: Tensor) -> Tensor:
        """Map the samples of frames, (N, 400), to (N, C).

        A convolution is a linear layer on the values that its kernel covers: faster for many short inputs.
        """
        x = samples[:, :, None]
        for conv, norm, size, stride in zip(self.convs, self.norms, KERNEL_SIZES, STRIDES, strict=True):
            end = (x.shape[1] - size) // stride * stride + 1
            covered = torch.cat([x[:, first : first + end : stride] for first in range(size)], dim=2)
            weight = cast(Tensor, conv.weight).transpose(1, 2).flatten(1)  # input order (kernel, C)
            x = F.gelu(norm(F.linear(covered, weight, cast("Tensor | None", conv.bias))))
        return x[:, 0]

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames, T."""
        return feature_lengths
