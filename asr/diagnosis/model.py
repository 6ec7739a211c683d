"""The untrained model at the start of a training run."""

from typing import NamedTuple

import numpy as np

from asr.build import build_model
from asr.data.corpus import Corpus
from asr.data.utterances import Utterances
from asr.diagnosis.examination import splits_of
from asr.diagnosis.finding import Finding
from asr.diagnosis.texts import coverage_findings, round_trip_findings
from asr.recognition.model import Model
from asr.run.folder import fitted_front_end
from asr.run.initialization import start_of
from asr.run.settings import RunSettings


class Fresh(NamedTuple):
    """An untrained model.

    Args:
        model: model with a fitted tokenizer and fitted features; its weights are not used.
        utterances: utterances to train on, without texts that the tokenizer does not cover.
        findings: findings on texts that the tokenizer does not cover or changes.
    """

    model: Model
    utterances: Utterances
    findings: list[Finding]


def fresh_model(settings: RunSettings, corpus: Corpus, sample: Corpus) -> Fresh:
    """Fit the tokenizer and the features, and build the model; nothing is written to the run folder.

    Args:
        settings: settings of the training run.
        corpus: the whole corpus.
        sample: utterances whose texts are tokenized, to find characters without a token.

    Raises:
        InputError: the settings are invalid for this corpus.
    """
    tokenizer, features = fitted_front_end(settings, corpus, False, start_of(settings.init))
    uncovered = coverage_findings(splits_of(sample), tokenizer, list(corpus.also_tests))
    uncovered_ids = {case.utterance.id for finding in uncovered for case in finding.cases if case.split == "train"}
    utterances = corpus.train
    if uncovered_ids:
        covered = [row for row, name in enumerate(utterances.ids) if name not in uncovered_ids]
        utterances = utterances.select(np.array(covered, dtype=np.int64))
    findings = [*uncovered, *round_trip_findings(splits_of(sample), tokenizer)]
    return Fresh(build_model(settings.components, tokenizer, features), utterances, findings)
