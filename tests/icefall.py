"""icefall's own networks, from the folder that ASR_ICEFALL names, with stand-ins for the functions of k2 that they use.

Needs a checkout of github.com/k2-fsa/icefall, of which only the Python files of egs/librispeech/ASR/zipformer are
imported; k2 and lhotse are not needed.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

FOLDER = Path(os.environ.get("ASR_ICEFALL", "icefall"), "egs", "librispeech", "ASR", "zipformer")
needs_icefall = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs icefall: set ASR_ICEFALL to a checkout")
THEIRS = ("zipformer", "subsampling", "scaling", "decoder", "joiner")


class Modules(NamedTuple):
    """Classes of icefall."""

    encoder: Any
    front_end: Any
    predictor: Any
    joiner: Any


def swoosh(shift: float, constant: float) -> Callable[[Tensor], Tensor]:
    """Make the stand-in for a function of k2."""
    return lambda x: torch.logaddexp(x.new_zeros(()), x - shift) - 0.08 * x - constant


@contextlib.contextmanager
def icefall() -> Iterator[Modules]:
    """Import icefall's modules; their names are free again afterwards."""
    k2, utils, interface = ModuleType("k2"), ModuleType("icefall.utils"), ModuleType("encoder_interface")
    left, right = swoosh(4.0, 0.035), swoosh(1.0, 0.313261687)
    k2.swoosh_l = k2.swoosh_l_forward = left  # type: ignore[attr-defined]
    k2.swoosh_r = k2.swoosh_r_forward = right  # type: ignore[attr-defined]
    utils.torch_autocast = lambda *_, **__: contextlib.nullcontext()  # type: ignore[attr-defined]
    interface.EncoderInterface = nn.Module  # type: ignore[attr-defined]
    stand_ins = {"k2": k2, "icefall": ModuleType("icefall"), "icefall.utils": utils, "encoder_interface": interface}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        for name, module in stand_ins.items():
            patch.setitem(sys.modules, name, module)
        made = {name: importlib.import_module(name) for name in THEIRS}
        yield Modules(
            made["zipformer"].Zipformer2,
            made["subsampling"].Conv2dSubsampling,
            made["decoder"].Decoder,
            made["joiner"].Joiner,
        )
        for name in THEIRS:
            del sys.modules[name]


def encoder_of(modules: Modules, settings: Mapping[str, Any], num_mel_bins: int) -> nn.Module:
    """Make icefall's front-end and encoder with the sizes of our encoder."""
    dims, block = settings["dims"], settings["block"]
    theirs = nn.Module()
    theirs.encoder_embed = modules.front_end(num_mel_bins, dims[0], *settings["subsampling"]["channels"], dropout=0.1)
    theirs.encoder = modules.encoder(
        output_downsampling_factor=2,
        downsampling_factor=tuple(settings["strides"]),
        encoder_dim=tuple(dims),
        encoder_unmasked_dim=tuple(dims),
        num_encoder_layers=tuple(settings["layers"]),
        num_heads=tuple(settings["heads"]),
        feedforward_dim=tuple(settings["feed_forward_dims"]),
        cnn_module_kernel=tuple(settings["kernel_sizes"]),
        query_head_dim=(block["query_head_dim"],),
        pos_head_dim=(block["position_head_dim"],),
        value_head_dim=(block["value_head_dim"],),
        pos_dim=block["position_dim"],
        dropout=0.1,
    )
    return theirs


@torch.no_grad()
def randomize(model: nn.Module, seed: int = 0) -> None:
    """Set random weights, with which each module changes its input by about its size."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.parameters():
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        tensor.copy_(noise / tensor[0].numel() ** 0.5 if tensor.dim() > 1 else tensor + 0.05 * noise)


@torch.no_grad()
def encoded(theirs: Any, features: Tensor) -> Tensor:
    """Encode one utterance, (T, F), to (T', D)."""
    x, lengths = theirs.encoder_embed(features[None], torch.tensor([len(features)]))
    padding = torch.zeros(1, x.shape[1], dtype=torch.bool)
    out, _ = theirs.encoder(x.transpose(0, 1), lengths, padding)
    return out[:, 0]
