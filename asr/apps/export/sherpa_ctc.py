"""CTC models in the two layouts that sherpa-onnx reads: that of NeMo, and that of icefall's Zipformer.

*Source*: offline-nemo-enc-dec-ctc-model.cc, offline-zipformer-ctc-model.cc, features.h, offline-recognizer-ctc-impl.h
in sherpa-onnx 2.0. sherpa-onnx computes the features that belong to a layout. The program of a Zipformer takes them
without normalisation; its encoder may be any encoder.
"""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from asr.apps.export.agreement import OF_SHERPA, Form
from asr.apps.export.program import BATCH, EXAMPLE_FRAMES, joined, take_sherpa_inputs, write_down
from asr.base.onnx.names import FEATURE_LENGTHS, NET_INPUTS
from asr.base.settings.conf import default_settings
from asr.components.features.fbank import Fbank
from asr.components.features.slaney_fbank import SlaneyFbank
from asr.core.recognition.model import Model
from asr.interfaces import Features
from asr.lengths import padding_mask

if TYPE_CHECKING:
    from onnx import ModelProto

ZIPFORMER_INPUTS = ("energies", FEATURE_LENGTHS)


class SherpaLayout(NamedTuple):
    """A layout of CTC models that sherpa-onnx reads.

    Args:
        reader: method of sherpa_onnx.OfflineRecognizer that opens the program; it takes the sample rate and the number
            of mel bins.
        file: file of conf/features/ with the settings of the features that sherpa-onnx computes.
        fixed: settings in it that sherpa-onnx cannot change.
        normalizes: whether sherpa-onnx normalises the features as in the file; false: the program does, in any way.
        stride: stride of the encoder, from which sherpa-onnx computes times; None: any.
        form: format of the program's input.
        converted: makes the program from the one whose input is features.
        note: a sentence on the features for the README.
    """

    reader: str
    file: str
    fixed: tuple[str, ...]
    normalizes: bool
    stride: int | None
    form: Form
    converted: "Callable[[ModelProto, Model], ModelProto]"
    note: str


def unlike_sherpa(features: Mapping[str, Any], is_transducer: bool) -> list[str]:
    """List the settings of features that differ from the features that sherpa-onnx computes.

    For a transducer, these are NeMo's, and sherpa-onnx reads the number of mel bins from the program.
    """
    layouts = {NEMO: SHERPA_LAYOUTS[NEMO]} if is_transducer else SHERPA_LAYOUTS
    if features["name"] not in layouts:
        return [f"features={features['name']} instead of {' or '.join(layout.file for layout in layouts.values())}"]
    layout = layouts[features["name"]]
    computed = default_settings("features", layout.file)
    fixed = [key for key in layout.fixed if not (is_transducer and key == "num_mel_bins")]
    keys = [key for key in fixed if features[key] != computed[key]]
    different = [f"features.{key}={json.dumps(features[key])} instead of {json.dumps(computed[key])}" for key in keys]
    given, needed = features["normalize"]["name"], computed["normalize"]["name"]
    if layout.normalizes and given != needed:
        different.append(f"features/normalize={given} instead of {needed}")
    return different


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


def in_zipformers_layout(net: "ModelProto", model: Model) -> "ModelProto":
    """Convert a CTC program to a Zipformer's layout: with the model's normalisation, and the metadata."""
    from onnx import helper

    lengths = torch.tensor([EXAMPLE_FRAMES, EXAMPLE_FRAMES // 2])
    example = (torch.randn(2, EXAMPLE_FRAMES, model.features.dim), lengths)
    names = (ZIPFORMER_INPUTS, NET_INPUTS)
    normalized = write_down(Normalized(model.features), example, names, (BATCH | {1: "frames"}, BATCH))
    program = joined(normalized, net, ZIPFORMER_INPUTS)
    helper.set_model_props(program, {"model_type": "zipformer2_ctc"})
    return program


OF_ENERGIES = Form(ZIPFORMER_INPUTS, lambda features, waveform: features.energies(waveform), lambda batch: batch)
NEMO, ZIPFORMER = (kind.__module__.rpartition(".")[2] for kind in (SlaneyFbank, Fbank))
SHERPA_LAYOUTS = {  # by the name of the features
    NEMO: SherpaLayout(
        reader="from_nemo_ctc",
        file="slaney_fbank",
        fixed=("sample_rate", "num_mel_bins", "frame_length_seconds", "frame_shift_seconds"),
        normalizes=True,
        stride=None,
        form=OF_SHERPA,
        converted=in_nemos_layout,
        note="sherpa-onnx computes slightly different features, so a few texts may differ.",
    ),
    ZIPFORMER: SherpaLayout(
        reader="from_zipformer_ctc",
        file="mirrored_fbank",
        fixed=("frame_length_seconds", "frame_shift_seconds", "snip_edges", "high_hertz", "full_scale"),
        normalizes=False,
        stride=4,
        form=OF_ENERGIES,
        converted=in_zipformers_layout,
        note="sherpa-onnx computes the same features as asr.",
    ),
}
