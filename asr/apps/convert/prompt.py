"""The prompt of NVIDIA's Nemotron 3.5: a language, one-hot, concatenated to each frame of the encoder's output.

In asr it is prompt=label. Its id 0, unknown, is the language "auto" of the other toolkits.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from asr.apps.convert.account import SAME, Layout, outputs
from asr.apps.convert.conformer import Names
from asr.apps.convert.section import as_yaml
from asr.base.system.learnt import to_json
from asr.core.build import PROMPT
from asr.core.checkpoint.bundle import Bundle
from asr.core.data.labels import LABELS_FILE, LANGUAGE
from asr.errors import InputError, shown

AUTO, AUTO_NUMBER = "auto", 101  # name and number of an unknown language; a model with fewer languages has it last
DROPOUT = 0.5  # NVIDIA trains with "auto" in half of the utterances
LAYERS = {"prompt.layers.0": 0, "prompt.layers.2": 1}  # asr's linear layers, and their position among the toolkit's


class LanguagePrompt(NamedTuple):
    """A prompt in asr's form.

    Args:
        config: section `prompt` of asr's config.
        files: the file of the languages' ids.
        auto: number of the language "auto" in the other toolkit.
    """

    config: dict[str, Any]
    files: dict[str, bytes]
    auto: int


def take_prompt(languages: object, num_prompts: object, hidden_dim: int) -> LanguagePrompt:
    """Convert the languages of another toolkit's prompt.

    Args:
        languages: numbers of the languages by name; several names may have one number.
        num_prompts: number of columns of the one-hot vector.
        hidden_dim: number of values of the hidden layer.
    """
    if type(num_prompts) is not int or num_prompts < 2:
        raise InputError(f"num_prompts must be a whole number of at least 2; got {as_yaml(num_prompts)}.")
    must = f"prompt_dictionary must have numbers from 0 to {num_prompts - 1} by language"
    if not isinstance(languages, Mapping):
        raise InputError(f"{must}; got {shown(languages)}.")
    for name, number in languages.items():
        if not isinstance(name, str) or not name or type(number) is not int or not 0 <= number < num_prompts:
            raise InputError(f"{must}; got {shown(name)}: {shown(number)}.")
    if AUTO not in languages or len(set(languages.values())) < 2:
        raise InputError(
            f"prompt_dictionary must have {AUTO}, for an unknown language, and other languages; it has not."
        )
    auto = languages[AUTO]
    ids = {name: 0 if number == auto else number + (number < auto) for name, number in languages.items()}
    config = {"name": "label", "label": LANGUAGE, "num_labels": num_prompts - 1, "hidden_dim": hidden_dim}
    return LanguagePrompt(config | {"dropout": DROPOUT}, to_json(LABELS_FILE, {LANGUAGE: ids}), auto)


def give_prompt(bundle: Bundle) -> dict[str, Any]:
    """Return the settings of another toolkit for the prompt of a bundle: `num_prompts` and `prompt_dictionary`."""
    prompt = bundle.config[PROMPT]
    if prompt["name"] != "label" or prompt["label"] != LANGUAGE:
        must = f"prompt must be label, with prompt.label={LANGUAGE}, for conversion to another toolkit"
        raise InputError(f"{must}; got {prompt['name']} and {prompt.get('label')}.")
    num_prompts = bundle.weights["prompt.layers.0.weight"].shape[1] - bundle.config["encoder"]["dim"]
    auto, ids = min(AUTO_NUMBER, num_prompts - 1), json.loads(bundle.files[LABELS_FILE])[LANGUAGE]
    if ids.get(AUTO, 0) != 0:
        must = f"a language must not be called {AUTO}, which means unknown, for conversion to another toolkit"
        raise InputError(f"{must}; the training data has it as {LANGUAGE}.")
    numbers = {name: auto if number == 0 else number - (number <= auto) for name, number in ids.items()}
    return {"num_prompts": num_prompts, "prompt_dictionary": {AUTO: auto, **numbers}}


def with_prompt(names: Names, theirs: tuple[str, str], dim: int, auto: int) -> Names:
    """Add the tensors of the prompt to another toolkit's names.

    Args:
        names: names of the other tensors.
        theirs: the toolkit's names of the two linear layers.
        dim: D, number of values of each encoder frame.
        auto: number of the language "auto".
    """
    columns = {"prompt.layers.0.weight": _columns(dim, auto)}
    rows = {
        f"{ours}.{kind}": ((f"{theirs[position]}.{kind}",), columns.get(f"{ours}.{kind}", SAME))
        for ours, position in LAYERS.items()
        for kind in ("weight", "bias")
    }
    return names._replace(others={**names.others, **rows})


def _columns(dim: int, auto: int) -> Layout:
    """Return a layout that moves column `auto` of the languages, which follow `dim` columns, to their beginning."""
    languages = outputs(auto)

    def join(x: Tensor) -> Tensor:
        return torch.cat([x[:, :dim], languages.join(x[:, dim:].T).T], dim=1)

    def part(x: Tensor) -> list[Tensor]:
        [others] = languages.part(x[:, dim:].T)
        return [torch.cat([x[:, :dim], others.T], dim=1)]

    return SAME._replace(join=join, part=part)
