"""CTC models in the two layouts that sherpa-onnx reads: that of NeMo, and that of icefall's Zipformer.

*Source*: offline-nemo-enc-dec-ctc-model.cc and offline-zipformer-ctc-model.cc in sherpa-onnx 2.0. The program of a
Zipformer takes features without normalisation; its encoder may be any encoder.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from asr.apps.export.agreement import Form
from asr.apps.export.program import BATCH, EXAMPLE_FRAMES, joined, take_sherpa_inputs, write_down
from asr.base.onnx.names import FEATURE_LENGTHS, NET_INPUTS
from asr.core.recognition.model import Model
from asr.interfaces import Features
from asr.lengths import padding_mask

if TYPE_CHECKING:
    from onnx import ModelProto

ZIPFORMER_INPUTS = ("energies", FEATURE_LENGTHS)


def in_nemos_layout(net: "ModelProto", model: Model) -> "ModelProto":
    """Convert a CTC program to NeMo's layout, with the metadata."""
    from onnx import ModelProto, helper

    program = ModelProto()
    program.CopyFrom(net)
    take_sherpa_inputs(program)
    metadata = {
        "model_type": "EncDecCTCModelBPE",
        "vocab_size": str(model.tokenizer.vocab_size),
        "subsampling_factor": str(model.encoder.stride),
        "normalize_type": "per_feature",
    }
    helper.set_model_props(program, metadata)
    return program


class Normalized(nn.Module):
    """Normalise log-mel energies (B, T, F) with lengths (B,), as the features of a model do."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self.normalize = features.normalize.batched

    def forward(self, energies: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the unchanged lengths."""
        return self.normalize(energies, padding_mask(feature_lengths, energies.shape[1])), feature_lengths.clone()


def with_normalization(net: "ModelProto", model: Model) -> "ModelProto":
    """Return a program that normalises log-mel energies as the model does, and gives them to `net` as its features."""
    lengths = torch.tensor([EXAMPLE_FRAMES, EXAMPLE_FRAMES // 2])
    example = (torch.randn(2, EXAMPLE_FRAMES, model.features.dim), lengths)
    names = (ZIPFORMER_INPUTS, NET_INPUTS)
    normalized = write_down(Normalized(model.features), example, names, (BATCH | {1: "frames"}, BATCH))
    return joined(normalized, net, ZIPFORMER_INPUTS)


def in_zipformers_layout(net: "ModelProto", model: Model) -> "ModelProto":
    """Convert a CTC program to a Zipformer's layout: with the model's normalisation, and the metadata."""
    from onnx import helper

    program = with_normalization(net, model)
    helper.set_model_props(program, {"model_type": "zipformer2_ctc"})
    return program


OF_ENERGIES = Form(ZIPFORMER_INPUTS, lambda features, waveform: features.energies(waveform), lambda batch: batch)
