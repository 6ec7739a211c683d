"""Conversion between NVIDIA NeMo's config of a Conformer-CTC and asr's config.

An unknown key, or a setting that asr does not support, is an error.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import yaml

from asr.apps.convert.conformer import EPS
from asr.apps.convert.section import Section, as_yaml, check, mapping, whole
from asr.base.settings.conf import default_settings
from asr.errors import InputError, one_line, shown

MAX_YAML_BYTES = 2 << 20  # enough for a vocabulary of a hundred thousand pieces; PyYAML is slow with larger files
LOG_FLOOR = 2.0**-24
AUXILIARY = "ctc_decoder"  # prefix of the names of the tensors of a hybrid's CTC head
MODELS = "nemo.collections.asr.models"
NORMALIZATIONS = {"utterance_cmvn": "per_feature", "none": "NA"}  # asr's name: NeMo's normalize


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
    """Parse a config with YAML's safe loader."""
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
    """Return the CTC head; the model may also have a transducer."""
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


def features_config(config: Section, pad_mode: str) -> dict[str, Any]:
    """Return the config of asr's features.

    Args:
        config: NeMo's config.
        pad_mode: padding of the waveform at both ends, which the config does not contain.
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
            "normalize": ("per_feature", tuple(NORMALIZATIONS.values())),
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
    cmvn = default_settings("features/normalize", "utterance_cmvn") | {"eps": EPS}
    return {
        "name": "slaney_fbank",
        "sample_rate": sample_rate,
        "num_mel_bins": whole(nemo, "preprocessor.features", 64),
        "frame_length_seconds": window / sample_rate,
        "frame_shift_seconds": hop / sample_rate,
        "pad_mode": pad_mode,
        "normalize": {"name": "none"} if nemo.get("normalize") == "NA" else cmvn,
    }


def nemo_config(config: Section, vocabulary: list[str], tokenizer: Section) -> dict[str, Any]:
    """Convert the config of an asr model, without encoder and head, to a config of NeMo.

    Args:
        config: config of the asr model.
        vocabulary: vocabulary of the head, without blank.
        tokenizer: section of the tokenizer in NeMo's config; empty if tokens are characters.
    """
    features = config["features"]
    window = round(features["frame_length_seconds"] * features["sample_rate"])
    return {
        "sample_rate": features["sample_rate"],
        "log_prediction": True,
        **({"tokenizer": dict(tokenizer)} if tokenizer else {"labels": vocabulary}),
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": features["sample_rate"],
            "normalize": NORMALIZATIONS[features["normalize"]["name"]],
            "window_size": features["frame_length_seconds"],
            "window_stride": features["frame_shift_seconds"],
            "window": "hann",
            "features": features["num_mel_bins"],
            "n_fft": 1 << (window - 1).bit_length(),
            "dither": 1e-5,
            "pad_to": 0,
        },
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
