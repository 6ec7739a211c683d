"""Runs that train an adapter: the tensors that they change, and the unchanged tensors of the base model."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from asr.errors import InputError


def own_tensors(model: nn.Module) -> frozenset[str]:
    """Return the names of the tensors that training can change; a checkpoint contains only these.

    These are the weights that require gradients, and the buffers of all modules except modules whose weights are all
    frozen: a frozen norm does not update its running statistics.
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
    """Check that all tensors except `own` equal the base's, so that base and checkpoint together make up the model.

    Args:
        model: the adapted model, with the weights of its base.
        own: names from `own_tensors`.
        base: weights of the base.
        source: name of the base as given by the user.

    Raises:
        InputError: a tensor differs, because a part of the base was replaced.
    """
    state = model.state_dict()
    for name, tensor in state.items():
        if name in own:
            continue
        if name not in base or not torch.equal(base[name].to(tensor.dtype), tensor):
            must = f"adapter.trained must name the weights that differ from {source}"
            raise InputError(f"{must}; {name} is missing. Add it, or do not replace its component.")
    if unused := sorted(base.keys() - state.keys()):
        must = f"with an adapter, the model must use each tensor of {source}"
        raise InputError(f"{must}; {unused[0]} is unused. Do not replace its component.")
