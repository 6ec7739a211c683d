"""The run folder: its log, its resolved config, what was fitted, its bundle and its results."""

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from asr.checkpoint import BUNDLE, CHECKPOINTS, load_recognizer, write_bundle
from asr.errors import InputError
from asr.evaluation import evaluate
from asr.manifest import Utterance
from asr.score import ErrorCounts

logger = logging.getLogger(__name__)

CONFIG, LOG, METRICS, RESULTS, FITTED = "config.yaml", "train.log", "metrics.csv", "results.json", "fitted"
LAST = "last"
KEPT_NAME = "epoch={epoch}-step={step}-wer={valid/wer:.4f}"  # Lightning fills it in
SIMILAR = 4.0  # times the best WER: what is worse had hardly begun to learn, and is not averaged
MAY_CHANGE = ("trainer", "run_dir", "checkpoint", "data.num_workers", "num_threads")  # between the parts of one run
SELECTIONS = ("best", "last", "average")  # of checkpoint.select


def open_run_dir(config: Mapping[str, Any], rank: int) -> Path:
    """Make the run folder, or find the unfinished run in it; start the log; keep the resolved config.

    Raises:
        InputError: the folder holds a run with other settings, which are named, or cannot be written to.
    """
    run_dir = Path(config["run_dir"])
    select = config["checkpoint"]["select"]
    if select not in SELECTIONS:  # now, and not when the training is over
        raise InputError(f"checkpoint.select must be one of {', '.join(SELECTIONS)}; got {select!r}.")
    started = run_dir / CONFIG
    if started.is_file():
        earlier = yaml.safe_load(started.read_text(encoding="utf-8"))
        changes = [change for change in differences(earlier, config) if not change.startswith(MAY_CHANGE)]
        if changes and last_checkpoint(run_dir) is not None:
            must = f"{run_dir} holds a run with other settings; give another run_dir, or the same settings"
            raise InputError(f"{must}. Different: {'; '.join(changes)}.")
        if changes and rank == 0:  # nothing was kept: the run begins anew
            shutil.rmtree(run_dir / FITTED, ignore_errors=True)
            (run_dir / METRICS).unlink(missing_ok=True)
    if rank == 0:
        try:
            (run_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
            started.write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
        except OSError as error:
            raise InputError(f"run_dir={run_dir} must be a folder that can be written to; {error}.") from None
        to_file = logging.FileHandler(run_dir / LOG, encoding="utf-8")
        to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger("asr").addHandler(to_file)
    return run_dir


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """List what two resolved configs do not agree in, as `key: old -> new`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(name for name in new if name not in old)]
        dotted = {name: f"{key}.{name}" if key else str(name) for name in keys}
        return [line for name in keys for line in differences(old.get(name), new.get(name), dotted[name])]
    return [] if old == new else [f"{key}: {old!r} -> {new!r}"]


def save_fitted(run_dir: Path, files: Mapping[str, bytes]) -> None:
    """Keep what tokenizer and features learnt, so that a run that goes on takes up the same."""
    folder = run_dir / FITTED
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        unfinished = folder / f".{name}.{os.getpid()}"
        unfinished.write_bytes(content)
        os.replace(unfinished, folder / name)


def load_fitted(run_dir: Path) -> dict[str, bytes]:
    """Read what `save_fitted` kept; empty in a new run."""
    folder = run_dir / FITTED
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {file.name: file.read_bytes() for file in files if not file.name.startswith(".")}


def last_checkpoint(run_dir: Path) -> Path | None:
    """Find the checkpoint to go on from."""
    last = run_dir / CHECKPOINTS / f"{LAST}.ckpt"
    return last if last.is_file() else None


def kept_checkpoints(run_dir: Path, keep: int) -> dict[Path, float]:
    """Find the `keep` checkpoints of best validation WER, best first; their names tell it."""
    found = {}
    for path in sorted((run_dir / CHECKPOINTS).glob("epoch=*.ckpt")):
        if match := re.search(r"-wer=(\d+\.\d+)$", path.stem):
            found[path] = float(match[1])
    return dict(sorted(found.items(), key=lambda item: item[1])[:keep])


def select_checkpoints(select: str, kept: Mapping[Path, float], last: Path) -> list[Path]:
    """Choose the checkpoints that a bundle is made of.

    Args:
        select: one of `SELECTIONS`.
        kept: checkpoint to validation WER, best first.
        last: the last checkpoint.
    """
    if select == "last" or not kept:
        return [last]
    best = min(kept.values())
    return [path for path, wer in kept.items() if wer <= SIMILAR * best] if select == "average" else [*kept][:1]


def make_bundle(run_dir: Path, config: Mapping[str, Any], last_step: int) -> Path:
    """Write the run's bundle, with its model card.

    Args:
        run_dir: the run folder.
        config: of the run; `checkpoint.select` says which checkpoints the weights are of.
        last_step: of the last checkpoint.
    """
    kept = kept_checkpoints(run_dir, config["checkpoint"]["keep"])
    checkpoints = select_checkpoints(config["checkpoint"]["select"], kept, run_dir / CHECKPOINTS / f"{LAST}.ckpt")
    card = _CARD.format(
        name=run_dir.name,
        corpus=config["corpus"]["name"],
        encoder=config["encoder"]["name"],
        normalizer=config["normalizer"],
        sample_rate=config["features"]["sample_rate"],
        select=config["checkpoint"]["select"],
        checkpoints=", ".join(one.stem if one in kept else f"step={last_step}" for one in checkpoints),
        wer=f"{100 * min(kept.values()):.2f} %" if kept else "not measured",
    )
    write_bundle(run_dir / BUNDLE, checkpoints, card)
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


def test_bundle(bundle: Path, tests: Mapping[str, Sequence[Utterance]], device: Any) -> dict[str, ErrorCounts]:
    """Score the bundle on the test manifests, as `asr.evaluate` does, and keep the counts in the run folder."""
    recognizer = load_recognizer(bundle, device)
    results: dict[str, ErrorCounts] = {}
    for name, utterances in tests.items():
        evaluation = evaluate(recognizer, utterances)
        for rejected in evaluation.rejected:
            logger.warning("%s: not scored: %s", name, rejected.reason)
        results[name] = evaluation.counts
    lines = {name: counts.as_dict() for name, counts in results.items()}
    (bundle.parent / RESULTS).write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
    return results
