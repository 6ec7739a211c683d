"""The model that a training would begin with."""

from typing import NamedTuple

import numpy as np

from asr.build import build_model
from asr.data.corpus import Corpus
from asr.data.utterances import Utterances
from asr.diagnosis.examination import splits_of
from asr.diagnosis.finding import Finding
from asr.diagnosis.texts import coverage_findings
from asr.recognition.model import Model
from asr.run.folder import fitted_front_end
from asr.run.initialization import start_of
from asr.run.settings import RunSettings


class Fresh(NamedTuple):
    """A model that knows nothing yet.

    Args:
        model: with fitted tokenizer and features, and weights that do not matter.
        utterances: to train on, that its tokenizer can spell.
        findings: of those that it cannot.
    """

    model: Model
    utterances: Utterances
    findings: list[Finding]


def fresh_model(settings: RunSettings, corpus: Corpus, sample: Corpus) -> Fresh:
    """Fit tokenizer and features, and make the model; nothing is kept in the run folder.

    Args:
        settings: of the training.
        corpus: whole.
        sample: whose texts are spelled, to see which cannot be.

    Raises:
        InputError: the settings do not allow it.
    """
    tokenizer, features = fitted_front_end(settings, corpus, False, start_of(settings.init))
    uncovered = coverage_findings(splits_of(sample), tokenizer, list(corpus.also_tests))
    unspelled = {case.utterance.id for finding in uncovered for case in finding.cases if case.split == "train"}
    utterances = corpus.train
    if unspelled:
        spelled = [place for place, name in enumerate(utterances.ids) if name not in unspelled]
        utterances = utterances.select(np.array(spelled, dtype=np.int64))
    return Fresh(build_model(settings.components, tokenizer, features), utterances, uncovered)
