"""Metrics of validations that are computed from the texts of all ranks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asr.errors import InputError
from asr.evaluation.text_metrics import numbers_of
from asr.interfaces import Metric
from asr.training.distributed import fail_together, gather

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class ValidationTexts:
    """Texts of a validation on this rank, and the metrics to compute from those of all ranks.

    Args:
        metrics: metrics by the name of the component.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics
        self._texts: list[tuple[str, str, str]] = []  # id, reference, hypothesis

    def add(self, ids: Sequence[str], references: Sequence[str], hypotheses: Sequence[str]) -> None:
        """Add a batch; without metrics, texts are not stored."""
        if self._metrics:
            self._texts += zip(ids, references, hypotheses, strict=True)

    def take(self, trainer: "Trainer") -> dict[str, float]:
        """Compute the numbers of all metrics by name, and forget the texts; all processes must call this method.

        The first process computes them, because a metric of a plugin may differ or fail in one process alone.

        Raises:
            InputError: a metric fails, or does not return numbers; other processes exit.
        """
        if not self._metrics:
            return {}
        texts, self._texts = sorted(gather(trainer, self._texts)), []
        problem, values = "", {}
        if trainer.is_global_zero:
            try:
                values = numbers_of(self._metrics, [text[1] for text in texts], [text[2] for text in texts])
            except InputError as error:
                problem = str(error)
        [(problem, values)] = gather(trainer, [(problem, values)] if trainer.is_global_zero else [])
        if problem:
            fail_together(trainer, problem)
        return values

    def clear(self) -> None:
        """Forget the texts."""
        self._texts = []
