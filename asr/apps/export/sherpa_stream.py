"""The encoder of a streaming transducer for sherpa-onnx's OnlineRecognizer, in the layout of NeMo's streaming models.

*Source*: online-transducer-nemo-model.cc and online-recognizer-transducer-nemo-impl.h in sherpa-onnx 1.13.4. Its window
k has the feature frames from k * chunk_shift to k * chunk_shift + window_size. No frames come before the first window,
and an incomplete last window is dropped. *Differs from NeMo's export*, whose windows begin with the last frames before
a chunk, so that the first frames of a stream are taken for these: here they are in the cache, with the state of the
encoder, and nothing is lost.
"""

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.apps.export.program import BATCH, SHERPA_INPUTS, write_down
from asr.apps.export.sherpa_ctc import Normalized
from asr.apps.export.sherpa_transducer import EncoderProgram, set_metadata
from asr.apps.export.stream_step import chunk_frames
from asr.apps.export.transducer_programs import head_of
from asr.base.onnx.names import SHERPA_STREAM
from asr.base.onnx.session import run
from asr.core.recognition.model import Model
from asr.interfaces import State, StreamingEncoder

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
    """A step of a streaming encoder.

    The inputs are log-mel energies without normalisation, (B, F, T), their lengths (B,), and three caches. The first,
    (B, 1, 1, N), has the encoder's state and the last frames of the window before, one tensor after another. The other
    two, (B, 1, 1, 1) and (B,), are not used. The outputs are the joiner's input (B, J, T'), lengths, and the caches.
    """

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

    def forward(
        self, audio_signal: Tensor, length: Tensor, channel: Tensor, time: Tensor, channel_len: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the joiner's input, the lengths and the caches."""
        (chunk, right, before), state = self.window, self.unpacked(channel)
        frames, lengths = self.normalized(audio_signal.transpose(1, 2), length)
        if before:
            frames = torch.cat([state.pop(BEFORE), frames], dim=1)
        seen = frames[:, : chunk + right]
        encoded, state = self.encoder.step(
            seen, lengths + (chunk + right - self.window.size), state, self.model.head.taps
        )
        if before:
            state[BEFORE] = frames[:, chunk : chunk + before]
        encoded = self.model.prompted(encoded)
        out = head_of(self.model).joiner.of_frames(encoded.out).transpose(1, 2)
        return out, encoded.lengths, self.packed(state), time.clone(), channel_len.clone()

    def packed(self, state: State) -> Tensor:
        """Join the tensors of a state to (B, 1, 1, N)."""
        return torch.cat([state[name].float()[:, None].flatten(1) for name in self.example], dim=1)[:, None, None]

    def unpacked(self, cache: Tensor) -> State:
        """Split (B, 1, 1, N) into the tensors of a state."""
        ends = torch.tensor([0, *(tensor.numel() for tensor in self.example.values())]).cumsum(0).tolist()
        rows = zip(self.example.items(), pairwise(ends), strict=True)
        return {
            name: cache[:, 0, 0, begin:end].reshape(-1, *tensor.shape[1:]).to(tensor.dtype)
            for (name, tensor), (begin, end) in rows
        }

    def initial_caches(self, batch: int) -> tuple[Tensor, ...]:
        """Return the caches of new streams, all zeros."""
        channel = self.packed(self.example).expand(batch, -1, -1, -1)
        return torch.zeros_like(channel), channel.new_zeros(batch, 1, 1, 1), torch.zeros(batch, dtype=torch.int64)


def export_stream(model: Model, data: Path) -> "ModelProto":
    """Export the step of a model's encoder; its weights are written to the file `data`."""
    step = SherpaStep(model)
    size = step.window.size
    example = (torch.randn(2, model.features.dim, size), torch.full((2,), size), *step.initial_caches(2))
    program = write_down(step, example, NAMES, (BATCH,) * len(NAMES[0]), data)
    program.graph.output[0].type.tensor_type.shape.dim[0].dim_param = BATCH[0]  # torch writes a formula
    return program


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


def stream_outputs(model: Model, opened: "InferenceSession", waveform: Tensor) -> tuple[Tensor, Tensor]:
    """Encode a recording and a window of silence as a stream."""
    step, encoder = SherpaStep(model), cast(StreamingEncoder, model.encoder)
    window, caches = step.window, [*step.initial_caches(1)]
    energies = F.pad(model.features.energies(waveform), (0, 0, 0, window.size))[None]
    features, _ = step.normalized(energies, torch.tensor([energies.shape[1]]))
    features = F.pad(features, (0, 0, window.before, 0))
    state, outs, expected = encoder.initial_state(1), [], []
    for begin in range(0, energies.shape[1] - window.size + 1, window.chunk):
        given = energies[:, begin : begin + window.size].transpose(1, 2)
        out, _, *caches = run(opened, given, torch.tensor([window.size]), *caches)
        seen = features[:, begin : begin + window.chunk + window.right]
        encoded, state = encoder.step(seen, torch.tensor([seen.shape[1]]), state, model.head.taps)
        outs.append(out)
        expected.append(head_of(model).joiner.of_frames(model.prompted(encoded).out).transpose(1, 2))
    return torch.cat(outs, dim=2), torch.cat(expected, dim=2)


STREAMED = EncoderProgram(SHERPA_STREAM, NAMES, stream_outputs)
