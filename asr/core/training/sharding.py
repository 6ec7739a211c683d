"""Fully sharded training (FSDP): each process stores a part of each weight, of its gradient and of its moments."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from asr.core.training.lightning_internals import start_process_group


class Sharded(ModelParallelStrategy):
    """Lightning's strategy for `fully_shard`, with the checkpoints of DDP: one file of whole tensors.

    Lightning's own checkpoint of whole tensors numbers the optimizer's state in a different order from torch, and
    loads the weights before `on_load_checkpoint`, which adds the frozen weights.
    """

    def __init__(self, backend: str) -> None:
        super().__init__(save_distributed_checkpoint=False, process_group_backend=backend)

    @property
    def lightning_restore_optimizer(self) -> bool:
        """Return whether Lightning calls `load_optimizer_state_dict`."""
        return True

    def setup_environment(self) -> None:
        """Join the process group without a module; `first_then_all` calls this method before a module exists."""
        start_process_group(self)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the whole weights on the first process; on other processes, None replaces each sharded weight."""
        assert self.lightning_module is not None
        return whole(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the whole state on the first process; on other processes, None replaces each sharded tensor."""
        return whole(optimizer.state_dict())

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Read the whole checkpoint on each process, which later uses only its part of each tensor."""
        return ParallelStrategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load this process's part of whole weights."""
        assert self.lightning_module is not None
        load_weights(self.lightning_module, checkpoint["state_dict"], strict)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load this process's part of the whole state of the optimizers."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(_divided(optimizer, state))


def is_sharded(trainer: pl.Trainer) -> bool:
    """Return whether all processes must take part in reading a weight."""
    return isinstance(trainer.strategy, Sharded)


def shard_in_fit(trainer: pl.Trainer, task: Any, blocks: Iterable[nn.Module], methods: Sequence[str]) -> None:
    """Make `fit` shard the weights of a task, if the trainer's strategy is `fsdp`.

    The weights of a block are gathered while the block computes, forward and backward. The weights outside of the
    blocks are gathered together while one of `methods` runs.

    Args:
        trainer: trainer of the run.
        task: the Lightning module.
        blocks: blocks of the task's network.
        methods: names of the task's methods that use weights; none of these methods calls another.
    """
    if isinstance(trainer.strategy, Sharded):
        # A copy of the task, such as a moving average, shards itself, because a partial's arguments are copied with it.
        task.configure_model = partial(_shard, task, blocks, methods, trainer.strategy.root_device)


def _shard(task: nn.Module, blocks: Iterable[nn.Module], methods: Sequence[str], device: torch.device) -> None:
    shard(task, blocks, device)
    for method in methods:
        register_fsdp_forward_method(task, method)


def shard(module: nn.Module, blocks: Iterable[nn.Module], device: torch.device) -> None:
    """Shard the weights of blocks and of the module that contains them; scalars stay whole on every process."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    scalars = {weight for weight in module.parameters() if weight.ndim == 0}  # scalars cannot be sharded
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh, reshard_after_forward=True, ignored_params=scalars)


def gather_weights(module: nn.Module) -> None:
    """Gather the weights of a module on every process, until `divide_weights` is called; all must call both functions.

    In a validation, processes have different numbers of batches, so they cannot gather weights for each batch.
    """
    for part in _parts(module):
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()


def divide_weights(module: nn.Module) -> None:
    """Free the parts of the weights that belong to other processes; from now on, gather weights while they are used.

    The backward pass gathers weights ahead, in the reverse order of the forward passes since the last backward pass.
    torch 2.11 would count the forward passes of the validation, whose number differs between processes, so processes
    would gather weights in different orders and wait for each other forever.
    """
    for part in _parts(module):
        part.reshard()
        part.set_reshard_after_forward(True, recurse=False)
        state = part._get_fsdp_state()
        state._comm_ctx.post_forward_order.clear()
        if state._fsdp_param_group is not None:
            state._fsdp_param_group._post_forward_indices.clear()


def _parts(module: nn.Module) -> list[FSDPModule]:
    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def whole(state: Any) -> Any:
    """Gather each sharded tensor of a state dict on the first process's CPU; all processes must call this function."""
    is_first = dist.get_rank() == 0

    def gathered(tensor: DTensor) -> Tensor | None:
        full = tensor.full_tensor()
        return full.cpu() if is_first else None

    return apply_to_collection(state, DTensor, gathered, include_none=True)


def load_weights(module: nn.Module, state: Mapping[str, Tensor], strict: bool = True) -> None:
    """Load whole weights into a module, sharded or not."""
    own = module.state_dict()
    module.load_state_dict({name: _part(value, own.get(name)) for name, value in state.items()}, strict=strict)


def _divided(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return this process's part of an optimizer's whole state."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    own = dict(zip(numbers, weights, strict=True))
    parts = {
        number: {name: _part(value, own[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": parts}


def _part(value: Any, like: Tensor | None) -> Any:
    """Return this process's part of a tensor that has the shape of a sharded `like`; otherwise return the value."""
    if isinstance(value, DTensor) or not isinstance(value, Tensor) or not isinstance(like, DTensor):
        return value
    if value.shape != like.shape:  # the optimizer's count of steps
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
