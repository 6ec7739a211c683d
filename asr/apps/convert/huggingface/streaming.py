"""Settings of transformers' causal streaming models (NemotronAsrStreaming): an RNNT with a causal encoder."""

from collections.abc import Mapping
from typing import Any

from asr.apps.convert import causal
from asr.apps.convert.prompt import AUTO, AUTO_NUMBER, LanguagePrompt, give_prompt, take_prompt
from asr.apps.convert.section import Section, as_yaml, whole
from asr.core.build import PROMPT
from asr.core.checkpoint.bundle import Bundle
from asr.errors import InputError

MODEL, MODEL_WITH_PROMPT = "nemotron_asr_streaming", "nemotron3_5_asr"  # model_type
NAMES = {MODEL: "NemotronAsrStreaming", MODEL_WITH_PROMPT: "Nemotron3_5Asr"}  # beginnings of the names of classes
EXTRACTOR = "NemotronAsrStreamingFeatureExtractor"
PROMPT_KEYS = {"num_prompts", "prompt_intermediate_size", "default_prompt_id"}
PROMPT_LAYERS = ("prompt_projector.linear_1", "prompt_projector.linear_2")
WINDOW, DEFAULT, LOOK_AHEADS = "sliding_window", "default_num_lookahead_tokens", "supported_num_lookahead_tokens"
ENCODER_KEYS = {WINDOW, DEFAULT, LOOK_AHEADS}
DEFAULT_LOOK_AHEADS = [13, 6, 1, 0]  # transformers' default of LOOK_AHEADS


def contexts(encoder: Section, processor: Section) -> tuple[int, list[int]]:
    """Return the left context and the look-aheads of an encoder, in encoder frames; the default look-ahead is first.

    Args:
        encoder: config of the encoder.
        processor: config of the model's processor; its look-aheads take precedence.
    """
    window = whole(encoder, f"encoder_config.{WINDOW}", 71)
    default = whole(encoder, f"encoder_config.{DEFAULT}", DEFAULT_LOOK_AHEADS[0])
    others = processor.get(LOOK_AHEADS, encoder.get(LOOK_AHEADS, DEFAULT_LOOK_AHEADS))
    look_aheads = [default, *others] if isinstance(others, list) else [others]
    if window < 1 or any(type(number) is not int or number < 0 for number in look_aheads):
        must = f"{LOOK_AHEADS} must be a list of numbers of frames, and {WINDOW} at least 1"
        raise InputError(f"{must}; got {as_yaml(others)} and {window}, with {DEFAULT} {default}.")
    return window - 1, list(dict.fromkeys(look_aheads))


def encoder_settings(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of transformers' encoder that differ from Parakeet's, for asr's causal encoder."""
    window, default = encoder["left_frames"] + 1, encoder["chunk_frames"] - 1
    return {"model_type": f"{MODEL}_encoder", WINDOW: window, DEFAULT: default}


def prompt_config(config: Section, processor: Section) -> LanguagePrompt | None:
    """Return the prompt of a model; None if it has none."""
    if config["model_type"] != MODEL_WITH_PROMPT:
        return None
    hidden_dim = whole(config, "prompt_intermediate_size", 2048)
    prompt = take_prompt(processor.get("prompt_dictionary"), config.get("num_prompts", 128), hidden_dim)
    if (default := whole(config, "default_prompt_id", AUTO_NUMBER)) != prompt.auto:
        raise InputError(f"default_prompt_id must be the number of {AUTO}, {prompt.auto}; got {default}.")
    return prompt


def prompt_settings(bundle: Bundle) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a model's prompt in transformers' configs of the model and of its processor."""
    languages, hidden_dim = give_prompt(bundle), bundle.config[PROMPT]["hidden_dim"]
    auto = languages["prompt_dictionary"][AUTO]
    settings = {"num_prompts": languages["num_prompts"], "prompt_intermediate_size": hidden_dim}
    return settings | {"default_prompt_id": auto}, languages


def processor_settings(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of transformers' processor for the look-aheads of asr's causal encoder."""
    look_aheads = causal.look_aheads(encoder, "Hugging Face")
    return {LOOK_AHEADS: look_aheads, DEFAULT: look_aheads[0]}
