"""w2v-BERT 2.0 of Hugging Face's transformers: a Conformer with Shaw's relative positions, with or without CTC head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save

from asr.apps.convert.account import THREE, Counterparts, Layout, give, outputs
from asr.apps.convert.conformer import CONFORMER, CTC, EPS, HEAD, Names
from asr.apps.convert.foreign import CTC_HEAD, Choices, ModelParts, Weights, written_by
from asr.apps.convert.huggingface.config import GENERAL_KEYS
from asr.apps.convert.huggingface.extractor import EXTRACTOR_KEYS, check_kind, give_extractor
from asr.apps.convert.huggingface.files import Folder, pop_weights, to_json
from asr.apps.convert.section import Section, check, check_parts, whole
from asr.apps.zoo.vocab_json import characters_of, give_characters, read_characters
from asr.base.settings.conf import default_settings
from asr.core.build import PROMPT
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.core.hub.huggingface_files import CONFIG, PREPROCESSOR, TOKENIZER_CONFIG, VOCAB, WEIGHTS
from asr.errors import InputError

MODEL = "wav2vec2-bert"  # model_type
ADAPTER = "conformer_adapter"
WINDOW, HOP = 400, 160  # samples, in transformers' code
VARIANCE_EPS = 1e-7
STACKED = 2  # frames
MASK = "masked_spec_embed"  # stands for masked frames, in training
PREFIX = "wav2vec2_bert."  # before the names of the encoder's tensors in a model with a head
MAX_ADAPTER_LAYERS = 100
EXTRACTOR, PROCESSOR = "SeamlessM4TFeatureExtractor", "Wav2Vec2BertProcessor"
DROPOUTS = ("hidden_dropout", "activation_dropout", "attention_dropout")

# Keys that may have any value: they do not affect the output of a trained model, or are converted below.
TRAINING_KEYS = {
    *("final_dropout", "layerdrop", "conformer_conv_dropout", "apply_spec_augment", *DROPOUTS, "feat_proj_dropout"),
    *("mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob", "mask_feature_length"),
    *("mask_feature_min_masks", "ctc_loss_reduction", "ctc_zero_infinity", "use_weighted_layer_sum"),
    *("classifier_proj_size", "tdnn_dim", "tdnn_kernel", "tdnn_dilation", "xvector_output_dim", "num_negatives"),
    *("codevector_dim", "proj_codevector_dim", "num_codevectors_per_group", "num_codevector_groups"),
    *("contrastive_logits_temperature", "diversity_loss_weight", "feat_quantizer_dropout"),
}
KEYS = {
    *GENERAL_KEYS,
    *TRAINING_KEYS,
    *("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "hidden_size", "num_hidden_layers"),
    *("num_attention_heads", "intermediate_size", "feature_projection_input_dim", "conv_depthwise_kernel_size"),
    *("left_max_position_embeddings", "right_max_position_embeddings", "add_adapter", "num_adapter_layers"),
    *("rotary_embedding_base", "max_source_positions"),
}
FBANK = {"snip_edges": True, "high_hertz": 0, "full_scale": 32768}  # Kaldi's defaults
PARTS: dict[str, tuple[object, ...]] = {  # parts of asr that the model has
    PROMPT: (),
    "encoder": (CONFORMER, ADAPTER),
    "encoder.last_norm": (False,),
    "encoder.block": ("conformer_block",),
    "encoder.subsampling": ("stacked_frames",),
    "encoder.subsampling.factor": (STACKED,),
    "encoder.block.attention": ("shaw_attention",),
    "encoder.block.convolution": ("causal_convolution",),
    "encoder.block.convolution.bias": (False,),
    "encoder.block.norm": ("layer_norm",),
    "encoder.block.norm.eps": (EPS,),
    "encoder.block.activation": ("swish",),
    "encoder.block.activation.beta": (1,),
    "encoder.block.feed_forward_bias": (True,),
    "features": ("fbank",),
    **{f"features.{key}": (value,) for key, value in FBANK.items()},
    "features.normalize": ("unit_variance",),
    "features.normalize.eps": (VARIANCE_EPS,),
    "head": (CTC,),
}
BLOCK: dict[str, str | tuple[str, ...]] = {
    "norm_feed_forward1": "ffn1_layer_norm",
    "feed_forward1.linear1": "ffn1.intermediate_dense",
    "feed_forward1.linear2": "ffn1.output_dense",
    "norm_attention": "self_attn_layer_norm",
    "attention.qkv": ("self_attn.linear_q", "self_attn.linear_k", "self_attn.linear_v"),
    "attention.distances": "self_attn.distance_embedding",
    "attention.output": "self_attn.linear_out",
    "norm_convolution": "conv_module.layer_norm",
    "convolution.pointwise1": "conv_module.pointwise_conv1",
    "convolution.depthwise": "conv_module.depthwise_conv",
    "convolution.norm.norm": "conv_module.depthwise_layer_norm",
    "convolution.pointwise2": "conv_module.pointwise_conv2",
    "norm_feed_forward2": "ffn2_layer_norm",
    "feed_forward2.linear1": "ffn2.intermediate_dense",
    "feed_forward2.linear2": "ffn2.output_dense",
    "norm_output": "final_layer_norm",
}
ADAPTER_BLOCK = {
    "norm_residual": "residual_layer_norm",
    "conv_residual": "residual_conv",
    "norm_attention": "self_attn_layer_norm",
    "conv_attention": "self_attn_conv",
    "output": "self_attn.linear_out",
    "norm_feed_forward": "ffn_layer_norm",
    "feed_forward.linear1": "ffn.intermediate_dense",
    "feed_forward.linear2": "ffn.output_dense",
}
QKV = tuple(f"self_attn.linear_{name}" for name in "qkv")


def counterparts(blank: int, num_adapter_layers: int, prefix: str = PREFIX) -> Counterparts:
    """Return the tensors of a model.

    Args:
        blank: index of the blank among the outputs of the head.
        num_adapter_layers: number of adapter blocks.
        prefix: beginning of the names of the encoder's tensors; "" in a model without a head.
    """
    projection = f"{prefix}feature_projection"
    outside = {
        "encoder.subsampling.norm": f"{projection}.layer_norm",
        "encoder.subsampling.linear": f"{projection}.projection",
    }
    others: dict[str, tuple[tuple[str, ...], Layout]] = {
        f"{HEAD}.{kind}": ((f"lm_head.{kind}",), outputs(blank)) for kind in ("weight", "bias")
    }
    for number in range(num_adapter_layers):
        ours, theirs = f"encoder.adapter.{number}", f"{prefix}adapter.layers.{number}"
        outside |= {f"{ours}.{part}": f"{theirs}.{name}" for part, name in ADAPTER_BLOCK.items()}
        for kind in ("weight", "bias"):
            others[f"{ours}.qkv.{kind}"] = (tuple(f"{theirs}.{name}.{kind}" for name in QKV), THREE)
    names = Names("Hugging Face", outside, f"{prefix}encoder.layers", BLOCK, blank, others)
    return Counterparts(names.row, unneeded=(f"{prefix}{MASK}",))


def encoder_config(config: Section, num_adapter_layers: int) -> dict[str, Any]:
    """Return the config of asr's encoder."""
    dim = whole(config, "config.hidden_size", 1024)
    check(
        config,
        "config",
        KEYS,
        {
            "hidden_act": ("swish", ("swish", "silu")),
            "layer_norm_eps": (EPS, (EPS,)),
            "position_embeddings_type": ("relative_key", ("relative_key",)),
            "output_hidden_size": (None, (None, dim)),
            "use_intermediate_ffn_before_adapter": (False, (False,)),
            "adapter_kernel_size": (3, (3,)),
            "adapter_stride": (2, (2,)),
            "adapter_act": ("relu", ("relu",)),
        },
    )
    inner = whole(config, "config.intermediate_size", 4096)
    return {
        "name": ADAPTER if num_adapter_layers else CONFORMER,
        "dim": dim,
        "num_layers": whole(config, "config.num_hidden_layers", 24),
        "last_norm": False,
        "subsampling": {"name": "stacked_frames", "factor": STACKED, "dropout": config.get("feat_proj_dropout", 0.0)},
        "block": {
            "name": "conformer_block",
            "num_heads": whole(config, "config.num_attention_heads", 16),
            "feed_forward_factor": inner / dim if dim > 0 else inner,  # asr's encoder refuses an invalid dim
            "feed_forward_bias": True,
            "dropout": config.get("hidden_dropout", 0.0),
            "attention": {
                "name": "shaw_attention",
                "left": whole(config, "config.left_max_position_embeddings", 64),
                "right": whole(config, "config.right_max_position_embeddings", 8),
            },
            "convolution": {
                "name": "causal_convolution",
                "kernel_size": whole(config, "config.conv_depthwise_kernel_size", 31),
                "bias": False,
            },
            "norm": default_settings("encoder/block/norm", "layer_norm") | {"eps": EPS},
            "activation": default_settings("encoder/block/activation", "swish"),
        },
        **({"num_adapter_layers": num_adapter_layers} if num_adapter_layers else {}),
    }


def features_config(config: Section, preprocessor: Section) -> dict[str, Any]:
    """Return the config of asr's features."""
    check_kind(preprocessor, EXTRACTOR)
    bins = whole(preprocessor, "preprocessor.num_mel_bins", 80)
    fixed = {"stride": (STACKED, (STACKED,)), "feature_size": (bins, (bins,))}
    check(preprocessor, "preprocessor", EXTRACTOR_KEYS | {"num_mel_bins"}, fixed)
    input_dim = whole(config, "config.feature_projection_input_dim", 160)
    if input_dim != STACKED * bins:
        must = f"config.feature_projection_input_dim must be {STACKED} times preprocessor.num_mel_bins"
        raise InputError(f"{must}, {STACKED * bins}; got {input_dim}.")
    sample_rate = whole(preprocessor, "preprocessor.sampling_rate", 16000)
    if sample_rate < WINDOW:
        raise InputError(f"preprocessor.sampling_rate must be at least {WINDOW} Hz; got {sample_rate}.")
    return {
        "name": "fbank",
        **FBANK,
        "sample_rate": sample_rate,
        "num_mel_bins": bins,
        "frame_length_seconds": WINDOW / sample_rate,
        "frame_shift_seconds": HOP / sample_rate,
        "normalize": default_settings("features/normalize", "unit_variance") | {"eps": VARIANCE_EPS},
    }


def read(folder: Folder, choices: Choices) -> ModelParts:
    """Convert the files of a folder, of which the weights are removed."""
    files, config, preprocessor, _ = folder
    if choices.pad_mode != "zeros":
        raise InputError(f"--pad-mode must be zeros for {MODEL}, whose frames are not centred; got {choices.pad_mode}.")
    features = features_config(config, preprocessor)
    has_adapter = config.get("add_adapter", False) is True
    num_adapter_layers = whole(config, "config.num_adapter_layers", 1) if has_adapter else int(choices.adapter)
    if not int(has_adapter) <= num_adapter_layers <= MAX_ADAPTER_LAYERS:
        must = f"config.num_adapter_layers must be a number from 1 to {MAX_ADAPTER_LAYERS}"
        raise InputError(f"{must}; got {num_adapter_layers}.")
    encoder = encoder_config(config, num_adapter_layers)
    tensors, sha256 = pop_weights(files)
    has_head = any(name.startswith("lm_head.") for name in tensors)
    if choices.adapter and (has_head or has_adapter):
        given = " and ".join([*(["a head"] if has_head else []), *(["an adapter"] if has_adapter else [])])
        raise InputError(f"--adapter needs a model without head and adapter; this one has {given}.")
    if has_head and choices.texts is not None:
        raise InputError("--texts adds a head to a model without one; this one has a head (lm_head).")
    if not has_head and choices.texts is None:
        raise InputError("the model must have a head (lm_head); it has none. Add a new one with --texts TRAIN.jsonl.")
    vocabulary, blank = read_characters(files, config) if choices.texts is None else (characters_of(choices.texts), 0)
    prefix = PREFIX if any(name.startswith(PREFIX) for name in tensors) else ""
    return ModelParts(
        vocabulary,
        features,
        encoder,
        Weights(tensors, sha256, counterparts(blank, num_adapter_layers, prefix)),
        CTC_HEAD,
        new=() if has_head else (HEAD, *(["encoder.adapter"] if choices.adapter else [])),
        writer=written_by("transformers", config.get("transformers_version")),
    )


def fits(config: Section) -> bool:
    """Whether a model of asr, given its config, has the attention of w2v-BERT 2.0."""
    attention = config["encoder"].get("block", {}).get("attention")
    return isinstance(attention, Mapping) and attention.get("name") == "shaw_attention"


def write(bundle: Bundle, path: Path) -> dict[str, bytes]:
    """Convert a bundle to the files of a folder for transformers, by name."""
    config = bundle.config
    check_parts(config, "Hugging Face", PARTS)
    model, encoder = bundle_recognizer(bundle, path).model, config["encoder"]
    features, block = model.features, encoder["block"]
    if (features.window, features.hop) != (WINDOW, HOP):
        must = f"features must have frames of {WINDOW} samples, {HOP} samples apart, for conversion to Hugging Face"
        raise InputError(f"{must}; got {features.window} and {features.hop}.")
    characters = give_characters(config["tokenizer"], bundle.files, model.tokenizer.pieces, PROCESSOR)
    num_adapter_layers = encoder.get("num_adapter_layers", 0)
    written = {
        "architectures": ["Wav2Vec2BertForCTC"],
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
        "feature_projection_input_dim": STACKED * features.dim,
        "hidden_act": "swish",
        "layer_norm_eps": EPS,
        "position_embeddings_type": "relative_key",
        "left_max_position_embeddings": block["attention"]["left"],
        "right_max_position_embeddings": block["attention"]["right"],
        "conv_depthwise_kernel_size": block["convolution"]["kernel_size"],
        "add_adapter": num_adapter_layers > 0,
        "num_adapter_layers": max(1, num_adapter_layers),
        "adapter_kernel_size": 3,
        "adapter_stride": 2,
        "adapter_act": "relu",
        "output_hidden_size": encoder["dim"],
        "use_intermediate_ffn_before_adapter": False,
        "feat_proj_dropout": encoder["subsampling"]["dropout"],
        "final_dropout": 0.0,
        "layerdrop": 0.0,
        "conformer_conv_dropout": block["dropout"],
        "mask_time_prob": 0.0,  # otherwise the model has a vector for masked frames
        "mask_feature_prob": 0.0,
        **dict.fromkeys(DROPOUTS, block["dropout"]),
    }
    preprocessor = {
        **give_extractor(EXTRACTOR, PROCESSOR, features.sample_rate),
        "feature_size": features.dim,
        "num_mel_bins": features.dim,
        "stride": STACKED,
    }
    tensors = give(model.state_dict(), counterparts(characters.blank, num_adapter_layers))
    return {
        CONFIG: to_json(written),
        PREPROCESSOR: to_json(preprocessor),
        VOCAB: to_json(characters.vocab),
        TOKENIZER_CONFIG: to_json(characters.settings),
        WEIGHTS: save(tensors, {"format": "pt"}),
    }
