"""NVIDIA NeMo's Conformers with CTC, a transducer or both."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
import yaml
from torch import Tensor

from asr.apps.convert.account import Counterparts, give
from asr.apps.convert.conformer import CTC
from asr.apps.convert.foreign import CTC_HEAD, Choices, ModelParts, Weights, pop_tensors, written_by
from asr.apps.convert.kinds import check_target, class_name
from asr.apps.convert.nemo.config import ctc_head, ctc_sections, features_config, nemo_config, parse, with_used_heads
from asr.apps.convert.nemo.encoder import encoder_config, ignored, nemo_encoder, scale
from asr.apps.convert.nemo.language import languages_of, with_language
from asr.apps.convert.nemo.prompt import LAYERS, prompt_config, with_prompt_sections
from asr.apps.convert.nemo.tokenizer import give_vocabulary, take_vocabulary
from asr.apps.convert.nemo.transducer import is_transducer, names, transducer, transducer_names, transducer_sections
from asr.apps.convert.prompt import AUTO, give_prompt, with_prompt
from asr.components.features.slaney_fbank import SlaneyFbank
from asr.core.build import build_features
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.core.hub.nemo_files import CONFIG, SAFETENSORS, WEIGHTS
from asr.errors import InputError
from asr.interfaces import Features


def read(files: dict[str, bytes], path: Path, choices: Choices) -> ModelParts:
    """Convert the files of an archive, of which the weights are removed.

    Args:
        files: files of the archive.
        path: path of the archive, for errors.
        choices: the user's choices.
    """
    config = parse(files[CONFIG], CONFIG)
    check_target(config)
    weights_name = next((name for name in (WEIGHTS, SAFETENSORS) if name in files), None)
    if weights_name is None:
        cure = (
            f"{CONFIG} is that of NeMo's {class_name(config)}: add the file of its weights, or give the .nemo archive"
        )
        raise InputError(f"{WEIGHTS}, or {SAFETENSORS}, must exist; both are missing. {cure}.")
    tensors, sha256 = pop_tensors(files, weights_name)
    config, tensors, notes = with_language(config, tensors, files, path, choices.language)
    nemo = with_used_heads(config, tensors)
    if is_transducer(nemo):
        head, section, named = transducer(nemo)
    else:
        ctc = ctc_head(nemo)
        head, section, named = CTC_HEAD, ctc.settings, names(ctc.tensors)
    encoder, features = encoder_config(nemo), features_config(nemo, choices.pad_mode)
    vocabulary = take_vocabulary(nemo, section, files, path, languages_of(nemo))
    prompt = prompt_config(nemo, encoder["dim"])
    if prompt is not None:
        named = with_prompt(named, LAYERS, encoder["dim"], prompt.auto)
    named = named._replace(scale=scale(nemo))
    counterparts = Counterparts(named.row, _computed(build_features({"features": features})))
    notes += [f"{name} is not used: the model has no such head." for name in config if name not in nemo]
    if of_chunks := ignored(nemo):
        keys = ", ".join(of_chunks)
        notes += [f"encoder.{keys} are not used: the model recognises whole recordings, as NeMo does without chunks."]
    return ModelParts(
        vocabulary,
        features,
        encoder,
        Weights(tensors, sha256, counterparts),
        head,
        prompt,
        notes,
        written_by("NeMo", nemo.get("nemo_version")),
    )


def write(bundle: Bundle, path: Path) -> list[tuple[str, bytes]]:
    """Return the files of a `.nemo` archive for a bundle."""
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
    weights = io.BytesIO()
    torch.save(give(model.state_dict(), Counterparts(named.row, _computed(model.features))), weights)
    text = yaml.safe_dump(nemo, sort_keys=False, allow_unicode=True).encode()
    return [*files, (CONFIG, text), (WEIGHTS, weights.getvalue())]


def _computed(features: Features) -> Mapping[str, Tensor]:
    """Return the tensors that NeMo stores, but asr computes from the settings of `features`, a SlaneyFbank."""
    slaney = cast(SlaneyFbank, features)
    return {"preprocessor.featurizer.window": slaney.taper, "preprocessor.featurizer.fb": slaney.mel.T[None]}
