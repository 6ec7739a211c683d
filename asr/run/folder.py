"""The run folder: its log, its resolved config, what was fitted, its bundle and its results."""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from asr import build
from asr.checkpoint.load import BUNDLE, CHECKPOINTS, fitted_files, load_recognizer, write_bundle
from asr.checkpoint.saved import by_wer, damage, kept_checkpoints, select
from asr.data.corpus import Corpus
from asr.data.dataset import energies
from asr.data.manifest import Utterance
from asr.errors import InputError
from asr.evaluation.result import Evaluation, evaluate
from asr.interfaces import Features, Tokenizer
from asr.recognition.confidence import FILE as CALIBRATION
from asr.run.events import EventsFile, WarningEvents
from asr.run.names import CONFIG, EVENTS, EXAMPLES, FITTED, LOG, METRICS, RESULTS
from asr.system.files import UNFINISHED, remove_unfinished, write_whole, write_whole_text
from asr.text.numbers import percent
from asr.text.printable import LineFormatter

logger = logging.getLogger(__name__)


def open_run_dir(run_dir: Path) -> None:
    """Make the run folder, or enter the one that is there; start the log, and lock it.

    Raises:
        InputError: it cannot be written to, or another training is at work in it, or its bundle was tuned.
    """
    if (run_dir / BUNDLE / CALIBRATION).exists():  # said now, and not when the bundle is to be replaced
        must = f"run_dir={run_dir} must not hold a tuned bundle, which training would replace; asr.tune has written it"
        raise InputError(f"{must}. Move {run_dir / BUNDLE} elsewhere, or remove it, and tune the new one.")
    try:
        (run_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        log = (run_dir / LOG).open("a", encoding="utf-8")
    except OSError as error:
        raise InputError(f"run_dir={run_dir} must be a folder that can be written to; {error}.") from None
    try:
        fcntl.lockf(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with this process, however it ends
    except (BlockingIOError, PermissionError):
        must = f"run_dir={run_dir} must belong to one training at a time; another process is at work in it"
        raise InputError(f"{must}. Wait for it, stop it, or give another run_dir.") from None
    except OSError as error:  # a file system that knows no locks
        logger.warning("%s cannot be locked (%s): see to it that no second training is started in it", run_dir, error)
    to_file = logging.StreamHandler(log)
    to_file.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("asr").addHandler(to_file)
    logging.getLogger("asr").addHandler(WarningEvents(EventsFile(run_dir / EVENTS)))
    remove_unfinished(run_dir)
    remove_unfinished(run_dir / CHECKPOINTS)


def save_config(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Keep the resolved config."""
    write_whole_text(run_dir / CONFIG, yaml.safe_dump(dict(config), sort_keys=False))


def begin_anew(run_dir: Path) -> None:
    """Forget what an earlier run left that has no checkpoint to go on from.

    Raises:
        InputError: it left a bundle.
    """
    if (run_dir / BUNDLE).is_dir():
        must = f"run_dir={run_dir} must be new, or have checkpoints to go on from; it has a bundle and no checkpoint"
        raise InputError(f"{must}. Give another run_dir, or remove {run_dir}.")
    shutil.rmtree(run_dir / FITTED, ignore_errors=True)
    for name in (METRICS, EXAMPLES):
        (run_dir / name).unlink(missing_ok=True)


def fitted_front_end(
    config: Mapping[str, Any], corpus: Corpus, run_dir: Path, keep: bool
) -> tuple[Tokenizer, Features]:
    """Make tokenizer and features; take up what the run learnt before, or fit them to the training set.

    Args:
        config: the resolved config.
        corpus: to fit to.
        run_dir: the run folder; where what was learnt is, or will be.
        keep: whether to keep what was learnt there.
    """
    tokenizer, features = build.build_tokenizer(config), build.build_features(config)
    files = load_fitted(run_dir)
    if files:
        tokenizer.load(files)
        features.normalize.load(files)
    else:
        tokenizer.fit(utterance.text for utterance in corpus.train)
        features.normalize.fit(energies(corpus.train, features, seed=config["seed"]))
        if keep:
            save_fitted(run_dir, fitted_files(tokenizer, features))
    return tokenizer, features


def save_fitted(run_dir: Path, files: Mapping[str, bytes]) -> None:
    """Keep what tokenizer and features learnt, all of it or nothing."""
    unfinished = run_dir / f".{FITTED}{UNFINISHED}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name, content in files.items():
        write_whole(unfinished / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    os.replace(unfinished, run_dir / FITTED)


def load_fitted(run_dir: Path) -> dict[str, bytes]:
    """Read what `save_fitted` kept; empty in a new run."""
    folder = run_dir / FITTED
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {file.name: file.read_bytes() for file in files}


def make_bundle(run_dir: Path, config: Mapping[str, Any]) -> Path:
    """Write the run's bundle, with its model card; `checkpoint.select` says which checkpoints the weights are of."""
    checkpoints = []
    for kept in kept_checkpoints(run_dir / CHECKPOINTS):
        if (reason := damage(kept.path)) is None:
            checkpoints.append(kept)
        else:
            logger.warning("%s is damaged (%s), and left out of the bundle", kept.path, reason)
    chosen = select(config["checkpoint"]["select"], checkpoints, config["checkpoint"]["keep"])
    best = by_wer(checkpoints)
    card = _CARD.format(
        name=run_dir.name,
        corpus=config["corpus"]["name"],
        encoder=config["encoder"]["name"],
        normalizer=config["normalizer"],
        sample_rate=config["features"]["sample_rate"],
        select=config["checkpoint"]["select"],
        checkpoints=", ".join(one.path.stem for one in chosen),
        wer=percent(best[0].wer, 2) if best else "not measured",
    )
    write_bundle(run_dir / BUNDLE, [one.path for one in chosen], card, config["decode"])
    return run_dir / BUNDLE


_CARD = """# {name}

A speech recogniser trained by `python -m asr.train`.

| | |
|---|---|
| corpus | {corpus} |
| encoder | {encoder} |
| text normaliser | {normalizer} |
| sample rate | {sample_rate} Hz; audio of any other is resampled |
| weights | {select} of the run: {checkpoints} |
| best validation WER | {wer} |

Transcribe with `python -m asr.transcribe FOLDER AUDIO...`, where FOLDER is this one.
"""


def test_bundle(bundle: Path, tests: Mapping[str, Sequence[Utterance]], device: Any) -> dict[str, Evaluation]:
    """Score the bundle on the test manifests, as `asr.evaluate` does, and keep the counts in the run folder."""
    recognizer = load_recognizer(bundle, device)
    results: dict[str, Evaluation] = {}
    lines = {}
    for name, utterances in tests.items():
        evaluation = evaluate(recognizer, name, utterances)
        for rejected in evaluation.rejected:
            logger.warning("%s: not scored: %s", name, rejected.reason)
        results[name] = evaluation
        lines[name] = evaluation.as_dict()
    write_whole_text(bundle.parent / RESULTS, json.dumps(lines, indent=2) + "\n")
    return results
