"""Parts of a training run's page that are specific to language models: tiles of the perplexity, and texts."""

from collections.abc import Mapping
from typing import Any

from asr.apps.web.curves import Curve
from asr.apps.web.figures import figure
from asr.base.text.numbers import NONE, number

PERPLEXITY = "valid/perplexity"  # column of metrics.csv


def is_language_model(settings: Mapping[str, Any]) -> bool:
    """Whether settings come from asr.train_lm instead of asr.train."""
    return "token_model" in settings


def perplexity_tiles(results: Mapping[str, Mapping[str, Any]], curves: Mapping[str, Curve]) -> list[str]:
    """Return tiles with the perplexity per word of each text, and with the best validation perplexity."""
    tiles: list[str] = []
    for name, result in results.items():
        ends, words = result.get("interval"), result.get("words")
        details = [f"{_rounded(ends[0])} to {_rounded(ends[1])} over sentences"] if ends else []
        details += [f"{words:,} words"] if isinstance(words, int) else []
        label = f"Perplexity per word, {name}"
        tiles.append(figure("perplexity", label, _rounded(result.get("per_word")), details, main=not tiles))
    curve = curves.get(PERPLEXITY, Curve([], []))
    if len(curve):
        best = curve.values.index(min(curve.values))
        where = [f"step {curve.steps[best]:,}"]
        label = "Best validation perplexity"
        tiles.append(figure("best_perplexity", label, _rounded(curve.values[best]), where, main=not tiles))
    return tiles


def text_facts(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe the network, the recogniser and the texts."""
    net, text = settings.get("token_model"), settings.get("text")
    pairs = [("Recogniser", str(settings.get("recognizer", NONE)))]
    if isinstance(net, Mapping):
        pairs.append(("Network", ", ".join(f"{key}={value}" for key, value in net.items())))
    if isinstance(text, Mapping):
        files = {key: text[key] for key in ("train", "valid", "test") if isinstance(text.get(key), list)}
        pairs += [(f"Texts, {key}", ", ".join(map(str, paths))) for key, paths in files.items() if paths]
    return pairs


def _rounded(value: Any) -> str:
    return number(round(value, 1)) if isinstance(value, int | float) else NONE
