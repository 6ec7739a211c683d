"""A folder for a hub: the files that transformers loads, and a card with the results of the run."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from textwrap import indent
from typing import Any

import yaml

from asr.apps.convert.conformer import kind_of
from asr.apps.convert.huggingface.convert import to_huggingface
from asr.apps.convert.huggingface.files import replace_converted
from asr.apps.convert.huggingface.parakeet import names_left_out
from asr.base.system.files import check_apart, real
from asr.base.system.learnt import parse_json
from asr.base.text.numbers import interval, number, rate
from asr.core.checkpoint.bundle import CARD, read_bundle
from asr.core.checkpoint.load import BUNDLE, bundle_folder
from asr.core.hub.huggingface_files import CONFIG
from asr.core.run.names import RESULTS
from asr.errors import InputError

TASK = "automatic-speech-recognition"  # the hub's name for speech recognition
TAGS = ("speech", "conformer")
_CARD = """---
{about}---

# {name}

A speech recogniser: a Conformer with {kind}, in the format of transformers' {architecture}. It needs audio with a
sample rate of {sample_rate} Hz. This folder was written by `python -m asr.export --to huggingface`.

```python
from transformers import pipeline

recognize = pipeline("{task}", model="FOLDER")  # this folder, or its address on the hub
print(recognize("recording.wav")["text"])
```
{figures}{before}"""
_FIGURES = """
## Word error rate

{table}

Decoding is greedy, and `{normalizer}` normalises the texts. The intervals are from a bootstrap over utterances.
"""


def publish(model: Path, output: Path, language: str | None, license: str | None) -> tuple[list[str], list[str]]:
    """Write a model as a folder for Hugging Face's hub; return the names of its files and of the omitted tensors.

    Args:
        model: a bundle, or a run folder; for a run folder, the card contains the test results of the run.
        output: path of the folder; an older folder is replaced.
        language: language of the model, for the card; None: unknown.
        license: licence of the model, in the hub's notation; None: unknown.
    """
    folder = bundle_folder(model)
    check_apart("--output", output, [folder])
    bundle = read_bundle(folder)
    files = to_huggingface(bundle, folder)
    results = read_results(folder.parent / RESULTS) if folder.name == BUNDLE else {}
    architecture = _architecture(files)
    card = model_card(
        real(output).name,
        bundle.config,
        architecture,
        results,
        before=bundle.card,
        language=language,
        licence=license,
    )
    files[CARD] = card.encode()
    replace_converted(output, files)
    return list(files), names_left_out(bundle)


def _architecture(files: Mapping[str, bytes]) -> str:
    """Return transformers' class, which config.json names; a package's writer may have made the files."""
    config = parse_json(files.get(CONFIG, b"null"), CONFIG)
    match config.get("architectures") if isinstance(config, Mapping) else None:
        case [str(name)]:
            return name
    raise InputError(f"{CONFIG} must name one class of transformers in architectures; the model's writer names none.")


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


def model_card(
    name: str,
    config: Mapping[str, Any],
    architecture: str,
    results: Mapping[str, Mapping[str, Any]],
    before: str,
    language: str | None,
    licence: str | None,
) -> str:
    """Return the content of README.md.

    Args:
        name: name of the folder.
        config: config of the model.
        architecture: name of transformers' class.
        results: test results of a run, by manifest, from results.json.
        before: the bundle's card.
        language: ISO 639 code, such as `en`; None: unknown.
        licence: the hub's name for the licence, such as `cc-by-4.0`; None: unknown.
    """
    kind = kind_of(config["head"])
    about = {
        **({"language": language} if language else {}),
        **({"license": licence} if licence else {}),
        "library_name": "transformers",
        "pipeline_tag": TASK,
        "tags": [*TAGS, kind.lower()],
        **({"metrics": ["wer"], "model-index": [_index(name, results)]} if results else {}),
    }
    return _CARD.format(
        about=yaml.safe_dump(about, sort_keys=False, allow_unicode=True),
        name=name,
        kind=kind,
        architecture=architecture,
        sample_rate=config["features"]["sample_rate"],
        task=TASK,
        figures=_figures(results) if results else "",
        before=f"\n## The card of the original model\n\n{_quoted(before)}\n" if before.strip() else "",
    )


def _index(name: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a model's results in the hub's format, with error rates in percent."""
    rows = [
        {
            "task": {"type": TASK},
            "dataset": {"name": dataset, "type": dataset},
            "metrics": [{"type": "wer", "value": round(100 * result["wer"], 2)}],
        }
        for dataset, result in results.items()
    ]
    return {"name": name, "results": rows}


def _figures(results: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| test set | WER % | 95 % interval | words |", "|---|---:|---:|---:|"]
    for dataset, result in results.items():
        words = number(result.get("reference_words"))
        lines.append(f"| {dataset} | {rate(result['wer'])} | {interval(result.get('wer_interval'))} | {words} |")
    normalizer = next(iter(results.values())).get("normalizer", "basic")
    return _FIGURES.format(table="\n".join(lines), normalizer=normalizer)


def _quoted(before: str) -> str:
    return indent(before.strip(), "> ", lambda line: True)
