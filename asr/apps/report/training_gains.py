"""Part of a run's page: the change of the WER from the initial model."""

from collections.abc import Mapping, Sequence
from typing import Any

from asr.apps.report.comparison import chance
from asr.apps.web.chart import Axis, Column, interval_chart
from asr.apps.web.figures import figure
from asr.apps.web.page import escape
from asr.base.text.numbers import counted, percent, points
from asr.core.evaluation.comparison import rate_name

METHODS = (
    "Before: the model of init.from, with the decoder of this run; after: the run's bundle. Both recognised the same "
    "utterances. A negative difference is an improvement. A positive difference is a deterioration; on speech that the "
    "run was not trained on, it shows how much the model has forgotten. The 95 % confidence interval and the two-sided "
    "p-value come from a paired bootstrap. asr.compare shows two models utterance by utterance."
)


def gains(comparisons: Mapping[str, Mapping[str, Any]], also_tested: Sequence[str]) -> str:
    """Return tiles with the difference in WER on each test manifest, and a chart of the rates before and after.

    Args:
        comparisons: results of `asr.core.evaluation.comparison.compare` for before and after, by manifest.
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
        f"{rate_name(comparison)} {before} before, {after} after",
        *chance(difference, "", "utterances"),
        *chance(difference, "speaker_", "speakers"),
        *(["not trained on: corpus.also_test"] if also_tested else []),
    ]
    return figure(
        "gain", f"Difference in {rate_name(comparison)}, {name}", points(difference["rate"]), details, unit="points"
    )


def _chart(comparisons: Mapping[str, Mapping[str, Any]]) -> str:
    columns = [
        Column(
            f"{when}, {name}",
            comparison[key]["rate"],
            comparison[key]["interval"],
            counted(comparison[key]["reference_length"], comparison.get("unit", "word")),
            style,
        )
        for name, comparison in comparisons.items()
        for key, when, style in (("a", "before", 1), ("b", "after", 2))
    ]
    names = " or ".join(sorted({rate_name(comparison) for comparison in comparisons.values()}))
    return interval_chart(
        f"{names} before and after", Axis("error rate", percent), columns, "95 % interval over utterances", "manifest"
    )
