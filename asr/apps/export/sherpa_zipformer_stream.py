"""Steps of streaming encoders in sherpa-onnx's layout for icefall's streaming Zipformers.

*Source*: online-zipformer2-transducer-model.cc and online-recognizer-transducer-impl.h in sherpa-onnx 2.0. Its windows
are those of `sherpa_stream`, of T frames each, decode_chunk_len apart. Each layer of a Zipformer has six tensors as its
state, whose sizes sherpa-onnx computes from the metadata. *Differs from icefall's export*: the metadata describe one
layer, and the first of its tensors has the state of any encoder, with the last frames of the window before.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from asr.apps.export.agreement import EncoderProgram
from asr.apps.export.program import BATCH
from asr.apps.export.sherpa_ctc import ZIPFORMER_INPUTS
from asr.apps.export.sherpa_stream import SherpaStep, Window, export_step, stream_outputs
from asr.base.onnx.names import ENCODER_OUT, NEXT, SHERPA_STREAM
from asr.core.recognition.model import Model
from asr.interfaces import StreamingEncoder

if TYPE_CHECKING:
    from onnx import ModelProto

# In sherpa-onnx's order: the six tensors of a layer, the front-end's state, and the number of frames before.
CACHES = ("key", "nonlin_attn", "val1", "val2", "conv1", "conv2", "embed_states", "processed_lens")
# Sizes of the caches that are not used, for one stream: they follow from the metadata and, in `embed_states`, from
# the number of mel bins.
LAYER = {"value_head_dims": 1, "num_heads": 1, "left_context_len": 1, "num_encoder_layers": 1}
LAYER |= {"encoder_dims": 2, "cnn_module_kernels": 2}
UNUSED = ((1, 1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 2, 1), (1, 2, 1))
EMBEDDED = (128, 3)  # channels and frames of `embed_states`


class ZipformerStep(SherpaStep):
    """A step in the layout of icefall's streaming Zipformers.

    The inputs are log-mel energies (B, T, F) and the caches. The first cache, (1, B, N), has the state; the others are
    not used. The outputs are the joiner's input (B, T', J) and the caches.
    """

    batch_dims = (1, 1, 1, 1, 0, 0, 0, 0)
    names = ((ZIPFORMER_INPUTS[0], *CACHES), (ENCODER_OUT, *(f"{NEXT}{name}" for name in CACHES)))

    def inputs(self, energies: Tensor) -> tuple[Tensor, ...]:
        """Return the energies."""
        return (energies,)

    def caches(self, state: Tensor) -> tuple[Tensor, ...]:
        """Return the eight caches."""
        embedded = (1, *EMBEDDED, ((self.model.features.dim - 1) // 2 - 1) // 2)
        unused = [
            torch.zeros(shape).repeat_interleave(len(state), dim)
            for shape, dim in zip((*UNUSED, embedded), self.batch_dims[1:-1], strict=True)
        ]
        return state[None], *unused, torch.zeros(len(state), dtype=torch.int64)

    def arranged(self, out: Tensor) -> Tensor:
        """Return (B, T', J)."""
        return out

    def forward(self, energies: Tensor, key: Tensor, *unused: Tensor) -> tuple[Tensor, ...]:
        """Return the joiner's input and the caches."""
        lengths = torch.full(energies.shape[:1], energies.shape[1])
        out, _, state = self.advanced(energies, lengths, key[0])
        return out, state[None], *(cache.clone() for cache in unused)


def export_stream(model: Model, data: Path) -> "ModelProto":
    """Export the step of a model's encoder; its weights are written to the file `data`."""
    key, *unused = ({dim: BATCH[0]} for dim in ZipformerStep.batch_dims)
    return export_step(ZipformerStep(model), (BATCH, key, (*unused,)), data)


def stream_encoder(step: "ModelProto", model: Model) -> "ModelProto":
    """Return a copy of the program of `export_stream` with the metadata that sherpa-onnx requires."""
    from onnx import ModelProto, helper

    program = ModelProto()
    program.CopyFrom(step)
    window = Window.of(cast(StreamingEncoder, model.encoder))
    [key] = [value for value in program.graph.input if value.name == CACHES[0]]
    metadata = {"model_type": "zipformer2", "T": window.size, "decode_chunk_len": window.chunk}
    metadata |= {"query_head_dims": key.type.tensor_type.shape.dim[2].dim_value} | LAYER
    helper.set_model_props(program, {name: str(value) for name, value in metadata.items()})
    return program


STREAMED = EncoderProgram(SHERPA_STREAM, ZipformerStep.names, partial(stream_outputs, ZipformerStep))
