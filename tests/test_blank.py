"""A network that emits only blanks is reported once, with the likely causes."""

import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest

from asr.core.training.callbacks import StuckAtBlank


@pytest.mark.parametrize(
    ("ratios", "warnings"),
    [
        ([1.0, 0.999, 1.0, 1.0], 1),  # later validations with only blanks cause no second warning
        ([1.0, 0.9, 1.0, 0.9], 0),  # the model emits tokens between the validations with only blanks
        ([0.9, 0.8, 1.0, 1.0], 1),  # the model first emitted tokens, and then only blanks
        ([None, None, None], 0),  # a head without frame outputs has no blank ratio
    ],
)
def test_two_consecutive_validations_with_only_blanks_cause_one_warning(
    ratios: list[float | None], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    callback = StuckAtBlank()
    with caplog.at_level(logging.WARNING):
        for step, ratio in enumerate(ratios, start=1):
            logged = {} if ratio is None else {"valid/blank_ratio": ratio}
            trainer: Any = SimpleNamespace(callback_metrics=logged, global_step=step)
            callback.on_validation_end(trainer, None)  # type: ignore[arg-type]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == warnings
    for message in messages:
        assert re.match(r"the model recognises nothing: [\d.]+ % of the frames are blank in 2 validations", message)
        assert "debug=overfit" in message


def test_validations_before_the_first_step_do_not_count_towards_the_warning(caplog: pytest.LogCaptureFixture) -> None:
    callback = StuckAtBlank()
    for step in (0, 0, 1):
        trainer: Any = SimpleNamespace(callback_metrics={"valid/blank_ratio": 1.0}, global_step=step)
        callback.on_validation_end(trainer, None)  # type: ignore[arg-type]
    assert not caplog.records
