"""The front-end of a Zipformer: three convolutions and a ConvNeXt layer, which halve the number of frames."""

from typing import Annotated, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.depthwise import DepthwiseConv2d
from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import Probability, list_of, whole
from asr.components.encoder.zipformer_parts import BiasNorm, SwooshL, SwooshR, scaled
from asr.errors import InputError
from asr.interfaces import State
from asr.lengths import Lengths, padding_mask

FIRST = 9  # feature frames of an output frame
MIN_INPUT_DIM = 7
KERNEL_SIZE, EXPANSION, SMALL = 7, 3, 0.01  # of the ConvNeXt layer; SMALL: factor of the initial weights of its output
NEAR = KERNEL_SIZE // 2  # frames of the layer's input that its output frame needs on each side
Channels = Annotated[list[int], list_of(whole(1, 65_536), "of three numbers of channels, such as [8, 32, 128]", 3, 3)]


class ConvNeXt(nn.Module):
    """Three 3x3 convolutions over (time, frequency), a ConvNeXt layer, a linear layer and a norm.

    The second convolution halves time and frequency, the third halves the frequency. Time is not padded, so that
    an output frame needs 9 feature frames: T' = floor((T - 7) / 2). With the neighbours that the ConvNeXt layer reads,
    output frame n depends on the feature frames from 2 n - 6 to 2 n + 14.

    *Source*: Yao et al. 2023 (Zipformer), arXiv:2310.11230; Liu et al. 2022 (ConvNeXt), arXiv:2201.03545.

    Args:
        channels: number of channels of each of the three convolutions.
        dropout: dropout after the norm.

    Raises:
        InputError: there are too few features for the three convolutions.
    """

    stride = 2
    first_frames = 1
    look_ahead = FIRST - 1 + stride * NEAR

    def __init__(self, input_dim: int, output_dim: int, *, channels: Channels, dropout: Probability) -> None:
        super().__init__()
        if input_dim < MIN_INPUT_DIM:
            must = f"features must have at least {MIN_INPUT_DIM} values per frame, for encoder.subsampling=convnext"
            raise InputError(f"{must}; got {input_dim}.")
        first, second, last = channels
        self.conv1 = nn.Conv2d(1, first, 3, padding=(0, 1))
        self.conv2 = nn.Conv2d(first, second, 3, stride=2)
        self.conv3 = nn.Conv2d(second, last, 3, stride=(1, 2))
        self.activation = SwooshR()
        self.layer = ConvNeXtLayer(last)
        self.layer_shape = (((input_dim - 1) // 2 - 1) // 2, last)  # frequencies and channels of a frame
        self.linear = nn.Linear(last * self.layer_shape[0], output_dim)
        self.norm = BiasNorm(output_dim)
        self.dropout = Dropout(dropout)

    def forward(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, F), (B,) to (B, T', D), (B,); without a whole output frame, T' is 1, and the frame is padding."""
        # Always padded and cut: an exported program, too, has a frame for an utterance that is too short for one.
        frames = cast(int, torch.sym_max(1, (features.shape[1] - FIRST) // self.stride + 1))
        x = features.masked_fill(padding_mask(feature_lengths, features.shape[1])[:, :, None], 0.0)
        x = F.pad(x, (0, 0, 0, FIRST - 1))[:, None]  # (B, 1, T + 8, F)
        x, lengths = self._convolved(x, frames, feature_lengths)
        return self._projected(self.layer(x)), lengths

    @property
    def streaming(self) -> Self:
        """Return this object, which can continue from chunk to chunk."""
        return self

    def initial_state(self, batch: int) -> State:
        """Return the state of new streams: the zeros before the first frame of the ConvNeXt layer's input."""
        return {"frames": self.linear.weight.new_zeros(batch, NEAR, *self.layer_shape)}

    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, ahead: int = look_ahead
    ) -> tuple[Tensor, Tensor, State]:
        """Continue streams; arguments and results as in `StreamingSubsampling`."""
        unread = self.stride - self.first_frames
        frames = (features.shape[1] - self.look_ahead) // self.stride
        features, feature_lengths = features[:, unread:], (feature_lengths - unread).clamp(min=0)
        x = features.masked_fill(padding_mask(feature_lengths, features.shape[1])[:, :, None], 0.0)[:, None]
        x, lengths = self._convolved(x, frames + NEAR, feature_lengths)
        x = torch.cat([state["frames"], x], dim=1)
        before_next = x.narrow(1, frames - (ahead - self.look_ahead) // self.stride, NEAR)
        return self._projected(self.layer(x, NEAR)), lengths.clamp(max=frames), {"frames": before_next}

    def _convolved(self, x: Tensor, frames: int, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, 1, T, F) to the ConvNeXt layer's input (B, T', F', C), cut to `frames`, and its lengths (B,)."""
        for conv in (self.conv1, self.conv2, self.conv3):
            x = self.activation(conv(x))
        x, lengths = x.narrow(2, 0, frames), self.output_lengths(feature_lengths)  # (B, C, T', F')
        # Channels last: the convolutions' gradients on a CPU then take less than half of the time.
        x = x.permute(0, 2, 3, 1).masked_fill(padding_mask(lengths, x.shape[2])[:, :, None, None], 0.0).contiguous()
        return x, lengths

    def _projected(self, x: Tensor) -> Tensor:
        """Map the ConvNeXt layer's output (B, T', F', C) to (B, T', D)."""
        return self.dropout(self.norm(self.linear(x.transpose(2, 3).flatten(2))))

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        """Return the number of output frames T' for T feature frames."""
        frames = (feature_lengths - FIRST) // 2 + 1
        return frames * (frames > 0)


class ConvNeXtLayer(nn.Module):
    """A depthwise 7x7 convolution, an inner pointwise layer with more channels, and a residual connection around both.

    *Differs from the source*: there is no norm, and the activation is SwooshL.
    """

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.depthwise = DepthwiseConv2d(num_channels, KERNEL_SIZE, 1, NEAR)
        self.pointwise1 = nn.Linear(num_channels, EXPANSION * num_channels)
        self.activation = SwooshL()
        self.pointwise2 = scaled(nn.Linear(EXPANSION * num_channels, num_channels), SMALL)

    def forward(self, x: Tensor, context: int = 0) -> Tensor:
        """Map (B, T' + 2 context, F', C) to (B, T', F', C); `context` frames at each end are only read."""
        near = self.depthwise(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x, near = (frames.narrow(1, context, frames.shape[1] - 2 * context) for frames in (x, near))
        return x + self.pointwise2(self.activation(self.pointwise1(near)))
