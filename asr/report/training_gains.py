"""What a run has gained over the model that it started from, as part of its page."""

from collections.abc import Mapping, Sequence
from typing import Any

from asr.report.comparison import chance
from asr.text.numbers import counted, percent, points
from asr.web.chart import Axis, Column, interval_chart
from asr.web.figures import figure
from asr.web.page import escape

METHODS = (
    "Before: the model that init.from names, with the decoder of this run; after: the run's bundle. "
    "Both recognised the same utterances. A negative difference is what was gained, a positive one what was lost, or, "
    "of speech that was not trained for, forgotten. Its interval of 95 % confidence and its p-value (two-sided) are "
    "of a paired bootstrap. asr.compare shows two models utterance by utterance."
)


def gains(comparisons: Mapping[str, Mapping[str, Any]], also_tested: Sequence[str]) -> str:
    """Write the difference in WER on each test manifest, and draw both rates.

    Args:
        comparisons: what `asr.evaluation.comparison.compare` finds of before and after, by manifest.
        also_tested: manifests of `corpus.also_test`.
    """
    tiles = [_tile(name, comparison, name in also_tested) for name, comparison in comparisons.items()]
    return (
        f'<div class="headline">{"".join(tiles)}</div><div class="charts">{_chart(comparisons)}</div>'
        f'<p class="note">{escape(METHODS)}</p>'
    )


def _tile(name: str, comparison: Mapping[str, Any], also_tested: bool) -> str:
    difference = comparison["difference"]
    before, after = (percent(comparison[key]["rate"], 2) for key in ("a", "b"))
    details = [
        f"WER {before} before, {after} after",
        *chance(difference, "", "utterances"),
        *chance(difference, "speaker_", "speakers"),
        *(["not trained for: corpus.also_test"] if also_tested else []),
    ]
    return figure("gain", f"Difference in WER, {name}", points(difference["rate"]), details, unit="points")


def _chart(comparisons: Mapping[str, Mapping[str, Any]]) -> str:
    columns = [
        Column(
            f"{when}, {name}",
            comparison[key]["rate"],
            comparison[key]["interval"],
            counted(comparison[key]["reference_length"], "word"),
            style,
        )
        for name, comparison in comparisons.items()
        for key, when, style in (("a", "before", 1), ("b", "after", 2))
    ]
    axis = Axis("word error rate", percent)
    return interval_chart("WER before and after", axis, columns, "95 % interval over utterances", "manifest")
