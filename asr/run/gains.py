"""Comparison of a run's results with those of its initial model."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.data.manifest import Utterance
from asr.errors import InputError
from asr.evaluation.comparison import before_and_after, compare
from asr.evaluation.result import Evaluation, evaluate
from asr.run.initialization import Initialization
from asr.run.names import COMPARISON
from asr.system.files import write_whole_text
from asr.text.normalize import get_normalizer
from asr.text.printable import printable

logger = logging.getLogger(__name__)


def tell_gains(
    run_dir: Path,
    decode: Mapping[str, Any],
    start: Initialization,
    tests: Mapping[str, Sequence[Utterance]],
    results: Mapping[str, Evaluation],
    device: Any,
) -> None:
    """Compare a run's results with those of its initial model; log and store the comparison.

    The initial model uses the run's decoder, or the decoder of its own bundle if the run's decoder does not support the
    initial model's head. Both results are scored with the run's normaliser. If the comparison fails, a warning is
    logged, because the run itself is complete.

    Args:
        run_dir: the run folder.
        decode: settings of the run's decoder.
        start: the initial model.
        tests: utterances of each test manifest, by its name.
        results: results of the run's bundle on these utterances.
        device: device for recognition.
    """
    comparisons = {}
    try:
        recognizer = start.recognizer(decode, device)
        for name, after in results.items():
            logger.info("measuring %s on %s for comparison", printable(start.source), printable(name))
            before = evaluate(recognizer, name, tests[name], normalize=get_normalizer(after.normalizer))
            comparisons[name] = compare(before.scored, after.scored)
            logger.info("%s: %s", printable(name), before_and_after(comparisons[name]))
    except InputError as error:
        logger.warning("results cannot be compared with the initial model: %s", error)
    if comparisons:
        write_whole_text(run_dir / COMPARISON, json.dumps(comparisons, indent=2, allow_nan=False) + "\n")
