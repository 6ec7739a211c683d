"""Names the kinds of models that `asr.convert` does not read, so that their refusal says what they are."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from asr.apps.convert.folder import read_folder
from asr.apps.convert.section import mapping
from asr.base.system.learnt import MAX_BYTES, parse_json
from asr.base.text.printable import printable
from asr.core.hub.huggingface_files import CONFIG
from asr.errors import InputError, shown

GUIDE = "docs/guide/convert.md lists the models that asr reads"
ATTENTION = f"It writes texts with an attention decoder, without CTC or a transducer. {GUIDE}"
LANGUAGE_MODEL = f"Its texts come from a language model. {GUIDE}"
OTHER_PARTS = f"It reads waveforms as wav2vec 2.0 does, but its encoder has parts that asr does not have. {GUIDE}"
ORIGINAL = "Give the model from which it was made: NeMo's archive, or the folder of transformers"
EXPORTED = "An exported program has no weights to train; give the model from which it was exported"
PACKAGE = f"{GUIDE}; another model needs a package that reads it: --plugin PACKAGE"
ICEFALL = "an exported model of icefall"
# Values of model_type in transformers.
MODEL_TYPES = {
    **dict.fromkeys(("whisper", "moonshine", "speech_to_text", "cohere_asr", "seamless_m4t_v2"), ATTENTION),
    **dict.fromkeys(("wavlm", "data2vec-audio", "sew", "sew-d"), OTHER_PARTS),
    **dict.fromkeys(("unispeech", "unispeech-sat", "omniasr", "omniasr_ctc"), PACKAGE),
    **dict.fromkeys(("granite_speech", "qwen2_audio", "qwen3_asr", "voxtral", "vibevoice_asr"), LANGUAGE_MODEL),
    **dict.fromkeys(("fun_asr_nano", "glmasr", "kyutai_speech_to_text", "nemo_speechlm"), LANGUAGE_MODEL),
    "wav2vec2-conformer": OTHER_PARTS,
    "gigaam": PACKAGE,
}
# Ends of the names of NeMo's classes.
CLASSES = {
    "EncDecMultiTaskModel": ATTENTION,
    "EncDecMultiTaskModelBPE": ATTENTION,
    "SALM": LANGUAGE_MODEL,
    "SortformerEncLabelModel": f"It says who speaks, and writes no texts. {GUIDE}",
    "EncDecSpeakerLabelModel": f"It says who speaks, and writes no texts. {GUIDE}",
    "EncDecClassificationModel": f"It writes labels, and no texts. {GUIDE}",
}


class UnreadModel(NamedTuple):
    """A kind of model that `asr.convert` does not read.

    Args:
        name: name of the kind.
        cure: what to do, a sentence without a stop.
    """

    name: str
    cure: str


# Patterns of the files of other toolkits; a folder with a file for each pattern of a tuple is of that kind.
FILES: dict[UnreadModel, tuple[tuple[str, ...], ...]] = {
    UnreadModel("a model of SpeechBrain", PACKAGE): (("hyperparams.yaml",),),
    UnreadModel("a model of WeNet", PACKAGE): (("train.yaml", "*.pt"), ("train.yaml", "units.txt")),
    UnreadModel("a model of ESPnet", PACKAGE): (("meta.yaml",), ("exp/*/config.yaml",), ("config.yaml", "*.pth")),
    UnreadModel(ICEFALL, EXPORTED): tuple(
        (f"{folder}{name}",) for folder in ("", "exp/") for name in ("jit_script*.pt", "cpu_jit*.pt")
    ),
    UnreadModel("a model of Kaldi or Vosk", PACKAGE): (("final.mdl",), ("am/final.mdl",)),
    UnreadModel("a model of fairseq", PACKAGE): (("dict.*.txt", "*.pt"),),
    UnreadModel("an exported model of sherpa-onnx", EXPORTED): (("*.onnx", "tokens.txt"),),
    UnreadModel("an exported model in ONNX", EXPORTED): (("*.onnx",),),
    UnreadModel("a Whisper model of whisper.cpp", ATTENTION): (("ggml-*.bin",),),
    UnreadModel("a Whisper model of CTranslate2", ATTENTION): (("model.bin", "vocabulary.*"),),
}


def kind_of(path: Path) -> UnreadModel | None:
    """Return the kind of a folder, if `asr.convert` knows it by name and does not read it.

    Raises:
        InputError: a config of the folder is damaged.
    """
    if not path.is_dir():
        return None
    for name in (CONFIG, "cfg.json"):
        if (path / name).is_file() and (kind := _of_config(path, name)):
            return kind
    names = [f"{prefix}{file.name}" for prefix in ("", "exp/", "am/") for file in _files(path / prefix)]
    names += [f"exp/{folder.name}/{file.name}" for folder in _files(path / "exp") for file in _files(folder)]

    def has_all(patterns: tuple[str, ...]) -> bool:
        return all(any(fnmatchcase(name, each) for name in names) for each in patterns)

    return next((kind for kind, choices in FILES.items() if any(map(has_all, choices))), None)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _of_config(path: Path, name: str) -> UnreadModel | None:
    """Return the kind that a config in JSON names."""
    if (path / name).stat().st_size > MAX_BYTES:
        return None
    [content] = read_folder(path, lambda each: each == name, ()).values()
    config = mapping(parse_json(content, name), name)
    if "gigaam" in _target(config.get("encoder")):
        return UnreadModel("a model of GigaAM", PACKAGE)
    if str(config.get("nemo_model_type")) == "canary" or config.get("model_type") == "fastconformer":
        return UnreadModel("NeMo's Canary in a layout of transformers", ATTENTION)
    if _target(config).startswith("nemo."):
        return UnreadModel("a model of NeMo that was converted for MLX", ORIGINAL)
    if {"n_mels", "n_audio_ctx"} <= config.keys():
        return UnreadModel("a Whisper model for MLX", ATTENTION)
    cure = MODEL_TYPES.get(str(config.get("model_type")))
    return UnreadModel(f"a model of transformers with the model_type {config['model_type']}", cure) if cure else None


def _target(section: object) -> str:
    """Return the class that a section of a config names; "" if it names none."""
    values: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
    return str(values.get("_target_") or values.get("target") or "")


def check_kind(path: Path) -> None:
    """Check that a folder is not of a kind that `asr.convert` does not read.

    Raises:
        InputError: it is, or a config of the folder is damaged.
    """
    if kind := kind_of(path):
        raise InputError(f"MODEL must be a model that asr reads; this is {kind.name}. {kind.cure}.")


def _is_multilingual(config: Mapping[str, Any]) -> bool:
    """Whether a config of AI4Bharat's NeMo has an output layer for each language."""
    sections = [config.get(name) for name in ("decoder", "joint", "tokenizer")]
    auxiliary = config.get("aux_ctc")
    sections.append(auxiliary.get("decoder") if isinstance(auxiliary, Mapping) else None)
    return any(
        isinstance(each, Mapping) and (each.get("type") == "multilingual" or each.get("multisoftmax") is True)
        for each in sections
    )


def _languages(config: Mapping[str, Any]) -> str:
    """Return the languages of a tokenizer, for the end of a clause; "" if it names none."""
    tokenizer = config.get("tokenizer")
    languages = tokenizer.get("langs") if isinstance(tokenizer, Mapping) else None
    return (
        f" ({', '.join(map(printable, map(str, languages)))})" if isinstance(languages, Mapping) and languages else ""
    )


def class_name(config: Mapping[str, Any]) -> str:
    """Return NeMo's class that a config names; without one, "model"."""
    return _target(config).rpartition(".")[2] or "model"


def check_target(config: Mapping[str, Any]) -> None:
    """Check that a config of NeMo is not of a class that `asr.convert` does not read."""
    name = class_name(config)
    if _is_multilingual(config):
        kind = "this model has an output layer for each language, as AI4Bharat's IndicConformer"
        raise InputError(f"tokenizer.type must be bpe or agg, which asr reads; {kind}{_languages(config)}. {PACKAGE}.")
    if cure := CLASSES.get(name):
        raise InputError(f"target must be a class that asr reads; got {shown(name)}. {cure}.")
