"""Metrics of plugins, computed from references and hypotheses."""

import inspect
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path

from asr.errors import InputError, place_of, reason_of, shown
from asr.interfaces import Metric

OF_TASK = ("wer", "loss", "blank_ratio")  # metrics that each validation of a recogniser logs


def numbers_of(metrics: Mapping[str, Metric], references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, float]:
    """Compute the numbers of all metrics.

    Raises:
        InputError: a metric fails, or returns something else than numbers by names that are new; it is named.
    """
    numbers: dict[str, float] = {}
    for metric, compute in metrics.items():
        must = f"metric={metric} must return numbers by name"
        folder = Path(inspect.getfile(type(compute))).parent
        try:
            values = compute(references, hypotheses)
        except Exception as error:  # the code of a plugin may raise any error
            cause = f"{type(error).__name__}: {reason_of(error)}{place_of(error, folder)}"
            raise InputError(f"{must}; it raised {cause}.") from error
        if not isinstance(values, Mapping) or not all(isinstance(value, Real) for value in values.values()):
            raise InputError(f"{must}, such as {{'cer': 0.1}}; got {shown(values)}.")
        for name, value in values.items():
            if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name in (*OF_TASK, *numbers):
                taken = ", ".join((*OF_TASK, *numbers))
                raise InputError(f"{must} of letters, digits and _ that are not in use ({taken}); got {shown(name)}.")
            numbers[name] = float(value)
    return numbers
