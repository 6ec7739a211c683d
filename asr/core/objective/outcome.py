"""End of a recogniser's run: write the bundle, evaluate it on test manifests, and compare it with the initial model."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.base.system.files import write_whole_text
from asr.base.text.normalize import get_normalizer
from asr.base.text.numbers import counted, percent
from asr.base.text.printable import printable
from asr.base.text.word_errors import total
from asr.core.checkpoint.adapted import ADAPTER, is_adapter, merged
from asr.core.checkpoint.bundle import CARD, read_bundle
from asr.core.checkpoint.load import bundle_recognizer
from asr.core.checkpoint.saved import CHECKPOINTS, SavedCheckpoint, by_score, kept_checkpoints
from asr.core.data.manifest import Utterance
from asr.core.evaluation.comparison import before_and_after, compare
from asr.core.evaluation.counts import count_utterances
from asr.core.evaluation.result import Evaluation, evaluate
from asr.core.objective.speech import write_speech_bundle
from asr.core.run.events import read_history
from asr.core.run.initialization import Initialization
from asr.core.run.names import COMPARISON, COUNTS, EVENTS, RESULTS
from asr.core.run.run_bundle import cell
from asr.core.run.settings import RunSettings
from asr.errors import InputError

BY_SCORE = ("best", "average_best")  # values of checkpoint.select that compare validations
LOOK = (  # causes in the order in which to check them
    "Look at report.html in run_dir. If hypotheses make no sense, check the texts and their tokens. If train/loss "
    "falls too slowly or rises, check optimizer.lr, schedule and trainer.max_steps. If train/loss is constant, check "
    "the encoder, the head and the features, which may be equal for all audio. If train/loss is small but hypotheses "
    "are wrong, check the decoder and the lengths, which may include padding or leave out frames."
)

logger = logging.getLogger(__name__)


def finish(
    settings: RunSettings,
    tests: Mapping[str, Sequence[Utterance]],
    device: Any,
    start: Initialization | None,
    valid_words: int,
) -> dict[str, Evaluation]:
    """Write the bundle, evaluate it on the test manifests, and compare it with the initial model.

    Args:
        settings: settings of the run.
        tests: utterances of each test manifest, by its name.
        device: device for recognition.
        start: the initial model; None: random weights.
        valid_words: number of words in the references of the validation set.
    """
    run_dir, bundle = Path(settings.run_dir), make_bundle(settings, start)
    if settings.checkpoint.select in BY_SCORE:
        warn_of_chance(kept_checkpoints(run_dir / CHECKPOINTS), settings.checkpoint.select, valid_words)
    results = test_bundle(bundle, tests, device, start)
    for name, evaluation in results.items():
        logger.info("%s: %s", name, evaluation.summary())
    gains = (
        {}
        if start is None or not start.recognises
        else tell_gains(run_dir, settings.components["decode"], start, tests, results, device)
    )
    if results:
        write_results(bundle, results, gains)
    return results


def warn_of_chance(checkpoints: Sequence[SavedCheckpoint], selection: str, num_words: int) -> None:
    """Log a warning if the WERs of the validated checkpoints differ by less than the standard error of the best one.

    Errors are taken to be independent; as they are not, the true standard error is larger.

    Args:
        checkpoints: checkpoints of the run.
        selection: `checkpoint.select`.
        num_words: number of words in the references of the validation set.
    """
    scores = [checkpoint.score for checkpoint in by_score(checkpoints) if checkpoint.score is not None]
    if len(scores) < 2 or not num_words:
        return
    best, worst = min(1.0, scores[0]), scores[-1]
    standard_error = math.sqrt(best * (1 - best) / num_words)
    if worst - best < standard_error:
        difference = f"differ by {100 * (worst - best):.2f} points"
        error = f"the standard error of {counted(num_words, 'word')} is {100 * standard_error:.2f} points"
        warning = "validation WERs of the stored checkpoints %s, and %s, so checkpoint.select=%s selects by chance"
        logger.warning(warning + "; use average_last", difference, error, selection)


def check_learnt(results: Mapping[str, Evaluation], max_wer: float) -> None:
    """Check that the model has memorised the training utterances."""
    counts = total(evaluation.counts for evaluation in results.values())
    errors = f"{counts.errors} errors of {counts.reference_length} words"
    if not counts.rate <= max_wer:
        raise InputError(
            f"training utterances must be memorised, with a WER of at most {max_wer:.1%}; got {errors}. {LOOK}"
        )
    logger.info("training utterances are memorised: %s", errors)


def make_bundle(settings: RunSettings, start: Initialization | None) -> Path:
    """Write the bundle and the model card of a recogniser's run."""
    components, checkpoints = settings.components, kept_checkpoints(Path(settings.run_dir) / CHECKPOINTS)
    best = by_score(checkpoints)
    facts = {
        "text normaliser": components["normalizer"],
        "best validation WER": percent(best[0].score, 2) if best else "not measured",
    }
    added = ""
    if start is not None and ADAPTER in components:
        added = _ADAPTER_CARD.format(
            adapter=components[ADAPTER]["name"], base=start.source, sha256=start.fingerprint.hex()
        )
    use = f"Transcribe with `python -m asr.transcribe FOLDER AUDIO...`, where FOLDER is this one.\n{added}"
    return write_speech_bundle(settings, start, "A speech recogniser", use, facts)


_ADAPTER_CARD = """
This bundle contains only the weights of an adapter ({adapter}). The adapter needs its base model: give each command
the option `--base MODEL`, or merge adapter and base with `python -m asr.merge FOLDER --base MODEL -o MERGED`. The base
model was {base}; its tensors have the SHA-256 `{sha256}`.
"""


def test_bundle(
    bundle: Path, tests: Mapping[str, Sequence[Utterance]], device: Any, start: Initialization | None
) -> dict[str, Evaluation]:
    """Evaluate the bundle on the test manifests like `asr.evaluate`; write results.json and counts.json."""
    stored = read_bundle(bundle)
    if start is not None and is_adapter(stored.config):
        stored = merged(stored, bundle, start.bundle, Path(start.source))
    recognizer = bundle_recognizer(stored, bundle, device)
    results: dict[str, Evaluation] = {}
    lines, counts = {}, {}
    for name, utterances in tests.items():
        logger.info("measuring the bundle on %s: %s", printable(name), counted(len(utterances), "utterance"))
        evaluation = evaluate(recognizer, name, utterances)
        for rejected in evaluation.rejected:
            logger.warning("%s: not scored: %s", name, rejected.reason)
        results[name] = evaluation
        lines[name] = evaluation.as_dict()
        counts[name] = count_utterances(evaluation.scored).as_dict()
    write_whole_text(bundle.parent / COUNTS, json.dumps(counts) + "\n")
    write_whole_text(bundle.parent / RESULTS, json.dumps(lines, indent=2) + "\n")
    return results


def tell_gains(
    run_dir: Path,
    decode: Mapping[str, Any],
    start: Initialization,
    tests: Mapping[str, Sequence[Utterance]],
    results: Mapping[str, Evaluation],
    device: Any,
) -> dict[str, str]:
    """Compare a run's results with those of its initial model; log and store the comparison.

    The initial model uses the run's decoder, or the decoder of its own bundle if the run's decoder does not support the
    initial model's head. Both results are scored with the run's normaliser. If the comparison fails, a warning is
    logged, because the run itself is complete.

    Returns:
        A line for each test manifest.
    """
    comparisons, lines = {}, {}
    try:
        recognizer = start.recognizer(decode, device)
        for name, after in results.items():
            logger.info("measuring %s on %s for comparison", printable(start.source), printable(name))
            before = evaluate(recognizer, name, tests[name], normalize=get_normalizer(after.normalizer))
            comparisons[name] = compare(before.scored, after.scored)
            lines[name] = before_and_after(comparisons[name])
            logger.info("%s: %s", printable(name), lines[name])
    except InputError as error:
        logger.warning("results cannot be compared with the initial model: %s", error)
    if comparisons:
        write_whole_text(run_dir / COMPARISON, json.dumps(comparisons, indent=2, allow_nan=False) + "\n")
    return lines


def write_results(bundle: Path, results: Mapping[str, Evaluation], gains: Mapping[str, str]) -> None:
    """Add the results of the tests to a bundle's card.

    Args:
        bundle: folder of the bundle.
        results: results of the bundle, by test manifest.
        gains: a line about the bundle and its initial model, by test manifest.
    """
    lines = [f"| {cell(name)} | {gains.get(name, evaluation.summary())} |" for name, evaluation in results.items()]
    start = read_history(bundle.parent / EVENTS).latest
    shared = start.shared_texts if start is not None else 0
    note = f"\n{counted(shared, 'test utterance')} with a text of the training set.\n" if shared else ""
    card = (bundle / CARD).read_text(encoding="utf-8")
    table = "\n".join(["## Tests", "", "| manifest | result |", "|---|---|", *lines])
    write_whole_text(bundle / CARD, f"{card}\n{table}\n{note}")
