"""The nets that are compared: ours and other toolkits', of one shape, with a front-end and a head of the same work."""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor, nn

from asr.build import component
from asr.head.ctc import CTC
from asr.interfaces import Encoded
from asr.settings.conf import CONF
from benchmarks.peers.front_end import FrontEnd
from benchmarks.race import enter

VOCAB_SIZE = 1024
NUM_MEL_BINS = 80
FRAMES_PER_SECOND = 100
BLOCK_FRAMES_PER_SECOND = 25
TOKENS_PER_SECOND = 3.5  # of 1024 pieces, about LibriSpeech's
SHORTEST = 0.6  # of a batch's longest utterance

OURS = "ours"
ATTENTIONS = sorted({path.stem for path in (CONF / "encoder" / "attention").glob("*.yaml")} - {"relative_attention"})
RELATIVE = {
    "Parakeet": "benchmarks.peers.parakeet",
    "NeMo": "benchmarks.peers.nemo",
    "SpeechBrain": "benchmarks.peers.speechbrain",
    "ESPnet": "benchmarks.peers.espnet",
}
PEERS = {**RELATIVE, "torchaudio, no positions": "benchmarks.peers.torchaudio"}  # less work: shown, not counted


class Shape(NamedTuple):
    """How big all of the nets are; the words are those of `asr.encoder.conformer`."""

    dim: int
    num_layers: int
    num_heads: int
    feed_forward_dim: int
    kernel_size: int
    dropout: float
    num_channels: int


class Batch(NamedTuple):
    """Noise with the shape of speech: (B, T, F), (B,), (B, U), (B,)."""

    features: Tensor
    lengths: Tensor
    tokens: Tensor
    token_lengths: Tensor


class Net(nn.Module):
    """An encoder, whose `blocks` are listed, and our head.

    Args:
        encoder: (B, T, F), (B,) to encoder_out (B, T', D), (B,).
        blocks: those of its modules that are alike.
        dim: D.
    """

    def __init__(self, encoder: nn.Module, blocks: nn.ModuleList, dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.blocks = blocks
        self.head = CTC(dim, len(blocks), VOCAB_SIZE)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, F), (B,) to log_probs (B, T', V), (B,)."""
        encoded = self.encoder(features, lengths)
        return self.head.log_probs(encoded.out), encoded.lengths

    def loss(self, batch: Batch) -> Tensor:
        """Compute a batch's CTC loss, divided by its number of tokens."""
        encoded = self.encoder(batch.features, batch.lengths)
        return self.head.losses(encoded, batch.tokens, batch.token_lengths)["loss"].sum() / batch.token_lengths.sum()


class Peer(NamedTuple):
    """The encoder of another toolkit, without its front-end.

    Args:
        modules: that hold its weights.
        layers: its blocks.
        run: (B, T', D), (B,) to (B, T', D).
    """

    modules: Sequence[nn.Module]
    layers: nn.ModuleList
    run: Callable[[Tensor, Tensor], Tensor]


class PeerEncoder(nn.Module):
    """The common front-end before a peer's blocks."""

    def __init__(self, front_end: nn.Module, peer: Peer) -> None:
        super().__init__()
        self.front_end = front_end
        self.blocks = nn.ModuleList(peer.modules)
        self._run = peer.run

    def forward(self, features: Tensor, lengths: Tensor) -> Encoded:
        """(B, T, F), (B,) to encoder_out (B, T', D), (B,)."""
        x, lengths = self.front_end(features, lengths)
        return Encoded(self._run(x, lengths), lengths, {})


class NoFrontEnd(nn.Module):
    """Stands in the place of a front-end where blocks are given their (B, T', D)."""

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return both unchanged."""
        return x, lengths


def encoder_config(overrides: str) -> dict[str, Any]:
    """Compose an encoder's settings: `conformer_s`, or `conformer_s encoder/attention=local_attention`."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=f"encoder={overrides}".split())
    return OmegaConf.to_container(config.encoder, resolve=True)  # type: ignore[return-value]


def shape_of(config: dict[str, Any]) -> Shape:
    """Take from our encoder's settings what the peers' follow."""
    return Shape(
        **{key: config[key] for key in ("dim", "num_layers", "num_heads", "dropout")},
        feed_forward_dim=round(config["feed_forward_factor"] * config["dim"]),
        kernel_size=config["convolution"]["kernel_size"],
        num_channels=config["subsampling"]["num_channels"],
    )


def installed(contenders: list[str]) -> list[str]:
    """Name those of the contenders that can be made here; the others are left out with a message."""
    imports = {name: functools.partial(importlib.import_module, PEERS[name]) for name in contenders if name != OURS}
    there = enter(imports)
    return [name for name in contenders if name == OURS or name in there]


def encoder_of_size(size: str) -> str:
    """Return the name of an encoder in conf/encoder: `s` is short for `conformer_s`."""
    return size if (CONF / "encoder" / f"{size}.yaml").is_file() else f"conformer_{size}"


def entries(contenders: list[str], size: str, attentions: list[str]) -> dict[str, tuple[str, str]]:
    """Name the contenders and what `make_net` makes them of; ours with other attentions, too."""
    encoder = encoder_of_size(size)
    named = {name: (name, encoder) for name in contenders}
    if OURS in contenders:
        named |= {f"{OURS}, {name}": (OURS, f"{encoder} encoder/attention={name}") for name in attentions}
    return named


def make_net(contender: str, encoder_name: str, *, with_front_end: bool = True) -> Net:
    """Make ours, or a peer of its shape, with fresh weights."""
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
    """Make the peers' front-end; to a Fast Conformer's eight frames in one it is Parakeet's, of transformers."""
    if config["subsampling"]["name"] == "depthwise_conv":
        front_end: nn.Module = importlib.import_module(PEERS["Parakeet"]).DepthwiseFrontEnd(shape)
        return front_end
    return FrontEnd(NUM_MEL_BINS, shape.num_channels, shape.dim, shape.dropout)


def make_batch(count: int, longest: float, *, blocks_dim: int | None = None) -> Batch:
    """Make `count` utterances, from `SHORTEST` of the `longest` (seconds) to all of it in even steps.

    Args:
        blocks_dim: D of the net, where its input is what a front-end would give; else it is features.
    """
    seconds = longest * (torch.linspace(1.0, SHORTEST, count) if count > 1 else torch.ones(1))
    frames_per_second = FRAMES_PER_SECOND if blocks_dim is None else BLOCK_FRAMES_PER_SECOND
    lengths, token_lengths = (seconds * frames_per_second).long(), (seconds * TOKENS_PER_SECOND).long()
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, int(lengths.max()), blocks_dim or NUM_MEL_BINS, generator=generator)
    tokens = torch.randint(1, VOCAB_SIZE, (count, int(token_lengths.max())), generator=generator)
    return Batch(features, lengths, tokens, token_lengths)
