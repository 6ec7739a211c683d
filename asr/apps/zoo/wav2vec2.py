"""wav2vec 2.0 and HuBERT of Hugging Face's transformers, of the kind with LayerNorm, with CTC head or pre-trained only.

XLS-R, MMS without adapters, and the large models of both are of this kind. A HuBERT computes what a wav2vec 2.0 of its
weights computes, and is written as one.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from asr.apps.convert.account import SAME, THREE, Counterparts, Layout, Row, give, outputs
from asr.apps.convert.conformer import CTC, EPS, HEAD, Names
from asr.apps.convert.foreign import CTC_HEAD, Choices, ModelParts, Weights, written_by
from asr.apps.convert.huggingface.config import GENERAL_KEYS
from asr.apps.convert.huggingface.extractor import EXTRACTOR_KEYS, check_kind, give_extractor
from asr.apps.convert.huggingface.files import Folder, pop_weights, to_json
from asr.apps.convert.section import Section, as_yaml, check, check_parts, has_encoder, whole
from asr.apps.zoo.encoder.subsampling.sample_conv import HOP, KERNEL_SIZES, STRIDES, WINDOW
from asr.apps.zoo.vocab_json import characters_of, give_characters, read_characters
from asr.base.settings.conf import default_settings
from asr.core.build import PROMPT
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.core.hub.huggingface_files import CONFIG, PREPROCESSOR, TOKENIZER_CONFIG, VOCAB, WEIGHTS
from asr.errors import InputError

MODEL, HUBERT = "wav2vec2", "hubert"  # model_type
ENCODER = "wav2vec2"
EXTRACTOR, PROCESSOR = "Wav2Vec2FeatureExtractor", "Wav2Vec2Processor"
MASK = "masked_spec_embed"  # stands for masked frames, in training
PRE_TRAINING = ("quantizer.", "project_q.", "project_hid.")  # begins of names of tensors that only pre-training needs
POSITIONS = "encoder.pos_conv_embed.conv"
KERNELS = (  # names of norms and directions of the kernel: torch's since 2.0, and before
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
    ("weight_g", "weight_v"),
)
DROPOUTS = ("hidden_dropout", "activation_dropout", "attention_dropout")

# Keys that may have any value: they do not affect the output of a trained model, or are converted below.
TRAINING_KEYS = {
    *("final_dropout", "layerdrop", "apply_spec_augment", *DROPOUTS, "feat_proj_dropout", "feat_extract_dropout"),
    *("hidden_dropout_prob", "gradient_checkpointing", "ctc_loss_reduction", "ctc_zero_infinity"),
    *("use_weighted_layer_sum", "classifier_proj_size", "tdnn_dim", "tdnn_kernel", "tdnn_dilation"),
    *("xvector_output_dim", "num_negatives", "codevector_dim", "proj_codevector_dim", "num_codevectors_per_group"),
    *("num_codevector_groups", "contrastive_logits_temperature", "diversity_loss_weight", "feat_quantizer_dropout"),
}
KEYS = {
    *GENERAL_KEYS,
    *TRAINING_KEYS,
    *("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "intermediate_size", "conv_bias", "num_conv_pos_embeddings"),
    *("num_conv_pos_embedding_groups", "feat_extract_norm", "conv_dim", "output_hidden_size", "tokenizer_class"),
    *("adapter_kernel_size", "adapter_stride", "num_adapter_layers"),
}
PARTS: dict[str, tuple[object, ...]] = {  # parts of asr that the model has
    PROMPT: (),
    "encoder": (ENCODER,),
    "encoder.block": ("transformer_block",),
    "encoder.block.activation": ("gelu",),
    "encoder.block.residual": ("pre_norm",),
    "encoder.subsampling": ("sample_conv",),
    "features": ("waveform",),
    "head": (CTC,),
}
BLOCK: dict[str, str | tuple[str, ...]] = {
    "norm_attention": "layer_norm",
    "output": "attention.out_proj",
    "norm_feed_forward": "final_layer_norm",
    "linear1": "feed_forward.intermediate_dense",
    "linear2": "feed_forward.output_dense",
}
QKV = tuple(f"attention.{name}_proj" for name in "qkv")


def counterparts(blank: int, prefix: str = f"{MODEL}.", kernel: tuple[str, str] = KERNELS[0]) -> Counterparts:
    """Return the tensors of a model.

    Args:
        blank: index of the blank among the outputs of the head.
        prefix: beginning of the names of the encoder's tensors; "" in a model without a head.
        kernel: names of the norms and of the directions of the kernel of the convolution for positions.
    """
    convolutions, projection = f"{prefix}feature_extractor.conv_layers", f"{prefix}feature_projection"
    outside = {
        "encoder.subsampling.norm": f"{projection}.layer_norm",
        "encoder.subsampling.linear": f"{projection}.projection",
        "encoder.positions": f"{prefix}{POSITIONS}",
        "encoder.norm_output": f"{prefix}encoder.layer_norm",
    }
    for number in range(len(STRIDES)):
        outside[f"encoder.subsampling.convs.{number}"] = f"{convolutions}.{number}.conv"
        outside[f"encoder.subsampling.norms.{number}"] = f"{convolutions}.{number}.layer_norm"
    others: dict[str, tuple[tuple[str, ...], Layout]] = {
        f"{HEAD}.{kind}": ((f"lm_head.{kind}",), outputs(blank)) for kind in ("weight", "bias")
    }
    for ours, theirs in zip(("scale", "direction"), kernel, strict=True):
        others[f"encoder.positions.{ours}"] = ((f"{prefix}{POSITIONS}.{theirs}",), SAME)
    names = Names("Hugging Face", outside, f"{prefix}encoder.layers", BLOCK, blank, others)

    def row(ours: str) -> Row:
        block = re.fullmatch(r"encoder\.blocks\.(\d+)\.qkv\.(\w+)", ours)
        if not block:
            return names.row(ours)
        return Row(ours, tuple(f"{names.blocks}.{block[1]}.{name}.{block[2]}" for name in QKV), THREE)

    return Counterparts(row, unneeded=(f"{prefix}{MASK}",))


def encoder_config(config: Section) -> dict[str, Any]:
    """Return the config of asr's encoder."""
    norm = config.get("feat_extract_norm", "group")
    if norm != "layer":
        why = "With group, as in base models, a norm over all frames of a recording follows the first convolution"
        must = "config.feat_extract_norm must be layer, which asr supports"
        raise InputError(f"{must}; got {as_yaml(norm)}. {why}, and padding would change the output.")
    number = len(STRIDES)
    channels = config.get("conv_dim", number * [512])
    if not isinstance(channels, list) or len(channels) != number or len({*map(str, channels)}) != 1:
        raise InputError(f"config.conv_dim must have one number of channels, {number} times; got {as_yaml(channels)}.")
    dim = whole(config, "config.hidden_size", 768)
    check(
        config,
        "config",
        KEYS | {key for key in config if key.startswith("mask_")},
        {
            "do_stable_layer_norm": (False, (True,)),
            "hidden_act": ("gelu", ("gelu",)),
            "feat_extract_activation": ("gelu", ("gelu",)),
            "layer_norm_eps": (EPS, (EPS,)),
            "conv_kernel": ([*KERNEL_SIZES], ([*KERNEL_SIZES],)),
            "conv_stride": ([*STRIDES], ([*STRIDES],)),
            "num_feat_extract_layers": (number, (number,)),
            "add_adapter": (False, (False,)),
            "adapter_attn_dim": (None, (None,)),
            "feat_proj_layer_norm": (True, (True,)),
            "conv_pos_batch_norm": (False, (False,)),
        },
    )
    inner = whole(config, "config.intermediate_size", 3072)
    return {
        "name": ENCODER,
        "dim": dim,
        "num_layers": whole(config, "config.num_hidden_layers", 12),
        "position_kernel_size": whole(config, "config.num_conv_pos_embeddings", 128),
        "position_groups": whole(config, "config.num_conv_pos_embedding_groups", 16),
        "subsampling": {
            "name": "sample_conv",
            "num_channels": channels[0],
            "bias": config.get("conv_bias", False),
            "dropout": config.get("feat_proj_dropout", 0.0),
        },
        "block": {
            "name": "transformer_block",
            "num_heads": whole(config, "config.num_attention_heads", 12),
            "feed_forward_factor": inner / dim if dim > 0 else inner,  # asr's encoder refuses an invalid dim
            "dropout": config.get("hidden_dropout", 0.1),
            "activation": default_settings("encoder/block/activation", "gelu"),
            "residual": default_settings("encoder/block/residual", "pre_norm"),
        },
    }


def features_config(preprocessor: Section) -> dict[str, Any]:
    """Return the config of asr's features."""
    check_kind(preprocessor, EXTRACTOR)
    check(preprocessor, "preprocessor", EXTRACTOR_KEYS | {"do_normalize"}, {"feature_size": (1, (1,))})
    sample_rate = whole(preprocessor, "preprocessor.sampling_rate", 16000)
    if sample_rate < WINDOW:
        raise InputError(f"preprocessor.sampling_rate must be at least {WINDOW} Hz; got {sample_rate}.")
    return {
        "name": "waveform",
        "sample_rate": sample_rate,
        "frame_length_seconds": WINDOW / sample_rate,
        "frame_shift_seconds": HOP / sample_rate,
        "unit_variance": preprocessor.get("do_normalize", True),
    }


def read(model: str, folder: Folder, choices: Choices) -> ModelParts:
    """Convert the files of a folder, of which the weights are removed.

    Args:
        model: model_type, with which the names of the encoder's tensors begin in a model with a head.
        folder: files and configs.
        choices: the user's choices.
    """
    files, config, preprocessor, _ = folder
    if choices.pad_mode != "zeros":
        raise InputError(f"--pad-mode must be zeros for {model}, whose frames are not centred; got {choices.pad_mode}.")
    if choices.adapter:
        raise InputError(f"--adapter needs a model of w2v-BERT 2.0; got {model}.")
    encoder, features = encoder_config(config), features_config(preprocessor)
    tensors, sha256 = pop_weights(files)
    has_head = any(name.startswith("lm_head.") for name in tensors)
    if has_head and choices.texts is not None:
        raise InputError("--texts adds a head to a model without one; this one has a head (lm_head).")
    if not has_head and choices.texts is None:
        raise InputError("the model must have a head (lm_head); it has none. Add a new one with --texts TRAIN.jsonl.")
    if choices.texts is None:
        vocabulary, blank = read_characters(files, {"vocab_size": 32, **config})
    else:
        vocabulary, blank = characters_of(choices.texts), 0
    return ModelParts(
        vocabulary,
        features,
        encoder,
        Weights(tensors, sha256, _counterparts(tensors, blank, model, has_head)),
        CTC_HEAD,
        new=() if has_head else (HEAD,),
        writer=written_by("transformers", config.get("transformers_version")),
    )


def _counterparts(tensors: Mapping[str, Tensor], blank: int, model: str, has_head: bool) -> Counterparts:
    """Return the tensors of a model by the names that it has."""
    prefix = f"{model}." if any(name.startswith(f"{model}.") for name in tensors) else ""
    kernel = next((each for each in KERNELS if f"{prefix}{POSITIONS}.{each[0]}" in tensors), KERNELS[0])
    found = counterparts(blank, prefix, kernel)
    extra = [] if has_head else [name for name in tensors if name.startswith(PRE_TRAINING)]
    return found._replace(unneeded=(*found.unneeded, *extra))


read_wav2vec2, read_hubert = partial(read, MODEL), partial(read, HUBERT)


fits = has_encoder(ENCODER)


def write(bundle: Bundle, path: Path) -> dict[str, bytes]:
    """Convert a bundle to the files of a folder for transformers, by name."""
    config = bundle.config
    check_parts(config, "Hugging Face", PARTS)
    model, encoder = bundle_recognizer(bundle, path).model, config["encoder"]
    features, block, subsampling = model.features, encoder["block"], encoder["subsampling"]
    if (features.window, features.hop) != (WINDOW, HOP):
        must = f"features must have frames of {WINDOW} samples, {HOP} samples apart, for conversion to Hugging Face"
        raise InputError(f"{must}; got {features.window} and {features.hop}.")
    characters = give_characters(config["tokenizer"], bundle.files, model.tokenizer.pieces, PROCESSOR)
    written = {
        "architectures": ["Wav2Vec2ForCTC"],
        "model_type": MODEL,
        "dtype": "float32",
        "vocab_size": model.tokenizer.vocab_size,
        "pad_token_id": characters.blank,
        "bos_token_id": None,
        "eos_token_id": None,
        "hidden_size": encoder["dim"],
        "num_hidden_layers": encoder["num_layers"],
        "num_attention_heads": block["num_heads"],
        "intermediate_size": round(block["feed_forward_factor"] * encoder["dim"]),
        "hidden_act": "gelu",
        "layer_norm_eps": EPS,
        "feat_extract_norm": "layer",
        "feat_extract_activation": "gelu",
        "do_stable_layer_norm": True,
        "conv_dim": len(STRIDES) * [subsampling["num_channels"]],
        "conv_kernel": [*KERNEL_SIZES],
        "conv_stride": [*STRIDES],
        "conv_bias": subsampling["bias"],
        "num_conv_pos_embeddings": encoder["position_kernel_size"],
        "num_conv_pos_embedding_groups": encoder["position_groups"],
        "add_adapter": False,
        "feat_proj_dropout": subsampling["dropout"],
        "final_dropout": 0.0,
        "layerdrop": 0.0,
        "mask_time_prob": 0.0,  # otherwise the model has a vector for masked frames
        "mask_feature_prob": 0.0,
        **dict.fromkeys(DROPOUTS, block["dropout"]),
    }
    preprocessor = {
        **give_extractor(EXTRACTOR, PROCESSOR, features.sample_rate),
        "feature_size": 1,
        "do_normalize": config["features"]["unit_variance"],
    }
    tensors = give(model.state_dict(), counterparts(characters.blank))
    return {
        CONFIG: to_json(written),
        PREPROCESSOR: to_json(preprocessor),
        VOCAB: to_json(characters.vocab),
        TOKENIZER_CONFIG: to_json(characters.settings),
        WEIGHTS: save(tensors, {"format": "pt"}),
    }
