"""Division and clipping of gradients, including sharded gradients."""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_, get_total_norm


def divide_and_clip(
    parameters: Iterable[nn.Parameter], divisor: Tensor, max_norm: float | None, add_up: Callable[[Tensor], Tensor]
) -> Tensor:
    """Divide gradients, then scale them so that their total norm is at most `max_norm`.

    Args:
        parameters: parameters with gradients; parameters without a gradient are ignored.
        divisor: number by which the gradients are divided, ().
        max_norm: maximum norm; None: no limit.
        add_up: sums a tensor over all processes.

    Returns:
        The norm before clipping, ().
    """
    parameters = list(parameters)
    processes = next((weight.device_mesh.size() for weight in parameters if isinstance(weight, DTensor)), None)
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
    limit = max_norm or float("inf")
    if processes is None or not gradients:
        if gradients:
            torch._foreach_div_(gradients, divisor.to(gradients[0].dtype))
        return clip_grad_norm_(parameters, limit).detach()
    parts = [gradient.to_local() for gradient in gradients if isinstance(gradient, DTensor)]
    scalars = [gradient for gradient in gradients if not isinstance(gradient, DTensor)]  # not reduced by FSDP
    if scalars:
        means = add_up(torch.stack(scalars)) / processes  # FSDP averages the sharded gradients, too
        torch._foreach_copy_(scalars, list(means.unbind()))
    local = [*parts, *scalars]
    torch._foreach_div_(local, divisor.to(local[0].dtype))
    squares = add_up(get_total_norm(parts).square()) + get_total_norm(scalars).square()
    norm = squares.sqrt()
    torch._foreach_mul_(local, (limit / (norm + 1e-6)).clamp(max=1.0))  # the formula of torch's clip_grad_norm_
    return norm.detach()
