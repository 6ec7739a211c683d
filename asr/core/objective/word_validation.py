"""A validation of a recogniser: losses, word errors, blank frames, samples, and metrics of plugins."""

import logging
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from asr.base.kernels.choice import exact
from asr.base.text.word_errors import ErrorCounts, count_errors, total
from asr.core.data.batch import Batch, Rejected
from asr.core.evaluation.manifest_sums import ManifestSums
from asr.core.evaluation.text_metrics import numbers_of
from asr.core.recognition.recognizer import Recognizer
from asr.core.run.validation_samples import SamplesFile, ValidationSample
from asr.core.training.objective import WER, Processes, described
from asr.errors import InputError
from asr.interfaces import BLANK_ID, Metric
from asr.lengths import padding_mask

logger = logging.getLogger(__name__)


class RecognitionValidation:
    """Sums of a validation in one process.

    Args:
        recognizer: decodes the validation set.
        manifests: names of the validation manifests.
        samples: ids of the utterances whose hypotheses are recorded, and the file for these hypotheses.
        numbers: further metrics by the name of their component.
        step: number of completed optimizer steps.
        epoch: number of the epoch, from 1; 0 before the first step.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        manifests: Sequence[str],
        samples: SamplesFile,
        numbers: Mapping[str, Metric],
        step: int,
        epoch: int,
    ) -> None:
        self._recognizer, self._numbers, self._file = recognizer, numbers, samples
        self._step, self._epoch = step, epoch
        self._of_manifests = ManifestSums(manifests)
        self._counts = ErrorCounts()
        self._loss, self._tokens, self._blanks, self._frames = 0.0, 0, 0, 0
        self._rejected: list[Rejected] = []
        self._samples: list[ValidationSample] = []
        self._texts: list[tuple[str, str, str]] = []  # id, reference, hypothesis, for metrics of plugins

    def add(self, batch: Batch) -> None:
        """Count the errors of a batch with the functions that `asr.evaluate` uses."""
        self._rejected += batch.rejected
        if len(batch) == 0:
            return
        model = self._recognizer.model
        encoded = model.encode(batch)
        frame_head = model.head.frame_head
        if frame_head is not None:
            log_probs = frame_head.log_probs(encoded.out)
            self._add_frames(log_probs, encoded.lengths)
            encoded = encoded._replace(log_probs=log_probs)
        losses = model.head.losses(encoded, batch.targets)["loss"]
        nbests = self._recognizer.hypotheses(encoded)
        hypotheses = [self._recognizer.text(best) for best, *_ in nbests]
        references = [utterance.text for utterance in batch.utterances]  # normalised when the manifest was read
        scored = [[model.scored_by(text) for text in texts] for texts in (references, hypotheses)]
        if self._numbers:
            self._texts += zip(batch.ids, *scored, strict=True)
        errors = [count_errors(*pair) for pair in zip(*scored, strict=True)]
        self._counts += total(errors)
        fits = losses.isfinite()  # a text that is too long for its audio has an infinite loss, but its errors count
        self._loss += float(losses[fits].cpu().double().sum())
        self._tokens += int(batch.token_lengths[fits].sum())
        self._of_manifests.add(batch.utterances, losses, batch.token_lengths, errors)
        self._samples += [
            ValidationSample(self._step, self._epoch, utterance.id, *texts)
            for utterance, *texts in zip(batch.utterances, references, hypotheses, strict=True)
            if utterance.id in self._file.ids
        ]

    def _add_frames(self, log_probs: Tensor, lengths: Tensor) -> None:
        padding = padding_mask(lengths, log_probs.shape[1])
        self._blanks += int(((log_probs.argmax(dim=-1) == BLANK_ID) & ~padding).sum())
        self._frames += int(lengths.sum())

    def metrics(self, processes: Processes) -> dict[str, float]:
        """Return WER, losses and blank ratio: sums over all processes, divided once. Write the samples."""
        own = [*self._counts.as_tuple(), self._loss, self._tokens, self._blanks, self._frames, len(self._rejected)]
        sums = torch.tensor(own, dtype=exact(processes.device), device=processes.device)
        of_all = processes.add_up(sums).tolist()
        counts = ErrorCounts(*(round(value) for value in of_all[:5]))
        loss, tokens, blanks, frames, skipped = of_all[5:]
        if skipped:
            for reason, utterance_id in processes.gather(described(self._rejected)):
                logger.warning("validation: skipped %r: %s", utterance_id, reason)
        if counts.utterances == 0:
            must = "validation must have a readable utterance"
            processes.fail_together(f"{must}; all were skipped, see the warnings above.")
        samples = processes.gather(self._samples)
        if processes.is_first:
            self._file.append(samples)
        metrics = {WER.name: counts.rate, "loss": loss / tokens if tokens else math.nan}
        if frames:
            metrics["blank_ratio"] = blanks / frames
        metrics |= self._of_plugins(processes)
        for name, rates in self._of_manifests.take(processes.add_up, processes.device).items():
            if rates.loss is not None:
                metrics[f"loss/{name}"] = rates.loss
            if rates.wer is not None:
                metrics[f"{WER.name}/{name}"] = rates.wer
        return metrics

    def _of_plugins(self, processes: Processes) -> dict[str, float]:
        """Compute the numbers of all further metrics by name.

        The first process computes them, because a metric of a plugin may differ or fail in one process alone.
        """
        if not self._numbers:
            return {}
        texts = sorted(processes.gather(self._texts))
        problem, values = "", {}
        if processes.is_first:
            try:
                values = numbers_of(self._numbers, [text[1] for text in texts], [text[2] for text in texts])
            except InputError as error:
                problem = str(error)
        [(problem, values)] = processes.gather([(problem, values)] if processes.is_first else [])
        if problem:
            processes.fail_together(problem)
        return values
