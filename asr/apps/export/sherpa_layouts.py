"""The layouts of models that sherpa-onnx reads, each with the features that it computes: NeMo's, and icefall's.

*Source*: features.h, offline-recognizer-ctc-impl.h and offline-recognizer-impl.cc in sherpa-onnx 2.0.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from asr.apps.export import sherpa_stateless, sherpa_stream, sherpa_transducer, sherpa_zipformer_stream
from asr.apps.export.agreement import OF_SHERPA, Form, ProgramDifference
from asr.apps.export.sherpa_ctc import OF_ENERGIES, in_nemos_layout, in_zipformers_layout
from asr.apps.export.transducer_programs import head_of
from asr.base.settings.conf import default_settings
from asr.components.features.fbank import Fbank
from asr.components.features.slaney_fbank import SlaneyFbank
from asr.core.recognition.model import Model

if TYPE_CHECKING:
    from onnx import ModelProto


class SherpaLayout(NamedTuple):
    """A layout of models that sherpa-onnx reads.

    Args:
        file: file of conf/features/ with the settings of the features that sherpa-onnx computes.
        fixed: settings in it that sherpa-onnx cannot change.
        normalizes: whether sherpa-onnx normalises the features as in the file; false: the program does, in any way.
        stride: stride of the encoder, from which sherpa-onnx computes times; None: any.
        note: a sentence on the features for the README.
        ctc_reader: method of sherpa_onnx.OfflineRecognizer that opens a CTC model.
        ctc_form: format of the input of a CTC program.
        ctc: makes the CTC program from the one whose input is features.
        transducer_type: name of the layout for a transducer, `model_type` of from_transducer.
        blank_last: whether the blank is the last token of a transducer.
        max_symbols: maximum number of tokens in a frame of a transducer; key: whether it has durations.
        head: exports decoder and joiner of a transducer.
        stream: exports a step of a transducer's encoder, for streams; None: the layout is for whole recordings.
        encoder: makes the program of a transducer's encoder from that step, or from the one whose input is features.
        difference: compares the programs of a transducer with the model.
    """

    file: str
    fixed: tuple[str, ...]
    normalizes: bool
    stride: int | None
    note: str
    ctc_reader: str
    ctc_form: Form
    ctc: "Callable[[ModelProto, Model], ModelProto]"
    transducer_type: str
    blank_last: bool
    max_symbols: Mapping[bool, int]
    head: "Callable[[Model], dict[str, ModelProto]]"
    stream: "Callable[[Model, Path], ModelProto] | None"
    encoder: "Callable[[ModelProto, Model], ModelProto]"
    difference: Callable[[Model, Mapping[str, Path], Mapping[str, Tensor]], ProgramDifference]


NEMO = SherpaLayout(
    file="slaney_fbank",
    fixed=("sample_rate", "num_mel_bins", "frame_length_seconds", "frame_shift_seconds"),
    normalizes=True,
    stride=None,
    note="sherpa-onnx computes slightly different features, so a few texts may differ.",
    ctc_reader="from_nemo_ctc",
    ctc_form=OF_SHERPA,
    ctc=in_nemos_layout,
    transducer_type="nemo_transducer",
    blank_last=True,
    max_symbols={False: 10, True: 5},
    head=sherpa_transducer.export_sherpa_head,
    stream=None,
    encoder=sherpa_transducer.sherpa_encoder,
    difference=sherpa_transducer.difference,
)
NEMO_STREAM = NEMO._replace(
    normalizes=False,
    max_symbols={False: 10},
    stream=sherpa_stream.export_stream,
    encoder=sherpa_stream.stream_encoder,
    difference=partial(sherpa_transducer.difference, encoder=sherpa_stream.STREAMED),
)
ICEFALL = SherpaLayout(
    file="mirrored_fbank",
    fixed=("frame_length_seconds", "frame_shift_seconds", "snip_edges", "high_hertz", "full_scale"),
    normalizes=False,
    stride=4,
    note="sherpa-onnx computes the same features as asr.",
    ctc_reader="from_zipformer_ctc",
    ctc_form=OF_ENERGIES,
    ctc=in_zipformers_layout,
    transducer_type="transducer",
    blank_last=False,
    max_symbols={False: 1},
    head=sherpa_stateless.export_stateless_head,
    stream=None,
    encoder=sherpa_stateless.stateless_encoder,
    difference=sherpa_stateless.difference,
)
ICEFALL_STREAM = ICEFALL._replace(
    transducer_type="zipformer2",
    stream=sherpa_zipformer_stream.export_stream,
    encoder=sherpa_zipformer_stream.stream_encoder,
    difference=partial(sherpa_stateless.difference, encoder=sherpa_zipformer_stream.STREAMED),
)
LAYOUTS = {SlaneyFbank.__module__.rpartition(".")[2]: NEMO, Fbank.__module__.rpartition(".")[2]: ICEFALL}
STREAM_LAYOUTS = dict(zip(LAYOUTS, (NEMO_STREAM, ICEFALL_STREAM), strict=True))  # of streaming transducers


def layouts_for(model: Model, is_transducer: bool) -> Mapping[str, SherpaLayout]:
    """Return the layouts of a model by the name of its features; arguments as in `why_not`."""
    return STREAM_LAYOUTS if is_transducer and model.encoder.streaming is not None else LAYOUTS


def why_not(model: Model, features: Mapping[str, Any], is_transducer: bool) -> str:
    """Return a sentence that says why sherpa-onnx cannot run a model; return "" if it can.

    Args:
        model: the model.
        features: settings of its features.
        is_transducer: whether its transducer is exported, or its CTC head.
    """
    layouts = layouts_for(model, is_transducer)
    if different := unlike_sherpa(features, is_transducer, layouts):
        others = f"sherpa-onnx computes its own features, and this model has others: {', '.join(different)}"
        return f"{others}. It runs a model that is trained with the latter."
    layout, stride = layouts[features["name"]], model.encoder.stride
    if layout.stride not in (None, stride):
        times = f"sherpa-onnx computes the times of this model's tokens for a stride of {layout.stride}"
        return f"{times}, and its encoder has {stride}. Train one with features={NEMO.file}."
    if not is_transducer:
        return ""
    head = head_of(model)
    if layout.file == ICEFALL.file and (head.durations or not sherpa_stateless.is_stateless(head)):
        supported = f"with features={layout.file}, sherpa-onnx supports only transducers without durations"
        return f"{supported} whose predictor is stateless. Train one with features={NEMO.file}."
    if bool(head.durations) not in layout.max_symbols:
        supported = "in streams, sherpa-onnx supports only transducers without durations"
        return f"{supported}, and this model has {list(head.durations)}. Train one with head=transducer."
    if not sherpa_transducer.has_sherpa_durations(head):
        supported = "sherpa-onnx supports only the durations 0, 1, 2 and so on"
        return f"{supported}, and this model has {list(head.durations)}."
    return ""


def unlike_sherpa(
    features: Mapping[str, Any], is_transducer: bool, layouts: Mapping[str, SherpaLayout] = LAYOUTS
) -> list[str]:
    """List the settings of features that differ from the features that sherpa-onnx computes.

    For a transducer of NeMo, sherpa-onnx reads the number of mel bins from the program.
    """
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
