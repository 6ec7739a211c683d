"""Part of a run's page: what each share of the initial model in the weights gains and forgets."""

from collections.abc import Mapping
from typing import Any

from asr.apps.web.chart import Axis, Series, line_chart
from asr.apps.web.page import escape
from asr.base.text.numbers import percent

METHODS = (
    "With a share of 0 the weights are those after the training, with a share of 1 those of the initial model. The "
    "losses are of speech that was not trained on: the validation set, or each half of the training speech with a "
    "model that was trained on the other half. Losses below 100 % are better than those of the initial model. "
    "Chosen: {choice}"
)
NAMES = {"loss": "speech like DATA, not trained on", "keep": "speech of --keep"}


def shares(record: Mapping[str, Any]) -> str:
    """Return a chart of the losses by share, in percent of the initial model's; "" if the record is empty or damaged.

    Args:
        record: shares.json of the run.
    """
    try:
        rows = [{key: float(value) for key, value in row.items()} for row in record["rows"]]
        curves = [
            Series(name, [(row["share"], row[key] / rows[-1][key]) for row in rows], dots=True)
            for key, name in NAMES.items()
            if key in rows[-1]
        ]
        choice = f"share {float(record['share']):g}, {record['reason']}."
    except (LookupError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return ""
    title = "Loss by the share of the initial model in each weight"
    chart = line_chart(title, Axis("share", low=0, high=1), Axis("loss", percent), curves, zero=False)
    return f'<div class="charts">{chart}</div><p class="note">{escape(METHODS.format(choice=choice))}</p>'
