"""The step by which a stream goes on, as a program: features and a state in, log_probs and the state behind out."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from asr.interfaces import NO_TAPS, Encoded, State, StreamingEncoder, Tap
from asr.onnx.agreement import ProgramDifference
from asr.onnx.program import BATCH, LENGTHS, LOG_PROBS, NET_INPUTS, Net, write_down
from asr.onnx.runtime import OnnxEncoder
from asr.onnx.session import check_tokens, run, session
from asr.recognition.cached_stream import CachedStream, advance, with_room
from asr.recognition.model import Model
from asr.recognition.recognizer import Recognizer
from asr.recognition.streaming import why_not

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

NEXT = "next."  # before the name of a state that comes out
EXAMPLE_CHUNK = 6  # encoder frames, of what the step is written down by; it is for any number


class Step(Net):
    """Features (B, T, F), feature_lengths (B,), state to log_probs (B, T', V), log_probs_lengths (B,), state."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.names = list(cast(StreamingEncoder, model.encoder).initial_state(1))

    def forward(  # type: ignore[override]  # a step is given more, and gives more
        self, features: Tensor, feature_lengths: Tensor, state: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """As above; the state's tensors follow one by one."""
        encoder, before = cast(StreamingEncoder, self.model.encoder), dict(zip(self.names, state, strict=True))
        encoded, behind = encoder.step(features, feature_lengths, before, self.model.head.taps)
        return *self.of_encoded(encoded), encoded.lengths, *(behind[name] for name in self.names)


def export_step(model: Model) -> "ModelProto":
    """Write down the step of a model whose encoder hears streams."""
    encoder = cast(StreamingEncoder, model.encoder)
    state = encoder.initial_state(2)
    frames = (EXAMPLE_CHUNK + encoder.right_frames) * encoder.stride
    example = (torch.randn(2, frames, model.features.dim), torch.full((2,), frames), [*state.values()])
    dynamic = (BATCH | {1: "frames"}, BATCH, [BATCH] * len(state))
    program = write_down(Step(model), example, _names(state), dynamic)
    for value in program.graph.output[-len(state) :]:  # as they are known of what goes in
        dimensions = value.type.tensor_type.shape.dim[1:]
        for dimension, size in zip(dimensions, state[value.name.removeprefix(NEXT)].shape[1:], strict=True):
            dimension.dim_value = size
    return program


@torch.inference_mode()
def difference(expected: Recognizer, actual: Recognizer, audio: Mapping[str, Tensor]) -> ProgramDifference:
    """Compare the program of a step with the model: each recording as a stream, and all of them as streams of a batch.

    Args:
        expected: has the model.
        actual: has its programs.
        audio: waveforms (S,) by name.
    """
    worst = ProgramDifference(0.0, "nowhere", 0, len(audio))
    net, encoders = Step(expected.model), [cast(StreamingEncoder, each.model.encoder) for each in (expected, actual)]
    stride, right = encoders[0].stride, encoders[0].right_frames * encoders[0].stride
    for name, waveform in audio.items():
        features = expected.model.features(waveform)[None]
        for chunk in (chunk_frames(encoders[0]), 2 * chunk_frames(encoders[0]) + 1):
            states = [encoder.initial_state(1) for encoder in encoders]
            for number, begin in enumerate(range(0, features.shape[1], chunk * stride)):
                seen = features[:, begin : begin + chunk * stride + right]
                lengths = torch.tensor([seen.shape[1]])
                frames = with_room(seen, chunk * stride, right)
                encoded, states[0] = encoders[0].step(frames, lengths, states[0], expected.model.head.taps)
                given, states[1] = encoders[1].step(frames, lengths, states[1])
                largest = float((net.of_encoded(encoded)[0] - given.out).abs().max())
                if not largest <= worst.largest:
                    where = f"{name}, as a stream, at {number * chunk * expected.model.frame_seconds:.2f} s"
                    worst = worst._replace(largest=largest, where=where)
    texts = [_streamed(recognizer, audio.values()) for recognizer in (expected, actual)]
    return worst._replace(texts=sum(left != right for left, right in zip(*texts, strict=True)))


def chunk_frames(encoder: StreamingEncoder) -> int:
    """Encoder frames of the chunks that a stream is shown by: the encoder's, or some."""
    return encoder.chunk_frames or 4 * EXAMPLE_CHUNK


def _streamed(recognizer: Recognizer, waveforms: Iterable[Tensor]) -> list[str]:
    """Texts of waveforms that are streams of one batch; none where the decoder hears no streams."""
    if why_not(recognizer):
        return []
    encoder = cast(StreamingEncoder, recognizer.model.encoder)
    chunk_seconds = chunk_frames(encoder) * recognizer.model.frame_seconds
    streams = []
    for waveform in waveforms:
        streams.append(CachedStream(recognizer, chunk_seconds))
        streams[-1].hear(waveform, at_end=True)
    return [" ".join(word.text for word in captions.final) for captions in advance(streams)]


class OnnxStreamingEncoder:
    """An encoder whose `step` is a program.

    Args:
        whole: runs the program of whole recordings.
        opened: runs that of a step.
        made_of: the encoder that was exported, which needs no weights.
    """

    num_blocks = 0  # none can be tapped

    def __init__(self, whole: OnnxEncoder, opened: "InferenceSession", made_of: StreamingEncoder) -> None:
        self._whole, self._session = whole, opened
        self.output_dim = whole.output_dim
        self.stride = made_of.stride
        self.output_lengths = made_of.output_lengths
        self.chunk_frames = made_of.chunk_frames
        self.left_frames = made_of.left_frames
        self.right_frames = made_of.right_frames
        meta = made_of.initial_state(1)
        self._state = {name: torch.zeros(rows.shape[1:], dtype=rows.dtype) for name, rows in meta.items()}

    def __call__(self, features: Tensor, feature_lengths: Tensor, taps: Mapping[int, Tap] = NO_TAPS) -> Encoded:
        """As `OnnxEncoder`."""
        return self._whole(features, feature_lengths)

    def initial_state(self, batch: int, left_frames: int | None = None) -> State:
        """Begin so many streams: with zeros. What is seen around a chunk is what the program was made for."""
        return {name: rows.expand(batch, *rows.shape).clone() for name, rows in self._state.items()}

    def step(
        self,
        features: Tensor,
        feature_lengths: Tensor,
        state: State,
        taps: Mapping[int, Tap] = NO_TAPS,
        ahead: int | None = None,
    ) -> tuple[Encoded, State]:
        """Go on with streams by a chunk of each, behind which stand as many frames as the program was made for."""
        out, lengths, *behind = run(
            self._session, features.float(), feature_lengths, *(state[name] for name in self._state)
        )
        return Encoded(out, lengths, {}), dict(zip(self._state, behind, strict=True))


def open_step(program: Path | bytes, made_of: StreamingEncoder, vocab_size: int) -> "InferenceSession":
    """Open the program of a step.

    Args:
        program: an ONNX file, or what one holds.
        made_of: the encoder that was exported, which needs no weights.
        vocab_size: V.

    Raises:
        InputError: it is damaged, or not of such a model.
    """
    opened = session(program, *_names(made_of.initial_state(1)))
    check_tokens(program, opened, vocab_size)
    return opened


def _names(state: State) -> tuple[list[str], list[str]]:
    """Names of what goes into a step and of what comes out."""
    return [*NET_INPUTS, *state], [LOG_PROBS, LENGTHS, *(f"{NEXT}{name}" for name in state)]
