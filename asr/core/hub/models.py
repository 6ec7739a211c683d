"""Load recognisers from a path, or from an address on a hub."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from asr.base.settings.plugins import NAMES, use
from asr.core.checkpoint import load
from asr.core.hub.download import path_of
from asr.core.recognition.recognizer import Recognizer


def load_recognizer(
    model: str | Path,
    device: str | torch.device = "cpu",
    decode: str | Mapping[str, Any] | None = None,
    base: str | Path | None = None,
    plugins: Sequence[str] = (),
    characters: str | None = None,
) -> Recognizer:
    """Load a recogniser.

    Args:
        model: a run folder, a bundle, a `.ckpt`, the folder of an exported model, or the address of a bundle,
            `hf://OWNER/NAME[@REVISION]`, which is downloaded first.
        device: device to compute on.
        decode: decoder that replaces the model's decoder: its name, such as "beam", or its settings, such as
            `{"name": "beam", "fusion": {"lm": "a.arpa"}}`. Settings without a name change the model's decoder. The
            defaults for the settings of another decoder are in conf/decode.
        base: model to which an adapter belongs; a path or an address, like `model`.
        plugins: packages outside of asr that contain components of the model, such as ["mylab.speech"]. Their code
            runs, so name only packages that you trust. They stay in use until the process ends.
        characters: language or script whose letters alone are written, such as "de" or "latin"; None: all letters. This
            cannot choose between languages of one script. Languages have the names of
            `asr.base.text.alphabets.languages`.

    Raises:
        InputError: the model does not exist, is damaged, or needs a part that asr does not have; or there is no such
            language or script, or the model's tokens write fewer than half of its letters.
    """
    NAMES.check("plugins", list(plugins) if isinstance(plugins, tuple) else plugins)
    use(plugins)
    return load.load_recognizer(path_of(model), device, decode, None if base is None else path_of(base), characters)
