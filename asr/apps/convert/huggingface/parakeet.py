"""Parakeet and NemotronAsrStreaming of Hugging Face's transformers."""

from pathlib import Path
from typing import Any

from safetensors.torch import save

from asr.apps.convert.account import SAME, SUM, Counterparts, give, outputs
from asr.apps.convert.conformer import CTC, Names, block_names, stages
from asr.apps.convert.foreign import Choices, ModelParts, Weights, written_by
from asr.apps.convert.huggingface import streaming
from asr.apps.convert.huggingface.config import (
    blank_of,
    encoder_config,
    features_config,
    head_config,
    huggingface_config,
    is_streaming,
    preprocessor_config,
    processor_class,
    scale,
)
from asr.apps.convert.huggingface.files import Folder, pop_weights, to_json
from asr.apps.convert.huggingface.tokenizer import Written, give_vocabulary, take_vocabulary
from asr.apps.convert.prompt import with_prompt
from asr.apps.convert.section import Section
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.core.hub.huggingface_files import (
    CONFIG,
    GENERATION,
    PREPROCESSOR,
    PROCESSOR,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
)
from asr.errors import InputError

CTC_BESIDE = "head.ctc."  # prefix of the names of a CTC head's tensors in a model with a transducer


OUTSIDE = stages("encoder.subsampling.layers") | {
    "encoder.subsampling.linear": "encoder.subsampling.linear",
    "head.linear": "ctc_head",
}
CAUSAL_STAGES = {
    "encoder.subsampling.stages.0": "encoder.subsampling.conv_in",
    "encoder.subsampling.stages.1.0": "encoder.subsampling.layers.0.depthwise_conv",
    "encoder.subsampling.stages.1.1": "encoder.subsampling.layers.0.pointwise_conv",
    "encoder.subsampling.stages.2.0": "encoder.subsampling.layers.1.depthwise_conv",
    "encoder.subsampling.stages.2.1": "encoder.subsampling.layers.1.pointwise_conv",
}
BLOCK = block_names(("q_proj", "k_proj", "v_proj"), "relative_k_proj", ("bias_u", "bias_v"), "o_proj", norm="norm")


def names(blank: int) -> Names:
    """Return the names of a Parakeet-CTC's tensors; `blank` is the index of the blank among its outputs."""
    return Names("Hugging Face", OUTSIDE, "encoder.layers", BLOCK, blank=blank)


def transducer_names(blank: int) -> Names:
    """Return the names of the tensors of a Parakeet-RNNT or Parakeet-TDT.

    Args:
        blank: index of the blank among the tokens, which precede the durations in the joint network's outputs.
    """
    transducer = {
        "head.predictor.embedding.weight": (("decoder.embedding.weight",), outputs(blank)),
        "head.joiner.of_frames.weight": (("encoder_projector.weight",), SAME),
        "head.joiner.of_frames.bias": (("encoder_projector.bias", "decoder.decoder_projector.bias"), SUM),
        "head.joiner.of_tokens.weight": (("decoder.decoder_projector.weight",), SAME),
        **{f"head.joiner.output.{kind}": ((f"joint.head.{kind}",), outputs(blank)) for kind in ("weight", "bias")},
    }
    outside = {name: module for name, module in OUTSIDE.items() if name != "head.linear"}
    outside |= {"head.predictor.cells": "decoder.lstm"}
    return names(blank)._replace(outside=outside, others=transducer)


def read(folder: Folder, choices: Choices) -> ModelParts:
    """Convert the files of a folder, of which the weights are removed."""
    if choices.texts is not None:
        raise InputError("--texts needs a model that was pre-trained only; Parakeet has a head.")
    files, config, preprocessor, processor = folder
    if TOKENIZER not in files:
        raise InputError(f"{TOKENIZER} must exist; it is missing.")
    encoder, features = encoder_config(config, processor), features_config(config, preprocessor, choices.pad_mode)
    head, (vocab_size, blank) = head_config(config), blank_of(config)
    vocabulary = take_vocabulary(files[TOKENIZER], vocab_size, blank)
    tensors, sha256 = pop_weights(files)
    named, prompt = _names(config, blank)._replace(scale=scale(config)), streaming.prompt_config(config, processor)
    if prompt is not None:
        named = with_prompt(named, streaming.PROMPT_LAYERS, encoder["dim"], prompt.auto)
    weights = Weights(tensors, sha256, Counterparts(named.row))
    writer = written_by("transformers", config.get("transformers_version"))
    return ModelParts(vocabulary, features, encoder, weights, head, prompt, writer=writer)


def _names(config: Section, blank: int) -> Names:
    named = names(blank) if config["model_type"] == "parakeet_ctc" else transducer_names(blank)
    return named._replace(outside={**named.outside, **CAUSAL_STAGES}) if is_streaming(config) else named


def write(bundle: Bundle, path: Path) -> dict[str, bytes]:
    """Convert a bundle to the files of a folder for transformers, by name."""
    model = bundle_recognizer(bundle, path).model
    tokenizer = give_vocabulary(bundle.config["tokenizer"], bundle.files)
    config = huggingface_config(bundle.config, model.tokenizer.vocab_size, tokenizer.blank)
    features = model.features
    left_out = names_left_out(bundle)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in left_out}
    languages: dict[str, Any] = {}
    named = _names(config, tokenizer.blank)
    if model.prompt is not None:
        settings, languages = streaming.prompt_settings(bundle)
        auto, config = settings["default_prompt_id"], config | settings
        named = with_prompt(named, streaming.PROMPT_LAYERS, bundle.config["encoder"]["dim"], auto)
    tensors = give(weights, Counterparts(named.row))
    is_ctc = bundle.config["head"]["name"] == CTC
    return {
        CONFIG: to_json(config),
        **({} if is_ctc else _transducer_files(config, bundle.config["encoder"], languages, tokenizer)),
        PREPROCESSOR: to_json(preprocessor_config(config, features.window, features.hop, bundle.config["features"])),
        TOKENIZER: tokenizer.content,
        TOKENIZER_CONFIG: to_json(tokenizer.settings),
        WEIGHTS: save(tensors, {"format": "pt"}),
    }


def names_left_out(bundle: Bundle) -> list[str]:
    """List the tensors of a transducer's additional CTC head, which the folder for transformers does not contain."""
    return [name for name in bundle.weights if name.startswith(CTC_BESIDE)]


def _transducer_files(config: Section, encoder: Section, languages: Section, tokenizer: Written) -> dict[str, bytes]:
    """Return a transducer's configs for generation (the start token of the search) and for the processor (decoding)."""
    processor: dict[str, Any] = {"processor_class": processor_class(config)}
    if is_streaming(config):
        processor |= streaming.processor_settings(encoder) | dict(languages)
    else:
        processor |= {"decoder_type": config["model_type"].removeprefix("parakeet_")}
    processor |= {"blank_token": tokenizer.blank_piece}
    generation = {"decoder_start_token_id": tokenizer.blank, "pad_token_id": tokenizer.blank}
    return {GENERATION: to_json(generation), PROCESSOR: to_json(processor)}
