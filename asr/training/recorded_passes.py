"""CUDA graphs of a model's passes for recurring shapes: one launch instead of thousands.

A graph contains the forward pass up to encoder_out and its backward pass, but not the rest of the step: torch's CTC
loss copies lengths from the device, which a graph cannot contain, and clipping and the optimizer need few launches
anyway. So losses, accumulation, clipping, checks and logging run the same code with and without graphs.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from asr.errors import InputError
from asr.interfaces import Encoded
from asr.text.numbers import percent
from asr.training.compile_ahead import first_line

SEEN_BEFORE = 1  # a shape is recorded after this number of earlier occurrences
WARM_UP = 3  # number of passes before a recording, in which libraries choose their algorithms

logger = logging.getLogger(__name__)

Forward = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class RecordedPass(Protocol):
    """Recorded passes for one shape. They read and write tensors at fixed addresses.

    Args:
        inputs: inputs of the forward pass.
        outputs: outputs of the forward pass.
        output_gradients: gradients of the outputs that require gradients.
        used: for each parameter, whether it has a gradient.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    output_gradients: tuple[Tensor, ...]
    used: tuple[bool, ...]

    def forward(self) -> None:
        """Compute `outputs` from `inputs`."""

    def backward(self) -> None:
        """Compute the parameters' gradients from `output_gradients`, into the tensors given at recording."""


# Arguments: a forward pass, its inputs, and each parameter with the tensor that receives its gradient
Record = Callable[[Forward, Sequence[Tensor], Sequence[tuple[nn.Parameter, Tensor]]], RecordedPass]


class RecordedPasses:
    """The forward pass of a model: replayed for recorded shapes, run directly for other shapes.

    Recordings are made up to the memory limit, and are never replaced.

    Args:
        model: features (B, T, F), feature_lengths (B,) to Encoded.
        record: makes a recording.
        most_bytes: memory limit of all recordings; the last recording may exceed it.
        memory: returns the bytes of device memory in use.
        ready: returns whether the model's code no longer changes; before that, nothing is recorded.
    """

    def __init__(
        self,
        model: nn.Module,
        record: Record,
        most_bytes: float,
        memory: Callable[[], int],
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._model, self._record, self._memory, self._ready = model, record, memory, ready
        self.most_bytes = most_bytes
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._gradients: list[Tensor] = []  # one tensor per parameter, shared by all recordings
        self._tapped: tuple[int, ...] = ()
        self._seen: Counter[Any] = Counter()
        self._recordings: dict[Any, RecordedPass] = {}
        self._open: RecordedPass | None = None  # recording whose backward pass has not run yet
        self._problem = ""
        self.used_bytes = 0
        self.counts: Counter[bool] = Counter()  # number of passes, by whether they were replayed

    def __len__(self) -> int:
        return len(self._recordings)

    def __call__(self, features: Tensor, feature_lengths: Tensor) -> Encoded:
        """Compute the model's output from features (B, T, F) and their lengths (B,)."""
        recording = self._recording(features, feature_lengths)
        self.counts[recording is not None] += 1
        if recording is None:
            encoded: Encoded = self._model(features, feature_lengths)
            return encoded
        out, lengths, *blocks = _Replay.apply(self, recording, features, feature_lengths, *self._parameters)
        return Encoded(out, lengths, dict(zip(self._tapped, blocks, strict=True)))

    def begin_batch(self) -> None:
        """Forget a forward pass whose backward pass never ran."""
        self._open = None

    def _recording(self, features: Tensor, feature_lengths: Tensor) -> RecordedPass | None:
        """Return the recording of a shape, and make it if necessary; None: the model must run directly."""
        if self._open is not None or not self._ready() or not torch.is_grad_enabled():
            return None  # recordings share memory, so only one may be between forward and backward pass
        # A module that is frozen for some steps is in eval mode, in which it runs other operations.
        key = features.shape, features.dtype, tuple(module.training for module in self._model.modules())
        self._seen[key] += 1
        can = self._seen[key] > SEEN_BEFORE and not self._problem and self.used_bytes < self.most_bytes
        if key not in self._recordings and can:
            self._make(key, features, feature_lengths)
        return self._recordings.get(key)

    def _make(self, key: Any, features: Tensor, feature_lengths: Tensor) -> None:
        """Make a recording; buffers and random state do not change."""
        before = self._memory()
        self._gradients = self._gradients or [torch.zeros_like(parameter) for parameter in self._parameters]
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        places = list(zip(self._parameters, self._gradients, strict=True))
        try:
            with torch.random.fork_rng([features.device] if features.is_cuda else []):
                self._recordings[key] = self._record(self._flat, (features, feature_lengths), places)
        except RuntimeError as error:  # includes errors for lack of memory
            self._problem = first_line(error)
            logger.warning("CUDA graphs: recording stopped after %d shapes: %s", len(self), self._problem)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        self.used_bytes += max(0, self._memory() - before)

    def _flat(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, ...]:
        # Without cache_enabled=False, a replay would use the weights that autocast converted in an earlier pass.
        kind = features.device.type
        dtype, on = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        with torch.autocast(kind, dtype, enabled=on, cache_enabled=False):
            encoded: Encoded = self._model(features, feature_lengths)
        self._tapped = tuple(encoded.blocks)
        return (encoded.out, encoded.lengths, *encoded.blocks.values())

    def summary(self) -> str:
        """Return the number of recordings, their memory, and the share of batches replayed since the last call."""
        counts, self.counts = self.counts, Counter()
        share = percent(counts[True] / max(1, counts.total()))
        return f"CUDA graphs of {len(self)} shapes, {self.used_bytes / 2**30:.1f} GiB; {share} of the batches replayed"

    def replay(self, recording: RecordedPass, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run a recorded forward pass on inputs; its outputs are valid until the next forward pass."""
        for tensor, value in zip(recording.inputs, inputs, strict=True):
            tensor.copy_(value)
        recording.forward()
        self._open = recording
        return tuple(output.detach() for output in recording.outputs)

    def replay_backward(self, recording: RecordedPass, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run a recorded backward pass; return copies of the parameters' gradients."""
        for tensor, value in zip(recording.output_gradients, gradients, strict=True):
            tensor.zero_() if value is None else tensor.copy_(value)
        recording.backward()
        self._open = None
        # Copies, because torch stores the returned tensors as gradients, and the next replay would overwrite them.
        used_gradients = [gradient for gradient, used in zip(self._gradients, recording.used, strict=True) if used]
        copies = [torch.empty_like(gradient) for gradient in used_gradients]
        torch._foreach_copy_(copies, used_gradients)
        left = iter(copies)
        return [next(left) if used else None for used in recording.used]


class _Replay(torch.autograd.Function):
    """A recorded pass as one operation."""

    @staticmethod
    def forward(ctx: Any, passes: RecordedPasses, recording: RecordedPass, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the forward pass on features, lengths and parameters; the graph reads parameters at their addresses."""
        ctx.passes, ctx.recording = passes, recording
        outputs = passes.replay(recording, inputs[: len(recording.inputs)])
        ctx.differentiable = [output.is_floating_point() for output in outputs]
        ctx.mark_non_differentiable(*(output for output in outputs if not output.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the parameters."""
        given = [gradient for gradient, is_one in zip(gradients, ctx.differentiable, strict=True) if is_one]
        none = (None, None, *(None for _ in ctx.recording.inputs))
        return (*none, *ctx.passes.replay_backward(ctx.recording, given))


class CudaRecording:
    """Two CUDA graphs, of the forward and of the backward pass; all recordings share one memory pool.

    Args:
        run: the forward pass.
        inputs: inputs of a batch; only their shapes and types matter.
        places: each parameter with the tensor that receives its gradient.
        pool: memory pool from `torch.cuda.graph_pool_handle`.
    """

    def __init__(
        self, run: Forward, inputs: Sequence[Tensor], places: Sequence[tuple[nn.Parameter, Tensor]], pool: Any
    ) -> None:
        self.inputs = tuple(value.clone() for value in inputs)
        parameters = [parameter for parameter, _ in places]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                outputs = [output for output in run(*self.inputs) if output.requires_grad]
                zeros = [torch.zeros_like(output) for output in outputs]
                torch.autograd.grad(outputs, parameters, zeros, allow_unused=True)
            del outputs, zeros
        torch.cuda.current_stream().wait_stream(stream)
        # thread_local: other threads may page-lock memory during the recording; only this thread's calls are checked.
        options: Any = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, **options):
            recorded = run(*self.inputs)
        outputs = [output for output in recorded if output.requires_grad]
        self.output_gradients = tuple(torch.zeros_like(output) for output in outputs)
        with torch.cuda.graph(self._backward, **options):
            gradients = torch.autograd.grad(outputs, parameters, self.output_gradients, allow_unused=True)
            self.used = tuple(gradient is not None for gradient in gradients)
            there = [(place, value) for (_, place), value in zip(places, gradients, strict=True) if value is not None]
            torch._foreach_copy_([place for place, _ in there], [value for _, value in there])
        self.outputs = tuple(output.detach() for output in recorded)

    def forward(self) -> None:
        """Replay the forward graph."""
        self._forward.replay()

    def backward(self) -> None:
        """Replay the backward graph."""
        self._backward.replay()


def cuda_passes(model: nn.Module, device: torch.device, *, share: float, ready: Callable[[], bool]) -> RecordedPasses:
    """Return a model's passes as CUDA graphs that use up to a share of the device's memory.

    Raises:
        InputError: the device is not a GPU.
    """
    if device.type != "cuda":
        raise InputError(f"graph_memory must be 0 except on a CUDA device; got {share:g} on device {device.type}.")
    most_bytes = share * torch.cuda.get_device_properties(device).total_memory
    record = partial(CudaRecording, pool=torch.cuda.graph_pool_handle())
    return RecordedPasses(model, record, most_bytes, partial(torch.cuda.memory_reserved, device), ready)


class PassRecording(pl.Callback):
    """Record the passes of a task as CUDA graphs, and log their use at the end of each epoch.

    Args:
        make: makes the recorded passes of a model on its device.
    """

    def __init__(self, make: Callable[[nn.Module, torch.device], RecordedPasses]) -> None:
        self._make = make
        self._passes: RecordedPasses | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Install the recorded passes, after the trial of the largest batches."""
        passes = self._make(pl_module.model, pl_module.device)
        if trainer.world_size > 1:
            logger.warning("graph_memory has no effect: untested with several processes (%d)", trainer.world_size)
            return
        self._passes = pl_module.recorded = passes
        most = passes.most_bytes / 2**30
        logger.info("CUDA graphs are recorded for recurring shapes, in up to %.1f GiB: graph_memory", most)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Forget an unfinished pass of the previous batch."""
        if self._passes is not None:
            self._passes.begin_batch()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the recordings and their use in this epoch."""
        if self._passes is not None:
            logger.info("epoch %d: %s", trainer.current_epoch + 1, self._passes.summary())
