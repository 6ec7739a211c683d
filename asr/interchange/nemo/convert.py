"""Conversion between bundles of asr and NVIDIA NeMo's Conformers with CTC, a transducer or both."""

import hashlib
import io
import re
from pathlib import Path

import torch
import yaml

from asr.checkpoint.bundle import Bundle
from asr.checkpoint.load import bundle_recognizer
from asr.errors import InputError
from asr.features.slaney_fbank import SlaneyFbank
from asr.interchange.account import give
from asr.interchange.foreign import CTC, CTC_HEAD, Converted, Weights, convert, errors_of
from asr.interchange.nemo.archive import read_files
from asr.interchange.nemo.config import (
    ctc_head,
    ctc_sections,
    features_config,
    nemo_config,
    parse,
    with_used_heads,
)
from asr.interchange.nemo.encoder import encoder_config, nemo_encoder, scale
from asr.interchange.nemo.prompt import LAYERS, prompt_config, with_prompt_sections
from asr.interchange.nemo.tokenizer import give_vocabulary, take_vocabulary
from asr.interchange.nemo.transducer import is_transducer, names, transducer, transducer_names, transducer_sections
from asr.interchange.nemo_files import CONFIG, SAFETENSORS, WEIGHTS
from asr.interchange.prompt import AUTO, give_prompt, with_prompt
from asr.interchange.tensors import load_tensors


def from_nemo(path: Path, pad_mode: str) -> Converted:
    """Convert a `.nemo` archive, or a folder of its files, to a bundle.

    Args:
        path: path of the archive or folder.
        pad_mode: padding of the waveform at both ends: "zeros" in NeMo 3, "reflect" in NeMo 1.

    Raises:
        InputError: the model cannot be read, asr does not support a setting, or a tensor has no counterpart.
    """
    with errors_of(path):
        return _convert(read_files(path), path, pad_mode)


def _convert(files: dict[str, bytes], path: Path, pad_mode: str) -> Converted:
    if CONFIG not in files:
        advice = "To convert a bundle of asr, add --to nemo or --to huggingface"
        raise InputError(f"{CONFIG} must exist; it is missing. {advice}.")
    weights_name = next((name for name in (WEIGHTS, SAFETENSORS) if name in files), None)
    if weights_name is None:
        raise InputError(f"{WEIGHTS}, or {SAFETENSORS}, must exist; both are missing.")
    content = files.pop(weights_name)
    tensors, sha256 = load_tensors(content, weights_name), hashlib.sha256(content).hexdigest()
    del content  # gigabytes
    config = parse(files[CONFIG], CONFIG)
    nemo = with_used_heads(config, tensors)
    if is_transducer(nemo):
        head, section, named = transducer(nemo)
    else:
        ctc = ctc_head(nemo)
        head, section, named = CTC_HEAD, ctc.settings, names(ctc.tensors)
    encoder, features = encoder_config(nemo), features_config(nemo, pad_mode)
    vocabulary = take_vocabulary(nemo, section, files, path)
    prompt = prompt_config(nemo, encoder["dim"])
    if prompt is not None:
        named = with_prompt(named, LAYERS, encoder["dim"], prompt.auto)
    weights = Weights(tensors, sha256, named, scale(nemo))
    version = nemo.get("nemo_version")
    is_plain = isinstance(version, str) and re.fullmatch(r"[\w.+-]{1,40}", version, re.ASCII)
    writer = f"NeMo {version}" if is_plain else ""
    bundle, account, sha256, notes = convert(path, vocabulary, features, encoder, weights, head, prompt)
    unused = [f"{name} is not used: the model has no such head." for name in config if name not in nemo]
    return Converted(bundle, account, sha256, [*unused, *notes], writer)


def to_nemo(bundle: Bundle, path: Path) -> list[tuple[str, bytes]]:
    """Return the files of a `.nemo` archive for a bundle.

    Raises:
        InputError: the bundle has a part that NeMo does not have.
    """
    model, encoder = bundle_recognizer(bundle, path).model, nemo_encoder(bundle.config)
    pieces, tokenizer, files = give_vocabulary(bundle.config["tokenizer"], bundle.files, model.tokenizer.pieces)
    nemo, head = nemo_config(bundle.config, pieces, tokenizer), bundle.config["head"]
    is_ctc = head["name"] == CTC
    sections = (ctc_sections if is_ctc else transducer_sections)(bundle.config, pieces, bool(tokenizer))
    nemo = {"target": sections.pop("target"), **nemo, "encoder": encoder, **sections}
    named = names() if is_ctc else transducer_names(head, len(pieces))
    if model.prompt is not None:
        languages = give_prompt(bundle)
        nemo = with_prompt_sections(nemo, languages, bundle.config)
        named = with_prompt(named, LAYERS, bundle.config["encoder"]["dim"], languages["prompt_dictionary"][AUTO])
    assert isinstance(model.features, SlaneyFbank)
    weights = io.BytesIO()
    torch.save(give(model.state_dict(), named, model.features), weights)
    text = yaml.safe_dump(nemo, sort_keys=False, allow_unicode=True).encode()
    return [*files, (CONFIG, text), (WEIGHTS, weights.getvalue())]
