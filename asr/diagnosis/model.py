"""The model that a training would begin with."""

from typing import NamedTuple

from asr.build import build_model
from asr.data.corpus import Corpus
from asr.data.manifest import Utterance
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
    utterances: list[Utterance]
    findings: list[Finding]


def fresh_model(settings: RunSettings, corpus: Corpus) -> Fresh:
    """Fit tokenizer and features, and make the model; nothing is kept in the run folder.

    Raises:
        InputError: the settings do not allow it.
    """
    tokenizer, features = fitted_front_end(settings, corpus, False, start_of(settings.init))
    splits = splits_of(corpus)
    uncovered = coverage_findings(splits, tokenizer, list(corpus.also_tests))
    unspelled = {id(case.utterance) for finding in uncovered for case in finding.cases}
    utterances = [utterance for utterance in splits["train"] if id(utterance) not in unspelled]
    return Fresh(build_model(settings.components, tokenizer, features), utterances, uncovered)
