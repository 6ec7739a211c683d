"""NVIDIA NeMo's config of a Conformer-CTC, and ours of the same net.

Whatever a config asks for must be known: what asr does not have is named, and so is a key that asr has never heard of.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from asr.errors import InputError, one_line, shown
from asr.interchange.foreign import EPS, check_parts
from asr.interchange.section import Section, as_yaml, check, mapping, whole
from asr.settings.conf import default_settings

MAX_YAML_BYTES = 2 << 20  # a vocabulary of a hundred thousand pieces; more would take PyYAML long
LOG_FLOOR = 2.0**-24
MODELS = "nemo.collections.asr.models"
SUBSAMPLINGS = {"strided_conv": ("striding", 4), "depthwise_conv": ("dw_striding", 8)}  # NeMo's name and factor


class CTCHead(NamedTuple):
    """Where a model's CTC head is.

    Args:
        settings: of the head.
        name: of its section in the config.
        tensors: what its tensors' names begin with.
    """

    settings: Section
    name: str
    tensors: str


# Keys that change nothing of what a trained model computes, beside those that are checked or taken.
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
    """YAML's safe loader, but for numbers to base 60, `1:30`, which remain text: long ones take minutes.

    Not libyaml's loader: brackets in brackets end the process.
    """

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int | str:
        return node.value if ":" in node.value else super().construct_yaml_int(node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float | str:
        return node.value if ":" in node.value else super().construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)


def parse(content: bytes, where: object) -> dict[str, Any]:
    """Read a config by YAML's safe loader.

    Raises:
        InputError: it is none, or asks for objects, or has no CTC head and no Conformer.
    """
    if len(content) > MAX_YAML_BYTES:
        raise InputError(f"{where} must have at most {MAX_YAML_BYTES:,} bytes; it has {len(content):,}.")
    try:
        config = yaml.load(content, _Loader)  # which is a SafeLoader
    except (yaml.YAMLError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise InputError(f"{where} must be YAML of plain values; {one_line(error) or 'it is damaged'}.") from None
    return dict(mapping(config, str(where)))


def ctc_head(config: Section) -> CTCHead:
    """Find the CTC head: a model's own, or the one beside a transducer.

    Raises:
        InputError: there is none.
    """
    auxiliary = config.get("aux_ctc")
    if isinstance(auxiliary, Mapping):
        name, tensors = "aux_ctc.decoder", "ctc_decoder"
        settings = mapping(auxiliary.get("decoder"), name)
    else:
        name, tensors = "decoder", "decoder"
        settings = mapping(config.get("decoder"), name)
    check_class(settings, name, "ConvASRDecoder", "a CTC head")
    if settings.get("add_blank", True) is not True:
        raise InputError(f"{name}.add_blank must be true: a CTC head has a blank; got {shown(settings['add_blank'])}.")
    return CTCHead(settings, name, tensors)


def encoder_config(config: Section) -> dict[str, Any]:
    """Make the config of our encoder.

    Raises:
        InputError: NeMo's asks for what we do not have.
    """
    nemo = mapping(config.get("encoder"), "encoder")
    check_class(nemo, "encoder", "ConformerEncoder", "a Conformer")
    dim, kernel_size = whole(nemo, "encoder.d_model"), whole(nemo, "encoder.conv_kernel_size", 31)
    context = kernel_size // 2
    theirs = nemo.get("subsampling", "striding")
    subsampling = next((ours for ours, (kind, _) in SUBSAMPLINGS.items() if kind == theirs), "strided_conv")
    check(
        nemo,
        "encoder",
        ENCODER_KEYS,
        {
            "feat_out": (-1, (-1, 0, None, dim)),
            "causal_downsampling": (False, (False,)),
            "subsampling": ("striding", tuple(kind for kind, _ in SUBSAMPLINGS.values())),
            "subsampling_factor": (4, (SUBSAMPLINGS[subsampling][1],)),
            "reduction": (None, (None, False)),
            "self_attention_model": ("rel_pos", ("rel_pos",)),
            "att_context_size": (None, (None, [-1, -1], [[-1, -1]])),
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
        "attention": {"name": "relative_attention", "bias": bias},
        "convolution": {"name": "depthwise_convolution", "kernel_size": kernel_size, "bias": bias},
        "norm": default_settings("encoder/norm", "masked_batch_norm") | {"eps": EPS},
        "activation": default_settings("encoder/activation", "swish"),
    }


def scale(config: Section) -> float:
    """Tell what NeMo multiplies the subsampling's output by, and we do not."""
    encoder = mapping(config.get("encoder"), "encoder")
    return math.sqrt(whole(encoder, "encoder.d_model")) if encoder.get("xscaling", True) else 1.0


def features_config(config: Section, pad_mode: str) -> dict[str, Any]:
    """Make the config of our features.

    Args:
        config: NeMo's.
        pad_mode: what stood around the waveform, of which the config says nothing.

    Raises:
        InputError: NeMo's asks for what we do not have.
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
    """Make NeMo's config of one of our models, but for what its head is.

    Args:
        config: ours.
        vocabulary: the head's, without blank.
        tokenizer: NeMo's section of it; empty, if tokens are characters.

    Raises:
        InputError: the model is of parts that NeMo does not have.
    """
    check_parts(config, "NeMo", tuple(SUBSAMPLINGS))
    encoder, features = config["encoder"], config["features"]
    if encoder["feed_forward_factor"] != int(encoder["feed_forward_factor"]):
        must = "encoder.feed_forward_factor must be a whole number, to be written as NeMo's"
        raise InputError(f"{must}; got {encoder['feed_forward_factor']}.")
    if len({encoder["feed_forward_bias"], encoder["attention"]["bias"], encoder["convolution"]["bias"]}) > 1:
        must = (
            "encoder.feed_forward_bias, attention.bias and convolution.bias must be the same, to be written as NeMo's"
        )
        raise InputError(f"{must}; got both.")
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
            "dither": 1e-5,
            "pad_to": 0,
        },
        "encoder": _nemo_encoder(encoder, features["num_mel_bins"]),
    }


def ctc_sections(config: Section, vocabulary: list[str], is_subword: bool) -> dict[str, Any]:
    """Make the sections of NeMo's config on a model with a CTC head alone.

    Args:
        config: ours.
        vocabulary: the head's, without blank.
        is_subword: whether tokens are subwords, not characters.
    """
    kind = "ctc_bpe_models.EncDecCTCModelBPE" if is_subword else "ctc_models.EncDecCTCModel"
    return {
        "target": f"{MODELS}.{kind}",
        "ctc_reduction": "mean_batch",
        "decoder": ctc_decoder(config["encoder"]["dim"], vocabulary),
    }


def ctc_decoder(dim: int, vocabulary: list[str]) -> dict[str, Any]:
    """Make the section of NeMo's config on a CTC head."""
    return {
        "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
        "feat_in": dim,
        "num_classes": len(vocabulary),
        "vocabulary": vocabulary,
    }


def _nemo_encoder(encoder: Section, num_mel_bins: int) -> dict[str, Any]:
    subsampling, factor = SUBSAMPLINGS[encoder["subsampling"]["name"]]
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
        "self_attention_model": "rel_pos",
        "n_heads": encoder["num_heads"],
        "xscaling": False,  # it is in the weights of the subsampling
        "untie_biases": True,
        "conv_kernel_size": encoder["convolution"]["kernel_size"],
        "conv_norm_type": "batch_norm",
        "use_bias": encoder["attention"]["bias"],
        "dropout": encoder["dropout"],
        "dropout_pre_encoder": encoder["subsampling"]["dropout"],
        "dropout_emb": 0.0,
        "dropout_att": encoder["dropout"],
    }


def check_class(settings: Section, name: str, cls: str, what: str) -> None:
    """Check which of NeMo's classes a section configures."""
    target = settings.get("_target_")
    if not isinstance(target, str) or target.rpartition(".")[2] != cls:
        raise InputError(f"{name} must be {what}, NeMo's {cls}, which asr can take; got {shown(target)}.")


def _samples(settings: Section, name: str, default: float, sample_rate: int) -> int:
    """Samples of a window, or from one to the next: given as they are, or in seconds, which NeMo rounds down."""
    given = settings.get(f"n_window_{name}")
    seconds = settings.get(f"window_{name}", default)
    samples = given if given is not None else seconds * sample_rate if isinstance(seconds, float) else None
    if not isinstance(samples, int | float) or not 1 <= samples <= sample_rate:
        raise InputError(f"preprocessor.window_{name} must be seconds, at most one; got {as_yaml(seconds)}.")
    return int(samples)
