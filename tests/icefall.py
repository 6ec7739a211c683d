"""icefall's own networks, from the folder that ASR_ICEFALL names, with stand-ins for the functions of k2 that they use.

Needs a checkout of github.com/k2-fsa/icefall, of which only the Python files of egs/librispeech/ASR/zipformer, and the
searches that it links to, are imported; k2 and lhotse are not needed.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

FOLDER = Path(os.environ.get("ASR_ICEFALL", "icefall"), "egs", "librispeech", "ASR", "zipformer")
needs_icefall = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs icefall: set ASR_ICEFALL to a checkout")
THEIRS = ("zipformer", "subsampling", "scaling", "decoder", "joiner", "beam_search")
# Modules from which icefall's searches and optimizers import names that the tested ones do not use.
UNUSED = ("icefall", "icefall.decode", "icefall.lm_wrapper", "icefall.rnn_lm", "icefall.rnn_lm.model")
UNUSED += ("icefall.transformer_lm", "icefall.transformer_lm.model", "icefall.utils", "lhotse", "lhotse.utils")


class Modules(NamedTuple):
    """Classes of icefall, and its functions `greedy_search` and `modified_beam_search`."""

    encoder: Any
    front_end: Any
    predictor: Any
    joiner: Any
    greedy_search: Any
    beam_search: Any


class RaggedShape:
    """The stand-in for a class of k2: how many entries each row has."""

    def __init__(self, row_splits: Tensor, cached_tot_size: int) -> None:
        self.splits = row_splits

    def to(self, device: object) -> "RaggedShape":
        """Stay on the CPU."""
        return self

    def row_splits(self, axis: int) -> Tensor:
        """Return where each row begins, and where the last one ends."""
        return self.splits

    def row_ids(self, axis: int) -> Tensor:
        """Return the row of each entry."""
        return torch.arange(len(self.splits) - 1).repeat_interleave(self.splits.diff())


class RaggedTensor:
    """The stand-in for a class of k2."""

    def __init__(self, shape: RaggedShape, value: Tensor) -> None:
        self.shape, self.value = shape, value

    def __getitem__(self, row: int) -> Tensor:
        return self.value[int(self.shape.splits[row]) : int(self.shape.splits[row + 1])]


def swoosh(shift: float, constant: float) -> Callable[[Tensor], Tensor]:
    """Make the stand-in for a function of k2."""
    return lambda x: torch.logaddexp(x.new_zeros(()), x - shift) - 0.08 * x - constant


@contextlib.contextmanager
def icefall() -> Iterator[Modules]:
    """Import icefall's modules; their names are free again afterwards."""
    with imported(THEIRS) as made:
        yield Modules(
            made["zipformer"].Zipformer2,
            made["subsampling"].Conv2dSubsampling,
            made["decoder"].Decoder,
            made["joiner"].Joiner,
            made["beam_search"].greedy_search,
            made["beam_search"].modified_beam_search,
        )


@contextlib.contextmanager
def imported(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Import modules of icefall by name; their names are free again afterwards."""
    k2, interface = ModuleType("k2"), ModuleType("encoder_interface")
    stand_ins = {name: ModuleType(name) for name in UNUSED}
    for module in (k2, *stand_ins.values()):
        module.__getattr__ = lambda name: object  # type: ignore[method-assign]
    left, right = swoosh(4.0, 0.035), swoosh(1.0, 0.313261687)
    k2.swoosh_l = k2.swoosh_l_forward = left  # type: ignore[attr-defined]
    k2.swoosh_r = k2.swoosh_r_forward = right  # type: ignore[attr-defined]
    k2.RaggedTensor = RaggedTensor  # type: ignore[attr-defined]
    k2.ragged = SimpleNamespace(create_ragged_shape2=RaggedShape)  # type: ignore[attr-defined]
    stand_ins["icefall.utils"].torch_autocast = lambda *_, **__: contextlib.nullcontext()  # type: ignore[attr-defined]
    interface.EncoderInterface = nn.Module  # type: ignore[attr-defined]
    stand_ins |= {"k2": k2, "encoder_interface": interface}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        for name, module in stand_ins.items():
            patch.setitem(sys.modules, name, module)
        yield {name: importlib.import_module(name) for name in names}
        for name in names:
            del sys.modules[name]


def encoder_of(modules: Modules, settings: Mapping[str, Any], num_mel_bins: int) -> nn.Module:
    """Make icefall's front-end and encoder with the sizes of our encoder, and its chunk and left context."""
    dims, block = settings["dims"], settings["block"]
    causal: dict[str, Any] = {}
    if settings["name"] == "zipformer_streaming":
        chunk, left = settings["chunk_frames"], settings["left_frames"]
        causal = {
            "causal": True,
            "chunk_size": (-1 if chunk is None else 2 * chunk,),
            "left_context_frames": (2 * left,),
        }
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
        **causal,
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


@torch.no_grad()
def encoded_in_chunks(theirs: Any, features: Tensor, chunk: int) -> Tensor:
    """Encode the whole chunks of one utterance (T, F), of `chunk` front-end frames each, as icefall decodes streams."""
    front_end, encoder = theirs.encoder_embed, theirs.encoder
    left = encoder.left_context_frames[0]
    states, near, outs = encoder.get_init_states(), front_end.get_init_states(), []
    states, near = [state.to(features.dtype) for state in states], near.to(features.dtype)
    size, ahead = 2 * chunk, 7 + 2 * 3  # as in its streaming_decode.py
    for begin in range(0, len(features) - size - ahead + 1, size):
        seen = features[None, begin : begin + size + ahead]
        x, lengths, near = front_end.streaming_forward(seen, torch.tensor([seen.shape[1]]), near)
        before = max(0, left - begin // 2)  # frames of the left context before the utterance
        padding = torch.arange(left + chunk)[None] < before
        out, _, states = encoder.streaming_forward(x.transpose(0, 1), lengths, states, padding)
        outs.append(out[:, 0])
    return torch.cat(outs)
