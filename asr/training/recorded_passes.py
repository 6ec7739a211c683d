"""A net's passes recorded for shapes that come again, as CUDA graphs: one launch instead of thousands.

What is recorded is the forward pass to encoder_out and its backward pass. Not the whole step: torch's CTC loss asks the
device for its lengths, which no graph can hold, and clipping and the optimizer are few launches as they are. So losses,
accumulation, clipping, checks and logging are the same code whether a pass is replayed or not.
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

SEEN_BEFORE = 1  # times that a shape must have come before it is recorded
WARM_UP = 3  # passes before a recording, in which libraries choose their algorithms

logger = logging.getLogger(__name__)

Forward = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class RecordedPass(Protocol):
    """Passes of one shape, between tensors that stay where they are.

    Args:
        inputs: of the forward pass.
        outputs: of it.
        output_gradients: of those of them that take gradients.
        used: of each parameter, whether it has a gradient.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    output_gradients: tuple[Tensor, ...]
    used: tuple[bool, ...]

    def forward(self) -> None:
        """Compute `outputs` of `inputs`."""

    def backward(self) -> None:
        """Compute the parameters' gradients of `output_gradients`, into the tensors that were given for them."""


# A forward pass, its inputs, and each parameter with the tensor that its gradient comes into
Record = Callable[[Forward, Sequence[Tensor], Sequence[tuple[nn.Parameter, Tensor]]], RecordedPass]


class RecordedPasses:
    """The forward pass of a model: replayed for shapes that were seen before, as it is for all others.

    Recordings stay to the end: none gives way to another. They are made while there is memory for them.

    Args:
        model: features (B, T, F), feature_lengths (B,) to Encoded.
        record: makes a recording.
        most_bytes: that recordings may take; the last one may take more.
        memory: bytes that are taken now, of anything.
        ready: whether the model is what it will be; nothing is recorded before.
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
        self._gradients: list[Tensor] = []  # one tensor of each parameter, for all recordings
        self._tapped: tuple[int, ...] = ()
        self._seen: Counter[Any] = Counter()
        self._recordings: dict[Any, RecordedPass] = {}
        self._open: RecordedPass | None = None  # whose backward pass is still to come
        self._problem = ""
        self.used_bytes = 0
        self.counts: Counter[bool] = Counter()  # passes: replayed or not

    def __len__(self) -> int:
        return len(self._recordings)

    def __call__(self, features: Tensor, feature_lengths: Tensor) -> Encoded:
        """(B, T, F), (B,) to what the model gives of them."""
        recording = self._recording(features, feature_lengths)
        self.counts[recording is not None] += 1
        if recording is None:
            encoded: Encoded = self._model(features, feature_lengths)
            return encoded
        out, lengths, *blocks = _Replay.apply(self, recording, features, feature_lengths, *self._parameters)
        return Encoded(out, lengths, dict(zip(self._tapped, blocks, strict=True)))

    def begin_batch(self) -> None:
        """Let go of a pass whose backward pass never came."""
        self._open = None

    def _recording(self, features: Tensor, feature_lengths: Tensor) -> RecordedPass | None:
        """Find the recording of a shape, or make it; None where the model itself is to run."""
        if self._open is not None or not self._ready() or not torch.is_grad_enabled():
            return None  # recordings share their memory: two cannot be open
        # A module that is frozen for some steps is in evaluation, and runs another program.
        key = features.shape, features.dtype, tuple(module.training for module in self._model.modules())
        self._seen[key] += 1
        can = self._seen[key] > SEEN_BEFORE and not self._problem and self.used_bytes < self.most_bytes
        if key not in self._recordings and can:
            self._make(key, features, feature_lengths)
        return self._recordings.get(key)

    def _make(self, key: Any, features: Tensor, feature_lengths: Tensor) -> None:
        """Record; numbers and random state are as they were."""
        before = self._memory()
        self._gradients = self._gradients or [torch.zeros_like(parameter) for parameter in self._parameters]
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        places = list(zip(self._parameters, self._gradients, strict=True))
        try:
            with torch.random.fork_rng([features.device] if features.is_cuda else []):
                self._recordings[key] = self._record(self._flat, (features, feature_lengths), places)
        except RuntimeError as error:  # of memory, too
            self._problem = first_line(error)
            logger.warning("no more passes are recorded, of %d shapes so far: %s", len(self), self._problem)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        self.used_bytes += max(0, self._memory() - before)

    def _flat(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, ...]:
        # What autocast has once converted it takes again, though in another replay the weight is another.
        kind = features.device.type
        dtype, on = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        with torch.autocast(kind, dtype, enabled=on, cache_enabled=False):
            encoded: Encoded = self._model(features, feature_lengths)
        self._tapped = tuple(encoded.blocks)
        return (encoded.out, encoded.lengths, *encoded.blocks.values())

    def told(self) -> str:
        """Say what was recorded and how much it served since the last call."""
        counts, self.counts = self.counts, Counter()
        share = percent(counts[True] / max(1, counts.total()))
        return f"{len(self)} shapes recorded, {self.used_bytes / 2**30:.1f} GiB; {share} of the batches replayed"

    def replay(self, recording: RecordedPass, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run a recorded forward pass on inputs; what it returns is good until the next one."""
        for place, value in zip(recording.inputs, inputs, strict=True):
            place.copy_(value)
        recording.forward()
        self._open = recording
        return tuple(output.detach() for output in recording.outputs)

    def replay_backward(self, recording: RecordedPass, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Run its backward pass, and return the parameters' gradients in tensors of their own."""
        for place, value in zip(recording.output_gradients, gradients, strict=True):
            place.zero_() if value is None else place.copy_(value)
        recording.backward()
        self._open = None
        # Torch keeps what it is given as the gradient, and the next pass, of an accumulation say, would overwrite it.
        found = [gradient for gradient, used in zip(self._gradients, recording.used, strict=True) if used]
        copies = [torch.empty_like(gradient) for gradient in found]
        torch._foreach_copy_(copies, found)
        left = iter(copies)
        return [next(left) if used else None for used in recording.used]


class _Replay(torch.autograd.Function):
    """A recorded pass as one operation."""

    @staticmethod
    def forward(ctx: Any, passes: RecordedPasses, recording: RecordedPass, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Features, their lengths, and the parameters, which are read where they lie."""
        ctx.passes, ctx.recording = passes, recording
        outputs = passes.replay(recording, inputs[: len(recording.inputs)])
        ctx.differentiable = [output.is_floating_point() for output in outputs]
        ctx.mark_non_differentiable(*(output for output in outputs if not output.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the parameters."""
        given = [gradient for gradient, is_one in zip(gradients, ctx.differentiable, strict=True) if is_one]
        none = (None, None, *(None for _ in ctx.recording.inputs))
        return (*none, *ctx.passes.replay_backward(ctx.recording, given))


class CudaRecording:
    """Two CUDA graphs, of the forward and the backward pass, in memory that all such share.

    Args:
        run: the forward pass.
        inputs: as of one batch.
        places: each parameter with the tensor that its gradient comes into.
        pool: of memory, as `torch.cuda.graph_pool_handle` gives it.
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
        # Other threads page-lock memory meanwhile: an error only if this one does what no graph can hold.
        how: Any = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, **how):
            recorded = run(*self.inputs)
        outputs = [output for output in recorded if output.requires_grad]
        self.output_gradients = tuple(torch.zeros_like(output) for output in outputs)
        with torch.cuda.graph(self._backward, **how):
            gradients = torch.autograd.grad(outputs, parameters, self.output_gradients, allow_unused=True)
            self.used = tuple(gradient is not None for gradient in gradients)
            there = [(place, value) for (_, place), value in zip(places, gradients, strict=True) if value is not None]
            torch._foreach_copy_([place for place, _ in there], [value for _, value in there])
        self.outputs = tuple(output.detach() for output in recorded)

    def forward(self) -> None:
        """Replay."""
        self._forward.replay()

    def backward(self) -> None:
        """Replay."""
        self._backward.replay()


def cuda_passes(model: nn.Module, device: torch.device, *, share: float, ready: Callable[[], bool]) -> RecordedPasses:
    """Record CUDA graphs, in up to a share of the device's memory.

    Raises:
        InputError: the device has none.
    """
    if device.type != "cuda":
        raise InputError(f"graph_memory must be 0 but on a GPU; got {share:g}, and the net is on: {device.type}.")
    most_bytes = share * torch.cuda.get_device_properties(device).total_memory
    record = partial(CudaRecording, pool=torch.cuda.graph_pool_handle())
    return RecordedPasses(model, record, most_bytes, partial(torch.cuda.memory_reserved, device), ready)


class PassRecording(pl.Callback):
    """Have a task's passes recorded, and say at the end of each epoch how much that served.

    Args:
        make: a model and its device to its recorded passes.
    """

    def __init__(self, make: Callable[[nn.Module, torch.device], RecordedPasses]) -> None:
        self._make = make
        self._passes: RecordedPasses | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        """Lightning's hook, when the largest batches have been tried."""
        passes = self._make(pl_module.model, pl_module.device)
        if trainer.world_size > 1:
            what = f"{trainer.world_size} processes train together, for which nobody has tried it"
            logger.warning("no passes are recorded: %s", what)
            return
        self._passes = pl_module.recorded = passes
        most = passes.most_bytes / 2**30
        logger.info("passes of shapes that come again are recorded, in up to %.1f GiB: graph_memory", most)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Lightning's hook."""
        if self._passes is not None:
            self._passes.begin_batch()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        if self._passes is not None:
            logger.info("epoch %d: %s", trainer.current_epoch + 1, self._passes.told())
