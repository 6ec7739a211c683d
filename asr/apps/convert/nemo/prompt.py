"""The prompt of NVIDIA NeMo's multilingual models, EncDecRNNTBPEModelWithPrompt and its hybrid."""

from collections.abc import Mapping
from typing import Any

from asr.apps.convert.prompt import LanguagePrompt, take_prompt
from asr.apps.convert.section import Section
from asr.errors import InputError

LAYERS = ("prompt_kernel.0", "prompt_kernel.2")  # the two linear layers
NUM_PROMPTS = 128  # NeMo's default


def prompt_config(config: Section, dim: int) -> LanguagePrompt | None:
    """Return the prompt of a model of NeMo, whose encoder has D = `dim` values per frame; None if it has none."""
    defaults = config.get("model_defaults")
    if not isinstance(defaults, Mapping) or not defaults.get("initialize_prompt_feature"):
        return None
    num_prompts = defaults.get("num_prompts", NUM_PROMPTS)
    return take_prompt(defaults.get("prompt_dictionary"), num_prompts, _hidden_dim(dim))


def with_prompt_sections(nemo: Section, languages: Mapping[str, Any], config: Section) -> dict[str, Any]:
    """Add the prompt to the config of a transducer of NeMo.

    Args:
        nemo: NeMo's config.
        languages: NeMo's settings of the languages.
        config: config of the asr model.
    """
    wanted, given = _hidden_dim(config["encoder"]["dim"]), config["prompt"]["hidden_dim"]
    if given != wanted:
        must = f"prompt.hidden_dim must be twice encoder.dim, {wanted}, for conversion to NeMo"
        raise InputError(f"{must}; got {given}.")
    if "tokenizer" not in nemo:
        raise InputError("tokenizer must not be char for conversion of a model with a prompt to NeMo; it is.")
    module, _, name = nemo["target"].rpartition(".")
    defaults = nemo["model_defaults"] | {"initialize_prompt_feature": True, **languages}
    target = {"target": f"{module}_prompt.{name}WithPrompt"}
    return {**nemo, **target, "num_prompts": languages["num_prompts"], "model_defaults": defaults}


def _hidden_dim(dim: int) -> int:
    """Return the width of NeMo's hidden layer."""
    return 2 * dim
