"""The networks that are compared: encoders of asr and of other toolkits, equal in shape, front-end and head."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from hydra import compose
from omegaconf import OmegaConf
from torch import Tensor, nn

from asr.base.settings.conf import names
from asr.components.head.ctc import CTC
from asr.core.build import component
from asr.core.training.hydra_command import initialized_hydra
from asr.interfaces import Encoded, Targets
from benchmarks.peers.front_end import FrontEnd
from benchmarks.race import enter

VOCAB_SIZE = 1024
NUM_MEL_BINS = 80
FRAMES_PER_SECOND = 100
BLOCK_FRAMES_PER_SECOND = 25
TOKENS_PER_SECOND = 3.5  # about the rate of LibriSpeech with 1024 sentence pieces
MIN_LENGTH_FRACTION = 0.6  # length of a batch's shortest utterance divided by that of the longest

OURS = "ours"
ATTENTIONS = sorted({*names("encoder/block/attention")} - {"relative_attention"})
RELATIVE = {
    "Parakeet": "benchmarks.peers.parakeet",
    "NeMo": "benchmarks.peers.nemo",
    "SpeechBrain": "benchmarks.peers.speechbrain",
    "ESPnet": "benchmarks.peers.espnet",
}
# torchaudio's attention has no positional encoding and so does less work. The column "x peer", which compares each
# network with the fastest of the other toolkits, therefore ignores torchaudio.
PEERS = {**RELATIVE, "torchaudio, no positions": "benchmarks.peers.torchaudio"}


class Shape(NamedTuple):
    """Size of all networks; the fields are named as in `asr.components.encoder.conformer`."""

    dim: int
    num_layers: int
    num_heads: int
    feed_forward_dim: int
    kernel_size: int
    dropout: float
    num_channels: int


class Batch(NamedTuple):
    """Random features (B, T, F) and tokens (B, U), and their lengths (B,)."""

    features: Tensor
    lengths: Tensor
    tokens: Tensor
    token_lengths: Tensor

    @property
    def targets(self) -> Targets:
        """Targets of asr's heads."""
        return {"tokens": self.tokens, "token_lengths": self.token_lengths}


class Net(nn.Module):
    """An encoder with asr's CTC head.

    Args:
        encoder: maps features (B, T, F) and lengths (B,) to encoder_out (B, T', D) and its lengths (B,).
        blocks: the encoder's repeated modules.
        dim: dimension D of encoder_out.
    """

    def __init__(self, encoder: nn.Module, blocks: nn.ModuleList, dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.blocks = blocks
        self.head = CTC(dim, {}, VOCAB_SIZE)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map features (B, T, F) and lengths (B,) to log_probs (B, T', V) and their lengths (B,)."""
        encoded = self.encoder(features, lengths)
        return self.head.log_probs(encoded.out), encoded.lengths

    def loss(self, batch: Batch) -> Tensor:
        """Compute a batch's CTC loss, divided by its number of tokens."""
        encoded = self.encoder(batch.features, batch.lengths)
        return self.head.losses(encoded, batch.targets)["loss"].sum() / batch.token_lengths.sum()


class Peer(NamedTuple):
    """Another toolkit's encoder, without its front-end.

    Args:
        modules: the modules that contain its weights.
        layers: its blocks.
        run: maps (B, T', D) and lengths (B,) to encoder_out (B, T', D).
    """

    modules: Sequence[nn.Module]
    layers: nn.ModuleList
    run: Callable[[Tensor, Tensor], Tensor]


class PeerEncoder(nn.Module):
    """A front-end followed by a peer's blocks."""

    def __init__(self, front_end: nn.Module, peer: Peer) -> None:
        super().__init__()
        self.front_end = front_end
        self.blocks = nn.ModuleList(peer.modules)
        self._run = peer.run

    def forward(self, features: Tensor, lengths: Tensor) -> Encoded:
        """Map features (B, T, F) and lengths (B,) to encoder_out (B, T', D) and its lengths (B,)."""
        x, lengths = self.front_end(features, lengths)
        return Encoded(self._run(x, lengths), lengths, {})


class NoFrontEnd(nn.Module):
    """Replaces the front-end when the blocks alone are timed; the inputs are then (B, T', D)."""

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return x and lengths unchanged."""
        return x, lengths


def encoder_config(overrides: str) -> dict[str, Any]:
    """Compose the settings of an encoder, such as `conformer_s encoder/block/attention=local_attention`."""
    with initialized_hydra():
        config = compose("train", overrides=f"encoder={overrides}".split())
    return OmegaConf.to_container(config.encoder, resolve=True)  # type: ignore[return-value]


def shape_of(config: dict[str, Any]) -> Shape:
    """Return the sizes of our encoder, which the peers copy."""
    block = config["block"]
    return Shape(
        **{key: config[key] for key in ("dim", "num_layers")},
        **{key: block[key] for key in ("num_heads", "dropout")},
        feed_forward_dim=round(block["feed_forward_factor"] * config["dim"]),
        kernel_size=block["convolution"]["kernel_size"],
        num_channels=config["subsampling"]["num_channels"],
    )


def installed(contenders: list[str]) -> list[str]:
    """Return the contenders whose packages are installed; print a message for each other contender."""
    imports = {name: functools.partial(importlib.import_module, PEERS[name]) for name in contenders if name != OURS}
    modules = enter(imports)
    return [name for name in contenders if name == OURS or name in modules]


def encoder_of_size(size: str) -> str:
    """Return the name of an encoder in conf/encoder; `s` is short for `conformer_s`."""
    return size if size in names("encoder") else f"conformer_{size}"


def entries(contenders: list[str], size: str, attentions: list[str]) -> dict[str, tuple[str, str]]:
    """Return {name: arguments of `make_net`} of the contenders, and of our encoder with each of `attentions`."""
    encoder = encoder_of_size(size)
    arguments = {name: (name, encoder) for name in contenders}
    if OURS in contenders:
        arguments |= {f"{OURS}, {name}": (OURS, f"{encoder} encoder/block/attention={name}") for name in attentions}
    return arguments


def make_net(contender: str, encoder_name: str, *, with_front_end: bool = True) -> Net:
    """Make our network or a peer of equal shape, with random weights."""
    config = encoder_config(encoder_name)
    shape = shape_of(config)
    if contender == OURS:
        encoder = component("encoder", config)(NUM_MEL_BINS)
        if not with_front_end:
            encoder.subsampling = NoFrontEnd()
        return Net(encoder, encoder.blocks, shape.dim)
    peer: Peer = importlib.import_module(PEERS[contender]).blocks(shape)
    return Net(PeerEncoder(_front_end(config, shape) if with_front_end else NoFrontEnd(), peer), peer.layers, shape.dim)


def _front_end(config: dict[str, Any], shape: Shape) -> nn.Module:
    """Make the peers' front-end; for a Fast Conformer (subsampling by 8) it is Parakeet's, from transformers."""
    if config["subsampling"]["name"] == "depthwise_conv":
        front_end: nn.Module = importlib.import_module(PEERS["Parakeet"]).DepthwiseFrontEnd(shape)
        return front_end
    return FrontEnd(NUM_MEL_BINS, shape.num_channels, shape.dim, shape.dropout)


def make_batch(count: int, max_seconds: float, *, blocks_dim: int | None = None) -> Batch:
    """Make `count` utterances, with lengths evenly spaced from MIN_LENGTH_FRACTION * max_seconds to max_seconds.

    Args:
        blocks_dim: dimension D of inputs for the blocks alone; None: the inputs are features.
    """
    seconds = max_seconds * (torch.linspace(1.0, MIN_LENGTH_FRACTION, count) if count > 1 else torch.ones(1))
    frames_per_second = FRAMES_PER_SECOND if blocks_dim is None else BLOCK_FRAMES_PER_SECOND
    lengths, token_lengths = (seconds * frames_per_second).long(), (seconds * TOKENS_PER_SECOND).long()
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, int(lengths.max()), blocks_dim or NUM_MEL_BINS, generator=generator)
    tokens = torch.randint(1, VOCAB_SIZE, (count, int(token_lengths.max())), generator=generator)
    return Batch(features, lengths, tokens, token_lengths)
