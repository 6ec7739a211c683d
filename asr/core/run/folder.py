"""The run folder: lock, log, resolved config, and files of fitted components."""

import fcntl
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from asr.base.system.files import NO_ROOM, UNFINISHED, remove_unfinished, write_whole, write_whole_text
from asr.base.text.printable import LineFormatter
from asr.core import build
from asr.core.checkpoint.load import BUNDLE
from asr.core.checkpoint.saved import CHECKPOINTS
from asr.core.data.corpus import Corpus
from asr.core.data.dataset import energies
from asr.core.data.index_cache import IndexCache, spread
from asr.core.data.labels import Labels
from asr.core.data.utterances import Utterances
from asr.core.recognition.confidence import FILE as CALIBRATION
from asr.core.run.events import EventsFile, WarningEvents
from asr.core.run.initialization import Initialization
from asr.core.run.names import CONFIG, EXAMPLES, FITTED, LOG, METRICS
from asr.core.run.settings import RunSettings
from asr.errors import InputError
from asr.interfaces import Features, Tokenizer

logger = logging.getLogger(__name__)


class RunLog(logging.Handler):
    """Passes log records to the handlers of a run folder, from the start of the run on.

    A command may be refused after the folder is opened, for example because its settings differ from those of the run
    in the folder. Such a command leaves no trace in the run's log and report.

    Args:
        targets: handlers that write to the run folder.
    """

    def __init__(self, *targets: logging.Handler) -> None:
        super().__init__()
        self._targets = targets
        self._waiting: list[logging.LogRecord] | None = []  # records before the run starts

    def begin(self) -> None:
        """Pass on the records so far, and each further record."""
        waiting, self._waiting = self._waiting or [], None
        for record in waiting:
            self.emit(record)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on a record, or store it until the run starts."""
        if self._waiting is not None:
            self._waiting.append(record)
            return
        for target in self._targets:
            if record.levelno >= target.level:
                target.handle(record)

    def close(self) -> None:
        """Close the targets, which releases the lock of the run folder."""
        for target in self._targets:
            target.close()
        super().close()


def open_run_dir(run_dir: Path) -> None:
    """Create or reopen the run folder; open and lock its log."""
    if (run_dir / BUNDLE / CALIBRATION).exists():  # checked before training, not only when the bundle is written
        must = f"run_dir={run_dir} must not contain a bundle that asr.tune has tuned, because training would replace it"
        raise InputError(f"{must}. Move {run_dir / BUNDLE} elsewhere, or remove it, and tune the new bundle.")
    for earlier in _run_logs():
        logging.getLogger("asr").removeHandler(earlier)
        earlier.close()  # before locking, because closing any handle of a file releases the process's locks on it
    try:
        (run_dir / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        log = logging.FileHandler(run_dir / LOG, encoding="utf-8")
    except OSError as error:
        raise InputError(f"run_dir={run_dir} must be a writable folder; got: {error}.") from None
    try:
        fcntl.lockf(log.stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[arg-type]  # the stream is open; the lock ends with the process
    except (BlockingIOError, PermissionError):
        must = f"run_dir={run_dir} must be used by one training run at a time; another process is using it"
        raise InputError(f"{must}. Wait for it, stop it, or give another run_dir.") from None
    except OSError as error:  # a file system without locks
        logger.warning("%s cannot be locked (%s): do not start a second training run in it", run_dir, error)
    log.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
    targets = log, WarningEvents(EventsFile(run_dir))
    for target in targets:
        target.handleError = partial(_unless_disk_is_full, target.handleError)  # type: ignore[method-assign]
    logging.getLogger("asr").addHandler(RunLog(*targets))
    remove_unfinished(run_dir)
    remove_unfinished(run_dir / CHECKPOINTS)


def begin_log() -> None:
    """Write to the log of the open run folder from now on, as the command is not refused."""
    for log in _run_logs():
        log.begin()


def _run_logs() -> list[RunLog]:
    """Return the run logs that `open_run_dir` has added in this process."""
    return [handler for handler in logging.getLogger("asr").handlers if isinstance(handler, RunLog)]


def _unless_disk_is_full(print_traceback: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    """Print the traceback of an error in a log handler, unless the disk is full.

    The line is also on stderr, and the run itself ends with one line when it writes its next file.
    """
    error = sys.exception()
    if not isinstance(error, OSError) or error.errno not in NO_ROOM:
        print_traceback(record)


def save_config(run_dir: Path, resolved: Mapping[str, Any]) -> None:
    """Write the resolved config."""
    write_whole_text(run_dir / CONFIG, yaml.safe_dump(dict(resolved), sort_keys=False))


def read_config(run_dir: Path) -> dict[str, Any]:
    """Read what `save_config` wrote."""
    resolved: dict[str, Any] = yaml.safe_load((run_dir / CONFIG).read_text(encoding="utf-8"))
    return resolved


def begin_anew(run_dir: Path) -> None:
    """Remove the files of an earlier run that was stopped before its first checkpoint."""
    if (run_dir / BUNDLE).is_dir():
        must = f"run_dir={run_dir} must be new or have checkpoints to resume from; it has a bundle but no checkpoint"
        raise InputError(f"{must}. Give another run_dir, or remove {run_dir}.")
    shutil.rmtree(run_dir / FITTED, ignore_errors=True)
    for name in (METRICS, EXAMPLES):
        (run_dir / name).unlink(missing_ok=True)


def fitted_front_end(
    settings: RunSettings, corpus: Corpus, keep: bool, start: Initialization | None
) -> tuple[Tokenizer, Features, Labels]:
    """Load tokenizer, features and labels from the run folder or the initial model, or fit them to the training set.

    Args:
        settings: settings of the run.
        corpus: corpus whose training set is used for fitting.
        keep: whether to store fitted files in the run folder.
        start: the initial model; None: random weights.
    """
    components = settings.components
    tokenizer, features = build.build_tokenizer(components), build.build_features(components)
    labels = build.build_labels(components)
    parts = {
        "tokenizer": FittedPart(tokenizer, partial(_fit_once, tokenizer, settings, corpus.train)),
        "features": statistics_of(features, settings, corpus.train),
        "prompt": FittedPart(labels, partial(labels.fit, corpus.train)),
    }
    if settings.init.extend_tokenizer is not None and start is not None:
        del parts["tokenizer"]  # made again when a run is resumed: its size is not that of the settings
        start.extend_tokenizer(tokenizer, settings, corpus.train.texts)
    load_or_fit(settings, parts, keep, start)
    return tokenizer, features, labels


class FittedPart(NamedTuple):
    """A component that is fitted to the training set, and stored in files.

    Args:
        component: the component.
        fit: fits it.
    """

    component: Any
    fit: Callable[[], None]


def statistics_of(features: Features, settings: RunSettings, utterances: Utterances) -> FittedPart:
    """Return the features' normalisation, which is fitted to the energies of these utterances."""
    normalize: Any = features.normalize
    return FittedPart(normalize, lambda: normalize.fit(energies(utterances, features, seed=settings.seed)))


def load_or_fit(
    settings: RunSettings, parts: Mapping[str, FittedPart], keep: bool, start: Initialization | None
) -> dict[str, bytes]:
    """Load parts from the run folder or the initial model, or fit them; return their files, by name.

    Args:
        settings: settings of the run.
        parts: parts, by the section of their component.
        keep: whether to store the files in the run folder.
        start: the initial model; None: random weights.
    """
    run_dir = Path(settings.run_dir)
    files = load_fitted(run_dir)
    for section, (component, fit) in parts.items():
        learnt = files or (start.learnt(settings.components, section) if start else None)
        if learnt is None:
            fit()
            continue
        try:
            component.load(learnt)
        except KeyError as absent:
            if not files:
                raise
            must = f"{run_dir} has a run with another tokenizer, other features or labels"
            given = f"{FITTED}/ has no {absent.args[0]}"
            raise InputError(f"{must} ({given}); give another run_dir, or the same settings.") from None
    fitted = {name: content for part in parts.values() for name, content in part.component.files().items()}
    if keep and not files:
        save_fitted(run_dir, fitted)
    return fitted


def _fit_once(tokenizer: Tokenizer, settings: RunSettings, utterances: Utterances) -> None:
    """Fit a tokenizer to texts, or load the files of an earlier fit from the cache of indexes."""
    if utterances.source is None:
        tokenizer.fit(utterances.texts)
        return

    def fit() -> np.ndarray:
        tokenizer.fit(utterances.texts)
        files = {name: content.decode("latin-1") for name, content in tokenizer.files().items()}
        return np.frombuffer(json.dumps(files).encode(), dtype=np.uint8)

    chosen = [settings.components[group] for group in ("normalizer", "tokenizer")]
    probes = [utterances[index].text for index in spread(len(utterances))]
    stored = IndexCache(settings.data.index_dir).numbers(repr(("tokenizer", utterances.source, chosen, probes)), fit)
    tokenizer.load({name: text.encode("latin-1") for name, text in json.loads(stored.tobytes()).items()})


def save_fitted(run_dir: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of the fitted components atomically."""
    unfinished = run_dir / f".{FITTED}{UNFINISHED}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name, content in files.items():
        write_whole(unfinished / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    os.replace(unfinished, run_dir / FITTED)


def load_fitted(run_dir: Path) -> dict[str, bytes]:
    """Read the files that `save_fitted` wrote; empty in a new run."""
    folder = run_dir / FITTED
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return {file.name: file.read_bytes() for file in files}
