"""Conversion between NVIDIA NeMo's config of a Conformer-CTC and asr's config.

An unknown key, or a setting that asr does not support, is an error.
"""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import yaml

from asr.errors import InputError, one_line, shown
from asr.interchange.foreign import EPS, FULL_ATTENTION, LOCAL_ATTENTION, check_parts
from asr.interchange.section import Section, as_yaml, check, mapping, whole
from asr.settings.conf import default_settings

MAX_YAML_BYTES = 2 << 20  # enough for a vocabulary of a hundred thousand pieces; PyYAML is slow with larger files
LOG_FLOOR = 2.0**-24
LOCAL = "rel_pos_local_attn"
ATTENTIONS = {FULL_ATTENTION: "rel_pos", LOCAL_ATTENTION: LOCAL}  # asr's name: NeMo's self_attention_model
AUXILIARY = "ctc_decoder"  # prefix of the names of the tensors of a hybrid's CTC head
MODELS = "nemo.collections.asr.models"
SUBSAMPLINGS = {"strided_conv": ("striding", 4), "depthwise_conv": ("dw_striding", 8)}  # NeMo's name and factor


class CTCHead(NamedTuple):
    """The CTC head of a model.

    Args:
        settings: settings of the head.
        name: name of the head's section in the config.
        tensors: prefix of the names of the head's tensors.
    """

    settings: Section
    name: str
    tensors: str


# Keys that may have any value here: they are converted or checked elsewhere, or do not affect a trained model's output.
ENCODER_KEYS = {
    "_target_",
    *("feat_in", "n_layers", "d_model", "n_heads", "ff_expansion_factor", "xscaling", "conv_kernel_size"),
    *("subsampling_conv_channels", "subsampling_conv_chunking_factor", "reduction_position", "reduction_factor"),
    *("untie_biases", "pos_emb_max_len", "att_context_probs", "global_tokens_spacing", "global_attn_separate"),
    *("dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att", "sync_max_audio_length"),
    *("stochastic_depth_drop_prob", "stochastic_depth_mode", "stochastic_depth_start_layer"),
    *("use_pytorch_sdpa", "use_pytorch_sdpa_backends"),
}
PREPROCESSOR_KEYS = {
    "_target_",
    *("sample_rate", "window_size", "window_stride", "n_window_size", "n_window_stride", "features"),
    *("dither", "pad_to", "pad_value", "rng", "nb_augmentation_prob", "nb_max_freq", "stft_exact_pad", "stft_conv"),
}


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, except that `1:30` is text and not a number in base 60.

    Parsing a long number in base 60 takes minutes.
    The class does not use libyaml, which crashes on deeply nested brackets.
    """

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int | str:
        return node.value if ":" in node.value else super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float | str:
        return node.value if ":" in node.value else super().construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def parse(content: bytes, where: object) -> dict[str, Any]:
    """Parse a config with YAML's safe loader.

    Raises:
        InputError: the config is not YAML of plain values, or is too large.
    """
    if len(content) > MAX_YAML_BYTES:
        raise InputError(f"{where} must have at most {MAX_YAML_BYTES:,} bytes; it has {len(content):,}.")
    try:
        config = yaml.load(content, _Loader)  # safe: _Loader is a subclass of SafeLoader
    except (yaml.YAMLError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise InputError(f"{where} must be YAML of plain values; {one_line(error) or 'it is damaged'}.") from None
    return dict(mapping(config, str(where)))


def with_used_heads(config: Section, tensors: Collection[str]) -> dict[str, Any]:
    """Remove the sections of heads that a model does not have: Parakeet-TDT v2 and v3 keep an empty `aux_ctc`.

    The model's class determines its heads; if asr does not know the class, the tensors do.
    """
    target = config.get("target")
    name = target.rpartition(".")[2] if isinstance(target, str) else ""
    kind = re.match("EncDec(Hybrid|RNNT|CTC)", name)
    has_head = {
        "aux_ctc": kind[1] == "Hybrid" if kind else any(tensor.startswith(f"{AUXILIARY}.") for tensor in tensors),
        "joint": kind is None or kind[1] != "CTC",
    }
    return {key: section for key, section in config.items() if has_head.get(key, True)}


def ctc_head(config: Section) -> CTCHead:
    """Return the CTC head; the model may also have a transducer.

    Raises:
        InputError: there is no CTC head, or asr does not support it.
    """
    auxiliary = config.get("aux_ctc")
    if isinstance(auxiliary, Mapping):
        name, tensors = "aux_ctc.decoder", AUXILIARY
        settings = mapping(auxiliary.get("decoder"), name)
    else:
        name, tensors = "decoder", "decoder"
        settings = mapping(config.get("decoder"), name)
    check_class(settings, name, "ConvASRDecoder", "a CTC head")
    if settings.get("add_blank", True) is not True:
        raise InputError(f"{name}.add_blank must be true: a CTC head has a blank; got {shown(settings['add_blank'])}.")
    return CTCHead(settings, name, tensors)


def encoder_config(config: Section) -> dict[str, Any]:
    """Return the config of asr's encoder.

    Raises:
        InputError: asr does not support a setting.
    """
    nemo = mapping(config.get("encoder"), "encoder")
    check_class(nemo, "encoder", "ConformerEncoder", "a Conformer")
    dim, kernel_size = whole(nemo, "encoder.d_model"), whole(nemo, "encoder.conv_kernel_size", 31)
    context = kernel_size // 2
    theirs, is_local = nemo.get("subsampling", "striding"), nemo.get("self_attention_model") == LOCAL
    subsampling = next((ours for ours, (kind, _) in SUBSAMPLINGS.items() if kind == theirs), "strided_conv")
    check(
        nemo,
        "encoder",
        ENCODER_KEYS | ({"att_context_size"} if is_local else set()),
        {
            "feat_out": (-1, (-1, 0, None, dim)),
            "causal_downsampling": (False, (False,)),
            "subsampling": ("striding", tuple(kind for kind, _ in SUBSAMPLINGS.values())),
            "subsampling_factor": (4, (SUBSAMPLINGS[subsampling][1],)),
            "reduction": (None, (None, False)),
            "self_attention_model": ("rel_pos", tuple(ATTENTIONS.values())),
            **({} if is_local else {"att_context_size": (None, (None, [-1, -1], [[-1, -1]]))}),
            "att_context_style": ("regular", ("regular",)),
            "att_chunk_context_size": (None, (None,)),
            "conv_norm_type": ("batch_norm", ("batch_norm",)),
            "conv_context_size": (None, (None, [context, context])),
            "conv_context_style": ("regular", ("regular",)),
            "use_bias": (True, (True, False)),
            "global_tokens": (0, (0,)),
        },
    )
    channels = whole(nemo, "encoder.subsampling_conv_channels", -1)
    dropout, bias = nemo.get("dropout", 0.1), bool(nemo.get("use_bias", True))
    return {
        "name": "conformer",
        "dim": dim,
        "num_layers": whole(nemo, "encoder.n_layers"),
        "num_heads": whole(nemo, "encoder.n_heads", 4),
        "feed_forward_factor": nemo.get("ff_expansion_factor", 4),
        "feed_forward_bias": bias,
        "dropout": dropout,
        "subsampling": {
            "name": subsampling,
            "num_channels": dim if channels == -1 else channels,
            "dropout": nemo.get("dropout_pre_encoder", dropout),
        },
        "attention": _local_attention(nemo, bias) if is_local else {"name": FULL_ATTENTION, "bias": bias},
        "convolution": {"name": "depthwise_convolution", "kernel_size": kernel_size, "bias": bias},
        "norm": default_settings("encoder/norm", "masked_batch_norm") | {"eps": EPS},
        "activation": default_settings("encoder/activation", "swish"),
    }


def _local_attention(nemo: Section, bias: bool) -> dict[str, Any]:
    """Return the config of asr's local attention."""
    given = nemo.get("att_context_size")
    sides = given[0] if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list) else given
    if not isinstance(sides, list) or len(sides) != 2 or sides[0] != sides[1]:
        must = f"encoder.att_context_size must be equal on both sides, such as [128, 128], with {LOCAL}"
        raise InputError(f"{must}; got {as_yaml(given)}.")
    return {"name": LOCAL_ATTENTION, "context": sides[0], "bias": bias}


def scale(config: Section) -> float:
    """Return the factor by which NeMo scales the subsampling's output; asr does not scale it."""
    encoder = mapping(config.get("encoder"), "encoder")
    return math.sqrt(whole(encoder, "encoder.d_model")) if encoder.get("xscaling", True) else 1.0


def features_config(config: Section, pad_mode: str) -> dict[str, Any]:
    """Return the config of asr's features.

    Args:
        config: NeMo's config.
        pad_mode: padding of the waveform at both ends, which the config does not contain.

    Raises:
        InputError: asr does not support a setting.
    """
    nemo = mapping(config.get("preprocessor"), "preprocessor")
    check_class(nemo, "preprocessor", "AudioToMelSpectrogramPreprocessor", "log-mel features")
    sample_rate = whole(nemo, "preprocessor.sample_rate", 16000)
    window, hop = (_samples(nemo, name, seconds, sample_rate) for name, seconds in (("size", 0.02), ("stride", 0.01)))
    check(
        nemo,
        "preprocessor",
        PREPROCESSOR_KEYS,
        {
            "window": ("hann", ("hann",)),
            "normalize": ("per_feature", ("per_feature",)),
            "n_fft": (None, (None, 1 << (window - 1).bit_length())),
            "preemph": (0.97, (0.97,)),
            "lowfreq": (0, (0,)),
            "highfreq": (None, (None, 0, sample_rate / 2)),
            "log": (True, (True,)),
            "log_zero_guard_type": ("add", ("add",)),
            "log_zero_guard_value": (LOG_FLOOR, (LOG_FLOOR,)),
            "frame_splicing": (1, (1,)),
            "exact_pad": (False, (False,)),
            "mag_power": (2.0, (2.0,)),
            "mel_norm": ("slaney", ("slaney",)),
            "use_torchaudio": (False, (False,)),
        },
    )
    return {
        "name": "slaney_fbank",
        "sample_rate": sample_rate,
        "num_mel_bins": whole(nemo, "preprocessor.features", 64),
        "frame_length_seconds": window / sample_rate,
        "frame_shift_seconds": hop / sample_rate,
        "pad_mode": pad_mode,
        "normalize": default_settings("features/normalize", "utterance_cmvn") | {"eps": EPS},
    }


def nemo_config(config: Section, vocabulary: list[str], tokenizer: Section) -> dict[str, Any]:
    """Convert the config of an asr model, without its head, to a config of NeMo.

    Args:
        config: config of the asr model.
        vocabulary: vocabulary of the head, without blank.
        tokenizer: section of the tokenizer in NeMo's config; empty if tokens are characters.

    Raises:
        InputError: the model has a part that NeMo does not have.
    """
    check_parts(config, "NeMo", tuple(SUBSAMPLINGS), tuple(ATTENTIONS))
    encoder, features = config["encoder"], config["features"]
    if encoder["feed_forward_factor"] != int(encoder["feed_forward_factor"]):
        must = "encoder.feed_forward_factor must be a whole number for conversion to NeMo"
        raise InputError(f"{must}; got {encoder['feed_forward_factor']}.")
    if len({encoder["feed_forward_bias"], encoder["attention"]["bias"], encoder["convolution"]["bias"]}) > 1:
        must = "encoder.feed_forward_bias, attention.bias and convolution.bias must be equal for conversion to NeMo"
        raise InputError(f"{must}; got true and false.")
    window = round(features["frame_length_seconds"] * features["sample_rate"])
    return {
        "sample_rate": features["sample_rate"],
        "log_prediction": True,
        **({"tokenizer": dict(tokenizer)} if tokenizer else {"labels": vocabulary}),
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": features["sample_rate"],
            "normalize": "per_feature",
            "window_size": features["frame_length_seconds"],
            "window_stride": features["frame_shift_seconds"],
            "window": "hann",
            "features": features["num_mel_bins"],
            "n_fft": 1 << (window - 1).bit_length(),
            "dither": 1e-5,
            "pad_to": 0,
        },
        "encoder": _nemo_encoder(encoder, features["num_mel_bins"]),
    }


def ctc_sections(config: Section, vocabulary: list[str], is_subword: bool) -> dict[str, Any]:
    """Return the sections of NeMo's config for a model that has only a CTC head.

    Args:
        config: config of the asr model.
        vocabulary: vocabulary of the head, without blank.
        is_subword: whether tokens are subwords, not characters.
    """
    kind = "ctc_bpe_models.EncDecCTCModelBPE" if is_subword else "ctc_models.EncDecCTCModel"
    return {
        "target": f"{MODELS}.{kind}",
        "ctc_reduction": "mean_batch",
        "decoder": ctc_decoder(config["encoder"]["dim"], vocabulary),
    }


def ctc_decoder(dim: int, vocabulary: list[str]) -> dict[str, Any]:
    """Return the section of NeMo's config for a CTC head."""
    return {
        "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
        "feat_in": dim,
        "num_classes": len(vocabulary),
        "vocabulary": vocabulary,
    }


def _nemo_encoder(encoder: Section, num_mel_bins: int) -> dict[str, Any]:
    attention, (subsampling, factor) = encoder["attention"], SUBSAMPLINGS[encoder["subsampling"]["name"]]
    return {
        "_target_": "nemo.collections.asr.modules.ConformerEncoder",
        "feat_in": num_mel_bins,
        "feat_out": -1,
        "n_layers": encoder["num_layers"],
        "d_model": encoder["dim"],
        "subsampling": subsampling,
        "subsampling_factor": factor,
        "subsampling_conv_channels": encoder["subsampling"]["num_channels"],
        "ff_expansion_factor": int(encoder["feed_forward_factor"]),
        "self_attention_model": ATTENTIONS[attention["name"]],
        **({"att_context_size": 2 * [attention["context"]]} if attention["name"] == LOCAL_ATTENTION else {}),
        "n_heads": encoder["num_heads"],
        "xscaling": False,  # asr's weights of the subsampling contain the scale
        "untie_biases": True,
        "conv_kernel_size": encoder["convolution"]["kernel_size"],
        "conv_norm_type": "batch_norm",
        "use_bias": encoder["attention"]["bias"],
        "dropout": encoder["dropout"],
        "dropout_pre_encoder": encoder["subsampling"]["dropout"],
        "dropout_emb": 0.0,
        "dropout_att": encoder["dropout"],
    }


def check_class(settings: Section, name: str, cls: str, part: str) -> None:
    """Check that a section configures NeMo's class `cls`."""
    target = settings.get("_target_")
    if not isinstance(target, str) or target.rpartition(".")[2] != cls:
        raise InputError(f"{name} must be {part}, NeMo's {cls}, which asr supports; got {shown(target)}.")


def _samples(settings: Section, name: str, default: float, sample_rate: int) -> int:
    """Return the length of a window or hop in samples; NeMo rounds seconds down to whole samples."""
    given = settings.get(f"n_window_{name}")
    seconds = settings.get(f"window_{name}", default)
    samples = given if given is not None else seconds * sample_rate if isinstance(seconds, float) else None
    if not isinstance(samples, int | float) or not 1 <= samples <= sample_rate:
        raise InputError(f"preprocessor.window_{name} must be a number of seconds, at most 1; got {as_yaml(seconds)}.")
    return int(samples)
