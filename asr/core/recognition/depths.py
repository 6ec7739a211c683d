"""Place of each weight of an encoder, by which learning rates, weight decay and updates may differ."""

from collections.abc import Mapping, Sequence

from torch import nn

from asr.errors import InputError
from asr.interfaces import Encoder, NamedBlocks, WeightPlace


def depths_of(blocks: NamedBlocks, weights: Sequence[str]) -> dict[str, int]:
    """Return the depth of each weight of an encoder: the number of its block, from 1; 0 for the front-end.

    A weight outside of the blocks belongs to the block that is registered after it, and before the first block to the
    front-end. Weights that are registered after the last block, such as those of a last norm, have no depth.

    Args:
        blocks: blocks of the encoder.
        weights: names of the encoder's weights, in the order of their registration.
    """
    numbers = {f"{name}.": number for number, (name, _) in enumerate(blocks, start=1)}
    depths: dict[str, int] = {}
    following: int | None = None  # number of the block that is registered after a weight
    for name in reversed(weights):
        own = next((number for begin, number in numbers.items() if name.startswith(begin)), None)
        following = following if own is None else own
        if following is not None:
            depths[name] = 0 if own is None and following == 1 else following
    return depths


def depths_in(model: nn.Module, encoder: Encoder) -> dict[str, int]:
    """Return the depths of the weights of a model's encoder (`depths_of`); their names begin with `encoder.`."""
    begin = "encoder."
    weights = [name.removeprefix(begin) for name, _ in model.named_parameters() if name.startswith(begin)]
    return {begin + name: depth for name, depth in depths_of(encoder.named_blocks(), weights).items()}


def places(model: nn.Module, depths: Mapping[str, int]) -> dict[str, WeightPlace]:
    """Return the places of weights, given the depths of weights of a model's encoder.

    Raises:
        InputError: a module states a number of matrices that the weight of its linear layer cannot consist of.
    """
    matrices: dict[str, int] = {}
    for owner_name, owner in model.named_modules():
        stacked: Mapping[str, int] = getattr(owner, "stacked_matrices", {})
        layers = {name: layer for name, layer in owner.named_children() if isinstance(layer, nn.Linear)}
        for name in stacked.keys() | layers.keys():
            number = stacked.get(name, 1)
            if name not in layers or number < 1 or layers[name].out_features % number:
                kind = type(owner).__name__
                must = f"{kind}.stacked_matrices must map names of linear layers to divisors of their outputs"
                raise InputError(f"{must}; got {name}: {number}.")
            matrices[f"{owner_name}.{name}.weight" if owner_name else f"{name}.weight"] = number
    return {name: WeightPlace(depth, matrices.get(name, 0) if depth else 0) for name, depth in depths.items()}
