"""All programs of a model: export, and comparison with the model."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from asr.apps.export import stream_step, transducer_programs
from asr.apps.export.agreement import OF_FEATURES, OF_WAVEFORMS, ProgramDifference, check, difference
from asr.apps.export.program import Net, ctc_net, export_front_end, export_net, joined
from asr.apps.export.quantization import smaller as smaller
from asr.apps.export.sherpa_layouts import SherpaLayout, layouts_for, why_not
from asr.apps.export.stream_step import has_step
from asr.base.onnx.names import (
    DATA,
    ENCODER,
    FRONT_END,
    FRONT_END_INPUTS,
    JOINER,
    NETS,
    OPENED,
    PREDICTOR,
    PROGRAM,
    SHERPA,
    SHERPA_ENCODER,
    SHERPA_STREAM,
    STEP,
)
from asr.base.onnx.session import check_installed
from asr.core.build import Config, build_decoder, exported
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError

if TYPE_CHECKING:
    from onnx import ModelProto

FORMS = {PROGRAM: OF_FEATURES, ENCODER: OF_FEATURES} | dict.fromkeys(NETS.values(), OF_WAVEFORMS)
PACKAGES = ("onnx", "onnxscript", "onnxruntime")  # packages of the extra `onnx`
JOINERS = ("joiner", "frame_joiner")  # what decoders of a transducer need
OnStep = Callable[[str], None]
Parts = Mapping[str, "ModelProto"]  # programs by file name, including the program that computes the features
Files = Mapping[str, Path]  # paths of programs and of their data files, by file name


def check_exportable(recognizer: Recognizer, config: Config) -> None:
    """Check that the packages are installed, and that the decoder needs only parts of the head that are exported."""
    check_installed(PACKAGES, "asr.export")
    needs, name = recognizer.decode.needs, config["decode"]["name"]
    cure = " To export the model's CTC head, add --decode greedy." if recognizer.model.head.frame_head else ""
    more = [need for need in needs if need not in ("frame_head", *JOINERS)]
    if more:
        must = "the decoder of an exported model must need only the log_probs of frames, or a joiner"
        raise InputError(f"{must}; decode={name} needs a {more[0]}, which is not exported yet.{cure}")


def is_transducer(recognizer: Recognizer) -> bool:
    """Whether the decoder uses a transducer; with another decoder only the CTC head is exported."""
    return any(need in JOINERS for need in recognizer.decode.needs)


def net_of(recognizer: Recognizer) -> tuple[str, Net]:
    """Return the file name of the program that the decoder requires, and the network to export as this program."""
    if is_transducer(recognizer):
        return ENCODER, transducer_programs.transducer_net(recognizer.model)
    return PROGRAM, ctc_net(recognizer.model)


def written_down(recognizer: Recognizer, config: Config, folder: Path, on_step: OnStep) -> Parts:
    """Export the parts of a model that the recogniser's decoder needs.

    Args:
        recognizer: recogniser whose model has weights.
        config: config of the model.
        folder: folder for the data files.
        on_step: called with a description of the next step.
    """
    model, (name, net) = recognizer.model, net_of(recognizer)
    on_step("exporting the features")
    parts = {FRONT_END: export_front_end(model)}
    on_step("exporting the network")
    parts[name] = export_net(net, folder / DATA[name])
    if name == ENCODER:
        on_step("exporting the head")
        parts |= transducer_programs.export_head(model)
        if layout := layout_of(recognizer, config):
            parts |= layout.head(model)
            if layout.stream is not None:
                on_step("exporting the step of a stream")
                parts[SHERPA_STREAM] = layout.stream(model, folder / DATA[SHERPA_STREAM])
    elif has_step(model.encoder):
        on_step("exporting the step of a stream")
        parts[STEP] = stream_step.export_step(model, folder / DATA[STEP])
    return parts


def all_programs(parts: Parts, recognizer: Recognizer, config: Config) -> "dict[str, ModelProto]":
    """Return the programs of a model, by the names of their files.

    Args:
        parts: parts from `written_down`, or their quantized form.
        recognizer: the model.
        config: config of the model.
    """
    [name] = parts.keys() & NETS.keys()
    programs = {name: parts[name], NETS[name]: joined(parts[FRONT_END], parts[name], FRONT_END_INPUTS)}
    left_out = set() if STEP in parts else {FRONT_END}  # streams need the features as a separate program
    if layout := layout_of(recognizer, config):
        if name == PROGRAM:
            programs[SHERPA] = layout.ctc(parts[name], recognizer.model)
        elif SHERPA_STREAM in parts:
            programs[SHERPA_STREAM] = layout.encoder(parts[SHERPA_STREAM], recognizer.model)
        else:
            programs[SHERPA_ENCODER] = layout.encoder(parts[name], recognizer.model)
    return programs | {name: part for name, part in parts.items() if name not in left_out | programs.keys()}


def why_not_for_sherpa(recognizer: Recognizer, config: Config) -> str:
    """Return a sentence that says why sherpa-onnx cannot run the model; return "" if it can."""
    return why_not(recognizer.model, config["features"], is_transducer(recognizer))


def layout_of(recognizer: Recognizer, config: Config) -> SherpaLayout | None:
    """Return the layout of the programs for sherpa-onnx; None: sherpa-onnx cannot run the model."""
    if why_not_for_sherpa(recognizer, config):
        return None
    return layouts_for(recognizer.model, is_transducer(recognizer))[config["features"]["name"]]


def size(files: Files) -> int:
    """Return the total size in bytes of the programs whose input is features, with their weights."""
    names = {name for name in OPENED if name in files and name != STEP}
    names |= {DATA[name] for name in names & DATA.keys()} & files.keys()
    return sum(files[name].stat().st_size for name in names)


def running(recognizer: Recognizer, config: Config, files: Files) -> Recognizer:
    """Return a recogniser that runs the programs in `files` in place of the torch model of `recognizer`."""
    model = exported(recognizer.model, files)
    return Recognizer(model, build_decoder(config, model), recognizer.calibration)


def differences(
    recognizer: Recognizer, config: Config, files: Files, audio: Mapping[str, Tensor], on_step: OnStep
) -> dict[str, ProgramDifference]:
    """Compare each program with the model.

    Args:
        recognizer: recogniser of the model.
        config: config of the model.
        files: files of the programs.
        audio: waveforms (S,) by name.
        on_step: called with a description of the next step.
    """
    actual, (_, net) = running(recognizer, config, files), net_of(recognizer)
    differences = {}

    def compared(name: str, difference: Callable[[], ProgramDifference]) -> None:
        on_step(f"comparing {name}")
        differences[name] = difference()
        check(name, differences[name])

    layout = layout_of(recognizer, config)
    forms = FORMS | ({SHERPA: layout.ctc_form} if layout else {})
    for name, form in forms.items():
        if name in files:
            compared(name, partial(difference, recognizer, actual, files[name], form, audio, net))
    if PREDICTOR in files:
        compared(f"{PREDICTOR}, {JOINER}", partial(transducer_programs.difference, recognizer.model, actual.model))
    for name in (SHERPA_ENCODER, SHERPA_STREAM):
        if layout and name in files:
            compared(name, partial(layout.difference, recognizer.model, files, audio))
    if STEP in files:
        compared(STEP, partial(stream_step.difference, recognizer, actual, audio))
    return differences
