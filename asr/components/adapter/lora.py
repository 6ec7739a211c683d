"""Low-rank adapters of linear layers."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, cast

import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.base.settings.rule import TEXT, Probability, above, list_of, whole
from asr.errors import InputError

A, B = ".lora_a", ".lora_b"  # suffixes of an adapter's weights


class LoRA:
    """Add a trained product of two thin matrices to frozen linear layers: W x + alpha / rank * B A x.

    *Source*: Hu et al. 2021, arXiv:2106.09685, section 4.1. A is initialised like a linear layer's weights, B with
    zeros, so the adapted model starts with the outputs of its base.

    *Differs from the paper*: `attention.qkv` is one layer for queries, keys and values, and has one adapter with a
    common A; at rank 3r it can represent any three adapters of rank r. Only `torch.nn.Linear` layers are adapted,
    including the pointwise convolutions of a Conformer's blocks, which asr implements as linear layers. Other
    convolutions are not adapted.

    Args:
        rank: number of rows of A.
        alpha: the product is scaled by alpha / rank.
        dropout: dropout probability of the input of A.
        modules: patterns of the names of linear layers, such as `encoder.blocks.*.attention.qkv`.
        trained: patterns of the names of other weights to train, such as `head.*`; all remaining weights are frozen.
    """

    def __init__(
        self,
        *,
        rank: Annotated[int, whole(1, 65_536)],
        alpha: Annotated[float, above(0, 1_000_000)],
        dropout: Probability,
        modules: Annotated[list[str], list_of(TEXT, "of patterns, such as [encoder.blocks.*.attention.*]", least=1)],
        trained: Annotated[list[str], list_of(TEXT, "of patterns, such as [head.*]")],
    ) -> None:
        self._rank, self._scale, self._dropout = rank, alpha / rank, dropout
        self._modules, self._trained = modules, trained

    def insert(self, model: nn.Module) -> None:
        """Adapt the layers of a model in place, and freeze all weights except those of adapters and `trained`.

        The names of the model's tensors do not change. An adapter's tensors have the layer's name with the suffixes
        `.lora_a` and `.lora_b`.

        Raises:
            InputError: a pattern matches nothing, or a layer cannot be adapted.
        """
        weights, layers = dict(model.named_parameters()), dict(model.named_modules())
        for pattern in self._trained:
            if not any(fnmatchcase(name, pattern) for name in weights):
                raise InputError(f"adapter.trained must name weights, such as head.*; got {pattern!r}.")
        for name, weight in weights.items():
            weight.requires_grad_(any(fnmatchcase(name, pattern) for pattern in self._trained))
        linear = {name: layer for name, layer in layers.items() if type(layer) is nn.Linear}
        for pattern in self._modules:
            if not any(fnmatchcase(name, pattern) for name in linear):
                example = next(iter(linear), "none in this model")
                raise InputError(f"adapter.modules must name linear layers, such as {example}; got {pattern!r}.")
        for name, layer in linear.items():
            if any(fnmatchcase(name, pattern) for pattern in self._modules):
                parent, _, leaf = name.rpartition(".")
                if leaf in getattr(layers[parent], "reads_weights_of", ()):
                    must = "adapter.modules must name layers whose forward method is called"
                    raise InputError(f"{must}; other code reads the weights of {name} directly. Leave this layer out.")
                AdaptedLinear.adapt(layer, self._rank, self._scale, self._dropout)

    def merged(self, base: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Merge trained weights into the weights of the base: W + alpha / rank * B A, computed in float64.

        Args:
            base: weights of the adapted model, by name.
            own: weights of its adapters, and other trained weights.

        Raises:
            InputError: `own` does not fit `base`.
        """
        weights = {**base, **{name: weight for name, weight in own.items() if not name.endswith((A, B))}}
        for layer in sorted({name.removesuffix(A).removesuffix(B) for name in own if name.endswith((A, B))}):
            a, b, weight = own.get(layer + A), own.get(layer + B), weights.get(f"{layer}.weight")
            wanted = None if weight is None or weight.ndim != 2 else ((self._rank, weight.shape[1]), len(weight))
            if (
                a is None
                or b is None
                or weight is None
                or wanted != (tuple(a.shape), len(b))
                or b.shape[1:] != a.shape[:1]
            ):
                raise InputError(f"an adapter of rank {self._rank} must fit the weights of {layer}; it does not.")
            update = self._scale * (b.double() @ a.double())
            weights[f"{layer}.weight"] = (weight.double() + update).to(weight.dtype)
        return weights


class AdaptedLinear(nn.Linear):
    """A linear layer with an adapter: W x + bias + scale * B A dropout(x).

    An existing layer is changed in place, so that references to it remain valid.
    """

    lora_a: nn.Parameter  # (rank, in)
    lora_b: nn.Parameter  # (out, rank)
    lora_dropout: Dropout
    scale: float

    @classmethod
    def adapt(cls, layer: nn.Linear, rank: int, scale: float, dropout: float) -> None:
        """Convert a layer to an adapted layer, in place."""
        out_dim, in_dim = layer.weight.shape
        layer.__class__ = cls
        adapted = cast(AdaptedLinear, layer)
        adapted.lora_a = nn.Parameter(layer.weight.new_empty(rank, in_dim))
        adapted.lora_b = nn.Parameter(layer.weight.new_zeros(out_dim, rank))
        nn.init.kaiming_uniform_(adapted.lora_a, a=5**0.5)  # like nn.Linear
        adapted.lora_dropout = Dropout(dropout)
        adapted.scale = scale

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        low = F.linear(self.lora_dropout(input), self.lora_a)  # (..., rank)
        return super().forward(input) + F.linear(self.scale * low, self.lora_b)
