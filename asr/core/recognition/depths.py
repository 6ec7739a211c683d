"""Depth of each weight of an encoder, by which learning rates and weight decay may differ."""

from collections.abc import Sequence

from torch import nn

from asr.interfaces import Encoder, NamedBlocks


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
