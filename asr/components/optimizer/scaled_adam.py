"""The optimizer ScaledAdam: Adam with updates relative to the size of each weight tensor, whose scale it learns."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from asr.base.settings.rule import PROBABILITY, Eps, above, list_of, number, whole
from asr.components.optimizer.adamw import rate_groups
from asr.components.optimizer.by_group import OptimizerByGroup
from asr.interfaces import WeightPlace

MAX_SCALE_STEP = 0.1  # largest relative change of a tensor by one update of its scale


class ScaledAdam:
    """Adam whose updates are proportional to the root mean square (RMS) of each tensor, and which learns its scale.

    The update of a tensor is Adam's, multiplied by the tensor's RMS, so `lr` is a relative change. A second update,
    parallel to the tensor, learns the logarithm of its scale by Adam's rule; its gradient is the sum of weight times
    gradient. A weight that is one number has no scale: its update is Adam's with the rate `scale_factor * lr`.

    *Source*: Yao et al. 2023, arXiv:2310.11230; details as in icefall.

    *Differs from Adam*: as in icefall, the momentum is a running mean of the updates, not of the gradient, and is
    not corrected for its beginning at 0; scales are updated in every `every`-th step by the sum of their gradients and
    the mean square. Unlike icefall's, the mean squared gradient is corrected in all steps. Weights are not decayed. A
    tensor of zeros, such as a new adapter's, begins to move very slowly.

    Args:
        lr: learning rate at the schedule's peak, relative to the RMS of each tensor.
        scale_factor: learning rate of the scales and of weights that are one number, relative to `lr`.
        every: number of steps from one update of the scales to the next.
        betas: decay of the running means of the updates and of the squared gradient.
        eps: added to the square root of the mean squared gradient.
        min_rms: lower bound of the RMS that multiplies an update; the scale of a tensor below it does not change.
        max_rms: a tensor's scale does not grow beyond this RMS.
        max_number: maximum absolute value of a weight that is one number.
        layer_decay: as in `AdamW`.
    """

    def __init__(
        self,
        *,
        lr: Annotated[float, number(0, 1_000)],
        scale_factor: Annotated[float, number(0, 1_000)],
        every: Annotated[int, whole(1, 100)],
        betas: Annotated[list[float], list_of(PROBABILITY, "of two numbers from 0 to less than 1", 2, 2)],
        eps: Eps,
        min_rms: Annotated[float, above(0, 1)],
        max_rms: Annotated[float, above(0, 1_000)],
        max_number: Annotated[float, above(0)],
        layer_decay: Annotated[float, above(0, 1)],
    ) -> None:
        self._lr, self._layer_decay = lr, layer_decay
        self._settings = {"scale_factor": scale_factor, "every": every, "betas": tuple(map(float, betas)), "eps": eps}
        self._settings |= {"min_rms": min_rms, "max_rms": max_rms, "max_number": max_number}

    def __call__(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], places: Mapping[str, WeightPlace]
    ) -> torch.optim.Optimizer:
        """Return the optimizer of these parameters, whose `places` are those of `OptimizerMaker`."""
        groups = [
            {"params": [weight for _, weight in named], "lr": self._lr * factor, **self._settings}
            for factor, _, named in rate_groups(named_parameters, places, self._layer_decay)
        ]
        return ScaledAdamOptimizer(groups, self._lr)


class ScaledAdamOptimizer(OptimizerByGroup):
    """The rule of `ScaledAdam`; the scale of a sharded tensor is that of the whole tensor."""

    def update(self, group: dict[str, Any]) -> None:
        """Update weights together that have made equally many steps."""
        alike: dict[tuple[int, bool], list[Tensor]] = {}  # by the number of steps, and by whether they have a scale
        for weight in group["params"]:
            if weight.grad is not None:
                state = self.state[weight]
                if not state:
                    zeros = {name: torch.zeros_like(weight) for name in ("update", "exp_avg_sq")}
                    state |= {"step": 0, **zeros}
                alike.setdefault((state["step"], weight.numel() > 1), []).append(weight)
                state["step"] += 1
        for (step, has_scale), weights in alike.items():
            self._move(group, weights, step, has_scale)

    def _move(self, group: dict[str, Any], weights: list[Tensor], step: int, has_scale: bool) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state[weight] for weight in weights]
        own, gradients = _parts(weights), _parts([weight.grad for weight in weights if weight.grad is not None])
        updates, squares = (_parts([state[name] for state in states]) for name in ("update", "exp_avg_sq"))
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        correction = (1 - beta2 ** (step + 1)) ** 0.5
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_add_(divisors, correction * group["eps"])
        torch._foreach_mul_(updates, beta1)
        rate = correction * group["lr"]
        if has_scale:
            changes = self._scale_changes(group, weights, gradients, step)
            if changes:
                torch._foreach_addcmul_(updates, own, changes, value=1 - beta1)
            torch._foreach_div_(divisors, [state["rms"] for state in states])
        else:
            rate *= group["scale_factor"]
        torch._foreach_addcdiv_(updates, gradients, divisors, value=-rate * (1 - beta1))
        torch._foreach_add_(own, updates)
        if not has_scale:
            torch._foreach_clamp_min_(own, -group["max_number"])
            torch._foreach_clamp_max_(own, group["max_number"])

    def _scale_changes(
        self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor], step: int
    ) -> list[Tensor]:
        """Take in the gradients of the scales; return the relative changes of the weights in steps that have some."""
        states, every, beta = [self.state[weight] for weight in weights], group["every"], group["betas"][1]
        if step == 0:
            for state, rms in zip(states, _rms(weights).clamp(min=group["min_rms"]), strict=True):
                names = ("scale_grad", "scale_grad_sq", "scale_exp_avg_sq")
                state |= {"rms": rms.clone(), **{name: torch.zeros_like(rms) for name in names}}
        sizes, sums, squares, means = (
            [state[name] for state in states] for name in ("rms", "scale_grad", "scale_grad_sq", "scale_exp_avg_sq")
        )
        pairs = zip(_parts(weights), gradients, strict=True)
        products = torch.stack([torch.dot(own.flatten(), gradient.flatten()) for own, gradient in pairs])
        of_scales = _over_all_parts(products, weights).unbind()
        torch._foreach_add_(sums, of_scales)
        torch._foreach_addcmul_(squares, of_scales, of_scales)
        if step % every != every - 1:
            return []
        decay = beta**every
        mean = decay * torch.stack(means) + (1 - decay) / every * torch.stack(squares)
        root = (mean / (1 - decay ** ((step + 1) // every))).sqrt()
        rms = _rms(weights)
        changes = -group["lr"] * group["scale_factor"] * torch.stack(sums) / (root + group["eps"])
        changes = changes.clamp(-MAX_SCALE_STEP, MAX_SCALE_STEP).minimum(group["max_rms"] / rms - 1)
        torch._foreach_copy_(sizes, rms.clamp(min=group["min_rms"]).unbind())
        torch._foreach_copy_(means, mean.unbind())
        torch._foreach_zero_([*sums, *squares])
        return list(changes.masked_fill(rms < group["min_rms"], 0.0).unbind())


def _parts(tensors: list[Tensor]) -> list[Tensor]:
    """Return this process's part of each sharded tensor, and tensors that are not sharded."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def _over_all_parts(sums: Tensor, weights: list[Tensor]) -> Tensor:
    """Add the sums (N,) over this process's parts of N sharded weights to those of the other processes."""
    if not isinstance(weights[0], DTensor):
        return sums
    return DTensor.from_local(sums, weights[0].device_mesh, [Partial()]).full_tensor()


def _rms(weights: list[Tensor]) -> Tensor:
    """Return the root mean squares (N,) of N weights."""
    norms = torch._foreach_div(torch._foreach_norm(_parts(weights)), [weight.numel() ** 0.5 for weight in weights])
    return _over_all_parts(torch.stack(norms).square(), weights).sqrt()
