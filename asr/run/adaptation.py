"""Runs that train an adapter: which tensors are their own, and which are those of the model that they start from."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from asr.errors import InputError


def own_tensors(model: nn.Module) -> frozenset[str]:
    """Name the tensors of an adapted model that training can change; a checkpoint holds no others.

    They are the weights that take gradients, and the buffers of modules unless all weights of the module are frozen:
    running statistics stay where a norm is frozen.
    """
    own = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, nn.Parameter):
            is_own = tensor.requires_grad
        else:
            weights = list(model.get_submodule(name.rpartition(".")[0]).parameters(recurse=False))
            is_own = not weights or any(weight.requires_grad for weight in weights)
        if is_own:
            own.add(name)
    return frozenset(own)


def check_base(model: nn.Module, own: frozenset[str], base: Mapping[str, Tensor], source: str) -> None:
    """Check that an adapted model is its base but for its own tensors, so that both together are the model.

    Args:
        model: adapted, with the weights of its base.
        own: as `own_tensors` gives them.
        base: weights of the base.
        source: what the user calls the base.

    Raises:
        InputError: it is not, since a part of it was replaced.
    """
    state = model.state_dict()
    for name, tensor in state.items():
        if name in own:
            continue
        if name not in base or not torch.equal(base[name].to(tensor.dtype), tensor):
            must = f"with an adapter, weights that are not those of {source} must be trained"
            raise InputError(f"{must}; {name} is new. Add it to adapter.trained, or leave out what replaces it.")
    if unused := sorted(base.keys() - state.keys()):
        must = f"with an adapter, each tensor of {source} must have a place in the model"
        raise InputError(f"{must}; {unused[0]} has none. Leave out what replaces its part.")
