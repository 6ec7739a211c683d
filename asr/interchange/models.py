"""A recogniser by whatever names its model: a path, or an address on a hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from asr.checkpoint import load
from asr.errors import InputError, shown
from asr.interchange.hub import path_of
from asr.recognition.recognizer import Recognizer


def load_recognizer(
    model: str | Path,
    device: str | torch.device = "cpu",
    decode: str | Mapping[str, Any] | None = None,
    base: str | Path | None = None,
) -> Recognizer:
    """Load a recogniser, ready to recognise.

    Args:
        model: a run folder, a bundle, a `.ckpt`, the folder of an exported model, or the address of a bundle,
            `hf://OWNER/NAME[@REVISION]`, which is downloaded first.
        device: to compute on.
        decode: the decoder to use instead of the model's own: its name, such as "beam", or its settings, such as
            `{"name": "beam", "fusion": {"lm": "a.arpa"}}`. Without a name they are of the model's decoder. Of another
            decoder, settings that are not given are those of conf/decode.
        base: the model that an adapter is of, named as `model` is.

    Raises:
        InputError: there is no such model, or it is damaged, or it needs a part that asr does not have.
    """
    settings = {"name": decode} if isinstance(decode, str) else decode
    if not isinstance(settings, Mapping | None):
        raise InputError(f"decode must be the name of a decoder, or a mapping of its settings; got {shown(decode)}.")
    return load.load_recognizer(path_of(model), device, settings, None if base is None else path_of(base))
