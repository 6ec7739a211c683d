"""All checks of the components of a package."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from asr.apps.check.augmentations import check_augmentation
from asr.apps.check.decoders import check_transcripts, recognizer_with
from asr.apps.check.heads import check_blocks, check_decoders, check_gradients, check_restriction, check_taps
from asr.apps.check.network import SAMPLE_RATE, SMALL, model_of, overridden, unlike_new, whole_with, without_dropout
from asr.apps.check.padding import check_losses, check_outputs, check_training
from asr.apps.check.settings import (
    GROUPS,
    Component,
    check_settings,
    components,
    in_no_group,
    settings_of,
    without_files,
)
from asr.base.settings.conf import default_settings
from asr.base.settings.plugins import Home
from asr.core.build import component
from asr.core.evaluation.text_metrics import numbers_of
from asr.core.recognition.model import Model
from asr.core.training.callback_state import check_state
from asr.errors import InputError, place_of, reason_of, shown

Checks = dict[str, Callable[[], object]]  # by name; a check that fails raises an error
CTC = {"name": "ctc"}
REFERENCES, HYPOTHESES = ("a b", "", "c d e"), ("a c", "b", "")  # texts may be empty


class Result(NamedTuple):
    """Result of a check.

    Args:
        component: group and name of the component.
        check: name of the check.
        problem: what must hold; "" if it does.
    """

    component: str
    check: str
    problem: str


def examine(home: Home) -> Iterator[Result]:
    """Check the components of a package; other checks of a component are left out after a fault in its settings.

    The largest of asr's own would need 24 GB in float64, so they are made small.
    """
    for file in components(home):
        result = _result(home, file, "settings", partial(check_settings, file, home))
        yield result
        if not result.problem:
            settings = settings_of(file)
            small = overridden(settings, SMALL) if home.is_ours else settings
            yield from (_result(home, file, name, check) for name, check in checks_of(file, small).items())
    for path in in_no_group(home):
        yield Result(f"conf/{path}", "settings", f"the folder must be a group of components: {', '.join(GROUPS)}.")
    for file in without_files(home):
        must = f"a component needs the file conf/{file}.yaml, with name: {file.name}"
        yield Result(str(file), "settings", f"{must}; there is none.")


def _result(home: Home, file: Component, name: str, check: Callable[[], object]) -> Result:
    torch.manual_seed(0)
    try:
        check()
    except InputError as error:
        return Result(str(file), name, str(error))
    except Exception as error:  # the package's code may raise any error
        cause = f"{type(error).__name__}: {reason_of(error)}{place_of(error, home.folder)}"
        return Result(str(file), name, f"no error may occur; got {cause}.")
    return Result(str(file), name, "")


def checks_of(file: Component, settings: dict[str, Any]) -> Checks:
    """Return the checks of a component with valid settings, besides those of its settings."""
    whole = whole_with(file.group, settings) if file.is_part else without_dropout(settings)
    match file.group.partition("/")[0]:
        case "encoder" if whole is not None:
            return _encoder(whole)
        case "head" if whole is not None:
            return _head(whole)
        case "decode" if not file.is_part:
            return {"transcripts": lambda: check_transcripts(recognizer_with(settings), torch.randn(SAMPLE_RATE) / 10)}
        case "augment":
            return {"draws": lambda: check_augmentation(settings)}
        case "metric":
            made = component(file.group, settings)
            return {"numbers": lambda: numbers_of({file.name: made()}, REFERENCES, HYPOTHESES)}
        case "callback":
            return {"state": lambda: check_state(file.name, component(file.group, settings)())}
        case "objective":
            return {"sections and measure": lambda: check_objective(component(file.group, settings)())}
    return {"is made": lambda: component(file.group, settings)}


def check_objective(objective: Any) -> None:
    """Check the names that an objective declares."""
    name = type(objective).__name__
    if not re.fullmatch("[a-z][a-z_]*", objective.measure.name):
        must = f"{name}.measure.name must consist of lower-case letters and underscores"
        raise InputError(f"{must}; got {shown(objective.measure.name)}.")
    for section in (*objective.sections, *objective.optional):
        if section not in (*GROUPS, "normalizer"):
            raise InputError(f"{name}.sections must be groups of components or normalizer; got {shown(section)}.")


def _encoder(settings: Mapping[str, Any]) -> Checks:
    def make(dtype: torch.dtype = torch.float64) -> Model:
        torch.manual_seed(0)
        return unlike_new(model_of(settings, CTC).to(dtype))

    return {
        "output alone and in a batch": lambda: check_outputs(make().eval()),
        "training and padding": lambda: check_training(lambda: make().train()),
        "gradients alone and in a batch": lambda: check_losses(make().eval()),
        "gradients of all weights": lambda: check_gradients(model_of(settings, CTC)),
        "blocks": lambda: check_blocks(model_of(settings, CTC).eval()),
        "taps": lambda: check_taps(model_of(settings, CTC).eval()),
    }


def _head(settings: Mapping[str, Any]) -> Checks:
    def make() -> Model:
        encoder = overridden(default_settings("encoder", "transformer"), SMALL)  # whose statistics are not of a batch
        return model_of(without_dropout(encoder), settings)

    return {
        "decoders": lambda: check_decoders(settings, make().head),
        "restriction to tokens": lambda: check_restriction(settings, make().eval()),
        "losses alone and in a batch": lambda: check_losses(unlike_new(make().double()).eval()),
        "gradients of all weights": lambda: check_gradients(make()),
    }
