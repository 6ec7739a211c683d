"""python -m asr.doctor [overrides]: check a corpus and a training plan before training.

The overrides are those of asr.train. Each finding is printed with the utterances concerned and advice. The page
doctor.html in run_dir also has the findings, with audio of the worst utterances. The exit status is 0 if training may
start, possibly with warnings, and 1 if training should not start.
"""

import copy
from pathlib import Path
from typing import TYPE_CHECKING

from asr.core.training.hydra_command import experiment_command, read_recognition
from asr.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress

    from asr.apps.doctor.finding import OnProgress
    from asr.apps.doctor.page import Diagnosis
    from asr.core.data.corpus import Corpus
    from asr.core.recognition.recognizer import Recognizer
    from asr.core.run.settings import RunSettings


def doctor(settings: "RunSettings") -> None:
    """Examine a corpus and forecast a training."""
    from asr.apps.doctor.examination import Manifests, sampled, splits_of
    from asr.apps.doctor.page import Diagnosis
    from asr.apps.doctor.texts import character_findings
    from asr.base.storage.session import configure
    from asr.base.text.normalize import as_written, get_normalizer
    from asr.core.data.corpus import prepare_if_absent, read_corpus
    from asr.core.data.index_cache import IndexCache
    from asr.core.hub.models import load_recognizer
    from asr.core.run.names import DOCTOR

    configure(settings.data.storage)
    _ = settings.data.plan.batches.seconds  # auto is refused
    source = settings.doctor.model
    recognizer = (
        load_recognizer(source) if source is not None else None
    )  # loaded first, because the examination may take an hour
    run_dir = Path(settings.run_dir)
    diagnosis = Diagnosis(settings.corpus.name, Path(settings.doctor.report or run_dir / DOCTOR))
    prepare_if_absent(settings.corpus)
    manifests = Manifests(IndexCache(settings.data.index_dir))
    written = read_corpus(settings.corpus, as_written, manifests)
    for utterances, given in ((written.train, settings.corpus.train), (written.valid, settings.corpus.valid)):
        if given and not utterances:
            raise manifests.problems[0]
    written.check_shards()
    sample, facts = sampled(written, settings.doctor.max_utterances, settings.seed)
    diagnosis.add([*manifests.findings(), *character_findings(splits_of(sample))], facts)
    normalize = get_normalizer(settings.components["normalizer"])
    corpus, sample = written.normalized(normalize), sample.normalized(normalize)
    _examine(settings, sample, diagnosis, recognizer)
    try:
        _forecast(settings, corpus, sample, diagnosis)
    except InputError as error:
        diagnosis.refuse(error)
    diagnosis.conclude()


def _examine(
    settings: "RunSettings", corpus: "Corpus", diagnosis: "Diagnosis", recognizer: "Recognizer | None"
) -> None:
    """Examine the corpus and, with a model, the alignment of its texts, with a progress bar."""
    from asr.apps.doctor.alignment import alignment_findings
    from asr.apps.doctor.examination import bounds_of, examine
    from asr.core.cli.command import progress_bar

    with progress_bar() as bar:

        def progress(description: str, total: float) -> "OnProgress":
            return _task(bar, description, total)

        examination = examine(corpus, bounds_of(settings), progress)
        findings = examination.findings
        if recognizer is not None:
            findings = [*findings, *alignment_findings(recognizer, examination.measured, progress)]
    diagnosis.add(findings, examination.facts)


def _task(bar: "Progress", description: str, total: float) -> "OnProgress":
    task = bar.add_task(description, total=total)
    return lambda done: bar.advance(task, done)


def _forecast(settings: "RunSettings", corpus: "Corpus", sample: "Corpus", diagnosis: "Diagnosis") -> None:
    """Make the model, forecast memory, run trial steps, and estimate the time of a training."""
    import torch

    from asr.apps.doctor.finding import Severity
    from asr.apps.doctor.forecast import forecast, fresh_model
    from asr.apps.doctor.learning_rates import NUM_STEPS, range_test
    from asr.apps.doctor.page import range_chart, rate_chart
    from asr.core.cli.command import progress_bar
    from asr.core.training.gradient_checkpointing import recompute_blocks

    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(settings.seed)
    model, utterances, findings = fresh_model(settings, corpus, sample)
    diagnosis.add(findings)
    if not utterances:
        raise InputError("at least one training utterance must remain; all have characters without a token.")
    if settings.gradient_checkpointing:
        recompute_blocks(model.encoder)
    untrained = copy.deepcopy(model) if settings.doctor.learning_rates else None
    fits = True
    for part in forecast(settings, utterances, model):
        diagnosis.add(part.findings, part.facts)
        fits &= not any(finding.kind == "memory" and finding.severity == Severity.ERROR for finding in part.findings)
        if part.rates is not None:
            diagnosis.draw(rate_chart(part.rates))
    if untrained is not None and fits:
        with progress_bar() as bar:
            on_progress = _task(bar, "steps with rising learning rates", NUM_STEPS)
            test = range_test(settings, utterances, untrained, on_progress)
        diagnosis.add([], [("learning rates", test.summary(settings.components["optimizer"]["lr"]))])
        diagnosis.draw(range_chart(test))


main = experiment_command(doctor, read=read_recognition)

if __name__ == "__main__":
    main()
