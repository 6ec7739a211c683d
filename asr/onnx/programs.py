"""All programs of a model: made of its features and its net, and compared with it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from asr.build import Config, build_decoder
from asr.onnx.agreement import OF_FEATURES, OF_SHERPA, OF_WAVEFORMS, Difference, check, difference
from asr.onnx.names import PROGRAM, SHERPA, WAVEFORM
from asr.onnx.program import export_front_end, export_net, for_sherpa, is_for_sherpa, joined
from asr.onnx.runtime import exported
from asr.recognition.model import Model
from asr.recognition.recognizer import Recognizer

if TYPE_CHECKING:
    from onnx import ModelProto

FORMS = {PROGRAM: OF_FEATURES, WAVEFORM: OF_WAVEFORMS, SHERPA: OF_SHERPA}
OnStep = Callable[[str], None]


def written_down(model: Model, on_step: OnStep) -> "tuple[ModelProto, ModelProto]":
    """Write down the features and the net of a model.

    Args:
        model: with weights.
        on_step: told what is done next.

    Raises:
        InputError: the model cannot be exported.
    """
    on_step("writing down the features")
    front_end = export_front_end(model)
    on_step("writing down the net")
    return front_end, export_net(model)


def all_programs(front_end: "ModelProto", net: "ModelProto", model: Model, config: Config) -> "dict[str, ModelProto]":
    """Make the programs of features and a net, by the names of their files.

    Args:
        front_end, net: as `written_down` gives them, or smaller.
        model: that they are of.
        config: its config.
    """
    programs = {PROGRAM: net, WAVEFORM: joined(front_end, net)}
    if is_for_sherpa(config["features"]):
        programs[SHERPA] = for_sherpa(net, model)
    return programs


def running(recognizer: Recognizer, config: Config, net: bytes) -> Recognizer:
    """Make a recogniser whose net is a program; the arguments are the torch model's, and the program."""
    model = exported(recognizer.model, net)
    return Recognizer(model, build_decoder(config, model), recognizer.calibration)


def differences(
    recognizer: Recognizer,
    config: Config,
    programs: "Mapping[str, ModelProto]",
    audio: Mapping[str, Tensor],
    on_step: OnStep,
) -> dict[str, Difference]:
    """Compare each program with the model.

    Args:
        recognizer: of the model.
        config: its config.
        programs: by the names of their files.
        audio: waveforms (S,) by name.
        on_step: told what is done next.

    Raises:
        InputError: a program is not what the model is.
    """
    decoded = running(recognizer, config, programs[PROGRAM].SerializeToString())
    found = {}
    for name, program in programs.items():
        on_step(f"comparing {name}")
        found[name] = difference(recognizer, decoded, program.SerializeToString(), FORMS[name], audio)
        check(name, found[name])
    return found
