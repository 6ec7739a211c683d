"""Parts of a training run's page that are specific to language models: texts and perplexity."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from asr.report.curves import Curve
from asr.text.numbers import NONE, number
from asr.web.chart import Axis, Series, line_chart
from asr.web.figures import figure

PERPLEXITY, SPEED = "valid/perplexity", "train/tokens_per_second"  # columns of metrics.csv


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


def perplexity_charts(curves: Mapping[str, Curve]) -> list[str]:
    """Draw the metrics that only the training of a language model logs."""
    drawn = []
    for name, label in ((PERPLEXITY, "perplexity per word"), (SPEED, "tokens a second")):
        curve = curves.get(name, Curve([], []))
        if not len(curve):
            continue
        title = f"Validation perplexity per word: {_rounded(curve.values[-1])} at step {curve.steps[-1]:,}"
        if name == SPEED:
            title = f"Speed: {median(curve.values):,.0f} tokens a second (median)"
        points: list[tuple[float, float | None]] = list(zip(curve.steps, curve.values, strict=True))
        steps = Axis("optimizer step", low=0, high=max(1, curve.steps[-1]))
        drawn.append(line_chart(title, steps, Axis(label), [Series(label, points, dots=name == PERPLEXITY)]))
    return drawn


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
