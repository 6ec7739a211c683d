"""Export of the step of a stream; a step maps features and a state to log_probs and the next state."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.apps.export.agreement import ProgramDifference
from asr.apps.export.program import BATCH, ctc_net, write_down
from asr.base.onnx.names import NEXT, step_names
from asr.core.recognition.cached_stream import CachedStream, advance, with_room
from asr.core.recognition.captions import StreamSettings
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.streaming import why_not
from asr.interfaces import Encoder, StreamingEncoder

if TYPE_CHECKING:
    from onnx import ModelProto

EXAMPLE_CHUNK = 6  # encoder frames of the example input; a step accepts any number


class Step(nn.Module):
    """Maps features and a state to log_probs and the next state.

    Shapes:
        features: (B, T, F), feature_lengths (B,).
        log_probs: (B, T', V), log_probs_lengths (B,).
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.net = ctc_net(model)
        self.names = list(cast(StreamingEncoder, model.encoder).initial_state(1))

    def forward(self, features: Tensor, feature_lengths: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return log_probs, their lengths, and the tensors of the next state."""
        model, before = self.net.model, dict(zip(self.names, state, strict=True))
        encoder = cast(StreamingEncoder, model.encoder)
        encoded, after = encoder.step(features, feature_lengths, before, model.head.taps)
        encoded = model.prompted(encoded)
        return *self.net.of_encoded(encoded), encoded.lengths, *(after[name] for name in self.names)


def has_step(encoder: Encoder) -> bool:
    """Whether asr writes the step of an encoder; not yet if its chunks are multiples of several frames."""
    return encoder.streaming is not None and encoder.streaming.chunk_multiple == 1


def export_step(model: Model, data: Path) -> "ModelProto":
    """Export the step of a streaming model; its weights are written to the file `data`."""
    encoder = cast(StreamingEncoder, model.encoder)
    state = encoder.initial_state(2)
    frames = (EXAMPLE_CHUNK + encoder.right_frames) * encoder.stride
    example = (torch.randn(2, frames, model.features.dim), torch.full((2,), frames), [*state.values()])
    dynamic = (BATCH | {1: "frames"}, BATCH, [BATCH] * len(state))
    program = write_down(Step(model), example, step_names(state), dynamic, data)
    for value in program.graph.output[-len(state) :]:  # the next state has the sizes of the previous state
        dimensions = value.type.tensor_type.shape.dim[1:]
        for dimension, size in zip(dimensions, state[value.name.removeprefix(NEXT)].shape[1:], strict=True):
            dimension.dim_value = size
    return program


@torch.inference_mode()
def difference(expected: Recognizer, actual: Recognizer, audio: Mapping[str, Tensor]) -> ProgramDifference:
    """Compare log_probs of each recording as a stream, and texts of all recordings as a batch of streams.

    Args:
        expected: the model's recogniser.
        actual: a recogniser that runs the programs.
        audio: waveforms (S,) by name.
    """
    worst = ProgramDifference(0.0, "nowhere", 0, len(audio))
    net, encoders = (
        ctc_net(expected.model),
        [cast(StreamingEncoder, recognizer.model.encoder) for recognizer in (expected, actual)],
    )
    stride, right = encoders[0].stride, encoders[0].right_frames * encoders[0].stride
    for name, waveform in audio.items():
        features = F.pad(expected.model.features(waveform), (0, 0, encoders[0].stride - encoders[0].first_frames, 0))[
            None
        ]
        for chunk in (chunk_frames(encoders[0]), 2 * chunk_frames(encoders[0]) + 1):
            states = [encoder.initial_state(1) for encoder in encoders]
            for number, begin in enumerate(range(0, features.shape[1], chunk * stride)):
                seen = features[:, begin : begin + chunk * stride + right]
                lengths = torch.tensor([seen.shape[1]])
                frames = with_room(seen, chunk * stride, right)
                encoded, states[0] = encoders[0].step(frames, lengths, states[0], expected.model.head.taps)
                given, states[1] = encoders[1].step(frames, lengths, states[1])
                log_probs, *_ = net.of_encoded(expected.model.prompted(encoded))
                largest = float((log_probs - given.out).abs().max())
                if not largest <= worst.largest:
                    where = f"{name}, as a stream, at {number * chunk * expected.model.frame_seconds:.2f} s"
                    worst = worst._replace(largest=largest, where=where)
    texts = [_streamed(recognizer, audio.values()) for recognizer in (expected, actual)]
    return worst._replace(texts=sum(left != right for left, right in zip(*texts, strict=True)))


def chunk_frames(encoder: StreamingEncoder) -> int:
    """Return the number of encoder frames in a chunk: the encoder's recommendation, or about 24 if there is none."""
    return encoder.chunk_frames or math.ceil(4 * EXAMPLE_CHUNK / encoder.chunk_multiple) * encoder.chunk_multiple


def _streamed(recognizer: Recognizer, waveforms: Iterable[Tensor]) -> list[str]:
    """Return the texts of waveforms recognised as a batch of streams; [] if the decoder does not support streams."""
    if why_not(recognizer):
        return []
    encoder = cast(StreamingEncoder, recognizer.model.encoder)
    seconds = chunk_frames(encoder) * recognizer.model.frame_seconds
    settings = StreamSettings(seconds, endpoint_seconds=None, settled_seconds=None)
    streams = []
    for waveform in waveforms:
        streams.append(CachedStream(recognizer, settings))
        streams[-1].hear(waveform, at_end=True)
    return [" ".join(word.text for word in captions.final) for captions in advance(streams)]
