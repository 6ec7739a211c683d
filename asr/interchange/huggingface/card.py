"""The model card of a folder for transformers: metadata for a hub, and text for readers."""

from collections.abc import Mapping
from textwrap import indent
from typing import Any

import yaml

from asr.text.numbers import interval, number, rate

TASK = "automatic-speech-recognition"  # the hub's name for speech recognition
TAGS = ("speech", "fast-conformer")
KINDS = {"ctc": "CTC", "transducer": "RNNT", "tdt": "TDT"}  # asr's head: suffix of transformers' class

_CARD = """---
{about}---

# {name}

A speech recogniser: a Fast Conformer with {kind}, in the format of transformers' ParakeetFor{kind}. It needs audio with
a sample rate of {sample_rate} Hz. This folder was written by `python -m asr.export --to huggingface`.

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


def model_card(
    name: str,
    config: Mapping[str, Any],
    results: Mapping[str, Mapping[str, Any]],
    before: str,
    language: str | None,
    licence: str | None,
) -> str:
    """Return the content of README.md.

    Args:
        name: name of the folder.
        config: config of the model.
        results: test results of a run, by manifest, from results.json.
        before: the bundle's card.
        language: ISO 639 code, such as `en`; None: unknown.
        licence: the hub's name for the licence, such as `cc-by-4.0`; None: unknown.
    """
    kind = KINDS[config["head"]["name"]]
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
