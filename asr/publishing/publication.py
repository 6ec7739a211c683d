"""A folder for a hub: the files that transformers loads, and a card with the results of the run."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr.checkpoint.bundle import CARD, read_bundle
from asr.checkpoint.load import BUNDLE, bundle_folder
from asr.interchange.huggingface.card import model_card
from asr.interchange.huggingface.convert import names_left_out, to_huggingface
from asr.interchange.huggingface.files import replace_huggingface
from asr.run.names import RESULTS
from asr.system.files import check_apart, real


def publish(model: Path, output: Path, language: str | None, license: str | None) -> tuple[list[str], list[str]]:
    """Write a model as a folder for Hugging Face's hub; return the names of its files and of the omitted tensors.

    Args:
        model: a bundle, or a run folder; for a run folder, the card contains the test results of the run.
        output: path of the folder; an older folder is replaced.
        language: language of the model, for the card; None: unknown.
        license: licence of the model, in the hub's notation; None: unknown.

    Raises:
        InputError: transformers does not support the model, or the folder cannot be written.
    """
    folder = bundle_folder(model)
    check_apart("--output", output, [folder])
    bundle = read_bundle(folder)
    files = to_huggingface(bundle, folder)
    results = read_results(folder.parent / RESULTS) if folder.name == BUNDLE else {}
    card = model_card(real(output).name, bundle.config, results, before=bundle.card, language=language, licence=license)
    files[CARD] = card.encode()
    replace_huggingface(output, files)
    return list(files), names_left_out(bundle)


def read_results(path: Path) -> dict[str, Mapping[str, Any]]:
    """Read the results of each test manifest; leave out invalid entries, and return {} if the file is invalid."""
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    pairs = results.items() if isinstance(results, dict) else ()
    return {name: result for name, result in pairs if _is_result(result)}


def _is_result(result: object) -> bool:
    return isinstance(result, dict) and isinstance(result.get("wer"), float) and math.isfinite(result["wer"])
