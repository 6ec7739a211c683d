"""What a run has gained over the model that it started from, and what it has forgotten."""

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
    """Compare a run's results with those of the model that it started from; say and keep what was gained.

    That model recognises with the run's decoder, or with its own where its head is of another kind, and is scored by
    the run's normaliser. A comparison that cannot be made is a warning, since the run itself is whole.

    Args:
        run_dir: the run folder.
        decode: settings of the run's decoder.
        start: that model.
        tests: utterances by the manifest's name.
        results: of the run's bundle, on the same.
        device: to recognise on.
    """
    comparisons = {}
    try:
        recognizer = start.recognizer(decode, device)
        for name, after in results.items():
            before = evaluate(recognizer, name, tests[name], normalize=get_normalizer(after.normalizer))
            comparisons[name] = compare(before.scored, after.scored)
            logger.info("%s: %s", printable(name), before_and_after(comparisons[name]))
    except InputError as error:
        logger.warning("what was gained is not known: %s", error)
    if comparisons:
        write_whole_text(run_dir / COMPARISON, json.dumps(comparisons, indent=2, allow_nan=False) + "\n")
