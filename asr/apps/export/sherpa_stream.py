"""Steps of streaming encoders for sherpa-onnx's OnlineRecognizer, and their layout in NeMo's streaming transducers.

*Source*: online-transducer-nemo-model.cc and online-recognizer-transducer-nemo-impl.h in sherpa-onnx 1.13.4. Its window
k has the feature frames from k * chunk_shift to k * chunk_shift + window_size. No frames come before the first window,
and an incomplete last window is dropped. *Differs from NeMo's export*, whose windows begin with the last frames before
a chunk, so that the first frames of a stream are taken for these: here they are in the cache, with the state of the
encoder, and nothing is lost.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.apps.export.agreement import EncoderProgram
from asr.apps.export.program import BATCH, SHERPA_INPUTS, write_down
from asr.apps.export.sherpa_ctc import Normalized
from asr.apps.export.sherpa_transducer import set_metadata
from asr.apps.export.stream_step import chunk_frames
from asr.apps.export.transducer_programs import head_of
from asr.base.onnx.names import SHERPA_STREAM
from asr.base.onnx.session import run
from asr.core.recognition.model import Model
from asr.interfaces import Encoded, State, StreamingEncoder

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

CACHES = ("cache_last_channel", "cache_last_time", "cache_last_channel_len")
NAMES = ((*SHERPA_INPUTS, *CACHES), ("outputs", "encoded_lengths", *(f"{name}_next" for name in CACHES)))
BEFORE = "features_before"  # key of the last frames of the window before, in the state of a `SherpaStep`


class Window(NamedTuple):
    """Feature frames of a step.

    Args:
        chunk: frames of a chunk, which is also the distance of two windows.
        right: frames of right context.
        before: frames that a chunk takes from the window before; the first chunk does not read them.
    """

    chunk: int
    right: int
    before: int

    @classmethod
    def of(cls, encoder: StreamingEncoder) -> Self:
        """Return the window of an encoder."""
        stride = encoder.stride
        return cls(chunk_frames(encoder) * stride, encoder.right_frames * stride, stride - encoder.first_frames)

    @property
    def size(self) -> int:
        """Number of new frames in a step: the frames before it cover the end of the chunk and of its right context."""
        return self.chunk + max(0, self.right - self.before)


class SherpaStep(nn.Module):
    """A step of a streaming encoder, whose state is one tensor in any layout.

    A layout's class has the `names` of the program's inputs and outputs, and the batch's dimension of each cache
    (`batch_dims`), and says how inputs and outputs are arranged. The state (B, N) has the encoder's state and the last
    frames of the window before, one tensor after another; it begins with zeros.
    """

    names: tuple[Sequence[str], Sequence[str]]
    batch_dims: tuple[int, ...]

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.normalized = model, Normalized(model.features)
        self.window = Window.of(self.encoder)
        self.example = self.encoder.initial_state(1)
        if self.window.before:
            self.example[BEFORE] = torch.zeros(1, self.window.before, model.features.dim)

    @property
    def encoder(self) -> StreamingEncoder:
        """The encoder of the model."""
        return cast(StreamingEncoder, self.model.encoder)

    def inputs(self, energies: Tensor) -> tuple[Tensor, ...]:
        """Arrange the log-mel energies of windows, (B, T, F), as the program's first inputs."""
        raise NotImplementedError

    def caches(self, state: Tensor) -> tuple[Tensor, ...]:
        """Arrange states (B, N) as the program's other inputs."""
        raise NotImplementedError

    def arranged(self, out: Tensor) -> Tensor:
        """Arrange the joiner's input (B, T', J) as the program's first output, and the other way round."""
        raise NotImplementedError

    def advanced(self, energies: Tensor, lengths: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map energies (B, T, F) without normalisation, their lengths (B,), and the states, (B, N).

        Returns:
            The joiner's input (B, T', J), its lengths (B,), and the next states.
        """
        (chunk, right, before), state = self.window, self.unpacked(states)
        frames, lengths = self.normalized(energies, lengths)
        if before:
            frames = torch.cat([state.pop(BEFORE), frames], dim=1)
        seen = frames[:, : chunk + right]
        encoded, state = self.encoder.step(
            seen, lengths + (chunk + right - self.window.size), state, self.model.head.taps
        )
        if before:
            state[BEFORE] = frames[:, chunk : chunk + before]
        return self.joiner_input(encoded), encoded.lengths, self.packed(state)

    def joiner_input(self, encoded: Encoded) -> Tensor:
        """Return the joiner's input for the encoder's output, (B, T', J)."""
        return head_of(self.model).joiner.of_frames(self.model.prompted(encoded).out)

    def packed(self, state: State) -> Tensor:
        """Join the tensors of a state to (B, N)."""
        return torch.cat([state[name].float()[:, None].flatten(1) for name in self.example], dim=1)

    def unpacked(self, states: Tensor) -> State:
        """Split (B, N) into the tensors of a state."""
        ends = torch.tensor([0, *(tensor.numel() for tensor in self.example.values())]).cumsum(0).tolist()
        rows = zip(self.example.items(), pairwise(ends), strict=True)
        return {
            name: states[:, begin:end].reshape(states.shape[0], *tensor.shape[1:]).to(tensor.dtype)
            for (name, tensor), (begin, end) in rows
        }

    def initial_caches(self, batch: int) -> tuple[Tensor, ...]:
        """Return the caches of new streams, all zeros."""
        return self.caches(torch.zeros_like(self.packed(self.example)).expand(batch, -1))


class NemoStep(SherpaStep):
    """A step in the layout of NeMo's streaming models.

    The inputs are log-mel energies (B, F, T), their lengths (B,), and three caches. The first, (B, 1, 1, N), has the
    state. The other two, (B, 1, 1, 1) and (B,), are not used. The outputs are the joiner's input (B, J, T'), lengths,
    and the caches.
    """

    names = NAMES
    batch_dims = (0, 0, 0)

    def inputs(self, energies: Tensor) -> tuple[Tensor, ...]:
        """Return (B, F, T) and the lengths (B,)."""
        return energies.transpose(1, 2), torch.full(energies.shape[:1], energies.shape[1])

    def caches(self, state: Tensor) -> tuple[Tensor, ...]:
        """Return the three caches."""
        return state[:, None, None], state.new_zeros(len(state), 1, 1, 1), torch.zeros(len(state), dtype=torch.int64)

    def arranged(self, out: Tensor) -> Tensor:
        """Exchange T' and J."""
        return out.transpose(1, 2)

    def forward(
        self, audio_signal: Tensor, length: Tensor, channel: Tensor, time: Tensor, channel_len: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the joiner's input, the lengths and the caches."""
        out, lengths, state = self.advanced(audio_signal.transpose(1, 2), length, channel[:, 0, 0])
        return self.arranged(out), lengths, state[:, None, None], time.clone(), channel_len.clone()


def export_step(step: SherpaStep, dynamic: tuple[Any, ...], data: Path) -> "ModelProto":
    """Export a step; its weights are written to the file `data`.

    Args:
        step: the step.
        dynamic: the batch's dimension of each input, as `write_down` takes it.
        data: path of the weights.
    """
    energies = torch.randn(2, step.window.size, step.model.features.dim)
    example = (*step.inputs(energies), *step.initial_caches(2))
    program = write_down(step, example, step.names, dynamic, data)
    program.graph.output[0].type.tensor_type.shape.dim[0].dim_param = BATCH[0]  # torch writes a formula
    return program


def export_stream(model: Model, data: Path) -> "ModelProto":
    """Export the step of a model's encoder in NeMo's layout; its weights are written to the file `data`."""
    return export_step(NemoStep(model), (BATCH,) * len(NAMES[0]), data)


def stream_encoder(step: "ModelProto", model: Model) -> "ModelProto":
    """Return a copy of the program of `export_stream` with the metadata that sherpa-onnx requires."""
    from onnx import ModelProto

    program = ModelProto()
    program.CopyFrom(step)
    window = Window.of(cast(StreamingEncoder, model.encoder))
    metadata: dict[str, object] = {"window_size": window.size, "chunk_shift": window.chunk, "normalize_type": ""}
    for value in program.graph.input:
        if value.name in CACHES:
            sizes = enumerate(value.type.tensor_type.shape.dim)
            metadata |= {f"{value.name}_dim{number}": size.dim_value for number, size in sizes if number}
    set_metadata(program, model, metadata)
    return program


def stream_outputs(
    make_step: Callable[[Model], SherpaStep], model: Model, opened: "InferenceSession", waveform: Tensor
) -> tuple[Tensor, Tensor]:
    """Encode a recording and a window of silence as a stream."""
    step, encoder = make_step(model), cast(StreamingEncoder, model.encoder)
    window, caches = step.window, [*step.initial_caches(1)]
    energies = F.pad(model.features.energies(waveform), (0, 0, 0, window.size))[None]
    features, _ = step.normalized(energies, torch.tensor([energies.shape[1]]))
    features = F.pad(features, (0, 0, window.before, 0))
    state, outs, expected = encoder.initial_state(1), [], []
    for begin in range(0, energies.shape[1] - window.size + 1, window.chunk):
        out, *after = run(opened, *step.inputs(energies[:, begin : begin + window.size]), *caches)
        caches = after[-len(caches) :]
        seen = features[:, begin : begin + window.chunk + window.right]
        encoded, state = encoder.step(seen, torch.tensor([seen.shape[1]]), state, model.head.taps)
        outs.append(step.arranged(out))
        expected.append(step.joiner_input(encoded))
    return torch.cat(outs, dim=1), torch.cat(expected, dim=1)


STREAMED = EncoderProgram(SHERPA_STREAM, NAMES, partial(stream_outputs, NemoStep))
