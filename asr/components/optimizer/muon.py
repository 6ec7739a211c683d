"""The optimizer Muon for the matrices of an encoder's blocks, with AdamW for all other weights."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.adamw import adamw

from asr.base.settings.rule import PROBABILITY, Eps, above, list_of, number, whole
from asr.components.optimizer.adamw import rate_groups
from asr.components.optimizer.by_group import OptimizerByGroup
from asr.interfaces import WeightPlace

logger = logging.getLogger(__name__)

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic polynomial whose steps bring singular values near 1
STEPS = 5
RMS = 0.2  # root mean square of a matrix's update, relative to the learning rate; AdamW's are of this size


class Muon:
    """Orthogonalised momentum for matrices in the encoder's blocks; AdamW for kernels, norms, biases and other layers.

    The update of a matrix (M, N) is the momentum with all singular values near 1, multiplied by 0.2 sqrt(max(M, N)) and
    the learning rate, so its root mean square is that of AdamW's updates and the two learning rates are comparable.

    *Source*: Jordan et al. 2024, kellerjordan.github.io/posts/muon, with Nesterov's momentum; size of the updates and
    weight decay of Liu et al. 2025, arXiv:2502.16982, section 2.2.

    *Differs from the sources*: a matrix is moved only in every `every`-th step, `every` times as far, and another part
    of the matrices in each step. The momentum contains the gradient of every step. The steps of the iteration are in
    bfloat16 on GPUs only; CPUs may emulate it. Without trained linear layers in the encoder's blocks (a recurrent or
    frozen encoder, an adapter, a language model), AdamW updates all weights.

    Args:
        lr: learning rate of AdamW at the schedule's peak.
        matrix_factor: learning rate of the matrices, relative to `lr`.
        momentum: decay of the running mean of a matrix's gradient.
        every: number of steps from one update of a matrix to the next; the cost of updates is divided by it.
        betas: decay of AdamW's running means of the gradient and of its square.
        eps: added to the square root of AdamW's mean squared gradient.
        weight_decay: decay of matrices and kernels per step, relative to their learning rate.
        layer_decay: as in `AdamW`.
    """

    def __init__(
        self,
        *,
        lr: Annotated[float, number(0, 1_000)],
        matrix_factor: Annotated[float, number(0, 1_000)],
        momentum: Annotated[float, PROBABILITY],
        every: Annotated[int, whole(1, 100)],
        betas: Annotated[list[float], list_of(PROBABILITY, "of two numbers from 0 to less than 1", 2, 2)],
        eps: Eps,
        weight_decay: Annotated[float, number(0, 1_000)],
        layer_decay: Annotated[float, above(0, 1)],
    ) -> None:
        self._lr, self._matrix_factor, self._layer_decay = lr, matrix_factor, layer_decay
        self._weight_decay, self._every = weight_decay, every
        self._of_adamw = {"betas": (float(betas[0]), float(betas[1])), "eps": eps, "fused": True}
        self._of_muon = {"momentum": momentum, "every": every}

    def __call__(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], places: Mapping[str, WeightPlace]
    ) -> torch.optim.Optimizer:
        """Return the optimizer of these parameters, whose `places` are those of `OptimizerMaker`."""
        adamw_groups: list[dict[str, Any]] = []
        muon_groups: list[dict[str, Any]] = []
        work = [0] * self._every  # of the steps of a cycle
        for factor, decays, named in rate_groups(named_parameters, places, self._layer_decay):
            settings = {"lr": self._lr * factor, "weight_decay": self._weight_decay if decays else 0.0}
            numbers = {name: places[name].matrices for name, _ in named if name in places and places[name].matrices}
            others = [weight for name, weight in named if name not in numbers]
            if others:
                adamw_groups.append({"params": others, **settings, **self._of_adamw})
            if numbers:
                matrices = [(weight, numbers[name]) for name, weight in named if name in numbers]
                settings["lr"] *= self._matrix_factor
                muon_groups.append(
                    {
                        "params": [weight for weight, _ in matrices],
                        "matrices": [number for _, number in matrices],
                        "turns": [_turn(work, weight, number) for weight, number in matrices],
                        **settings,
                        **self._of_muon,
                    }
                )
        if not muon_groups:
            logger.info("no linear layers in the encoder's blocks are trained, so AdamW updates all weights")
        return MuonWithAdamW([*adamw_groups, *muon_groups], self._lr)


def _turn(work: list[int], weight: Tensor, number: int) -> int:
    """Return the step of a cycle that has the least work so far, and add the work of a weight of `number` matrices."""
    turn = work.index(min(work))
    short, long = sorted((weight.shape[0] // number, weight.shape[1]))
    work[turn] += number * short * short * long
    return turn


class MuonWithAdamW(OptimizerByGroup):
    """One optimizer for both rules, so that one schedule and one state in checkpoints serve both.

    Groups with `matrices` use Muon.
    """

    def update(self, group: dict[str, Any]) -> None:
        """Update a group by its rule."""
        (self._muon if "matrices" in group else self._adamw)(group)

    def _adamw(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return
        for weight in weights:
            if not self.state[weight]:
                zeros = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
                self.state[weight] = {"step": torch.zeros((), device=weight.device), **zeros}
        means, squares, steps = (
            [self.state[weight][name] for weight in weights] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        adamw(
            weights,
            [weight.grad for weight in weights],
            means,
            squares,
            [],
            steps,
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _muon(self, group: dict[str, Any]) -> None:
        rate, momentum, every = group["lr"], group["momentum"], group["every"]
        gradients: list[Tensor] = []
        means: list[Tensor] = []
        due: list[_Due] = []
        for weight, parts, turn in zip(group["params"], group["matrices"], group["turns"], strict=True):
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state |= {"momentum_buffer": torch.zeros_like(weight), "step": 0}
            gradients.append(weight.grad)
            means.append(state["momentum_buffer"])
            if state["step"] % every == turn:
                due.append(_Due(weight, gradients[-1], means[-1], parts))
            state["step"] += 1
        if means:
            torch._foreach_lerp_(means, gradients, 1 - momentum)
        if not due:
            return
        ahead = [torch.lerp(moved.gradient, moved.mean, momentum) for moved in due]  # Nesterov's momentum
        matrices = [_whole(mean).chunk(moved.parts) for mean, moved in zip(ahead, due, strict=True)]
        updates = iter(orthogonalised([matrix for parts in matrices for matrix in parts]))
        changes = [_like(torch.cat([next(updates) for _ in range(moved.parts)]), moved.weight) for moved in due]
        weights = [moved.weight for moved in due]
        torch._foreach_mul_(weights, 1 - every * rate * group["weight_decay"])
        torch._foreach_add_(weights, changes, alpha=-every * rate * RMS)


class _Due(NamedTuple):
    """A weight that is moved in this step, which consists of `parts` matrices."""

    weight: Tensor
    gradient: Tensor
    mean: Tensor
    parts: int


def _whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor on every process, which then orthogonalises all of it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _like(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return this process's part of a tensor if the weight is sharded."""
    if not isinstance(weight, DTensor):
        return tensor
    return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)


def orthogonalised(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return U V^T of the singular value decomposition U S V^T of each matrix, with a root mean square of about 1.

    Singular values become 0.7 to 1.2 instead of 1, and those below about 0.001 of the matrix's norm remain smaller.
    Matrices of equal shape, also transposed, are computed together.
    """
    numbers: dict[tuple[int, int], list[int]] = {}  # of the matrices, by the shape of the wide matrix
    for index, matrix in enumerate(matrices):
        short, long = sorted(matrix.shape)
        numbers.setdefault((short, long), []).append(index)
    results: dict[int, Tensor] = {}
    for (_, long), indices in numbers.items():
        tall = [matrices[index].shape[0] > matrices[index].shape[1] for index in indices]
        wide = torch.stack(
            [matrices[index].mT if is_tall else matrices[index] for index, is_tall in zip(indices, tall, strict=True)]
        )
        scaled = newton_schulz(wide).to(wide.dtype) * long**0.5  # an orthogonal matrix has an RMS of 1 / sqrt(long)
        for index, is_tall, result in zip(indices, tall, scaled.unbind(), strict=True):
            results[index] = result.mT if is_tall else result
    return [results[index] for index in range(len(matrices))]


def newton_schulz(x: Tensor) -> Tensor:
    """Bring all singular values of wide matrices (N, R, C), R <= C, to about 1; on a GPU in bfloat16.

    In float32, only the products X X^T (R, R) pass through the steps, and their result is multiplied with X: with
    C = 4 R, this needs about half of the operations, but more precision.
    """
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    x = x.bfloat16() if x.is_cuda else x
    a, b, c = COEFFICIENTS
    gram = x @ x.mT
    if x.dtype.itemsize < 4 or x.shape[2] < 2 * x.shape[1]:
        for step in range(STEPS):
            gram = x @ x.mT if step else gram
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x
    factor = None
    for step in range(STEPS):
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        polynomial.diagonal(dim1=-2, dim2=-1).add_(a)
        factor = polynomial if factor is None else polynomial @ factor
        if step + 1 < STEPS:
            gram = polynomial @ gram @ polynomial
    assert factor is not None
    return factor @ x
