"""The page of a training run: curves, examples, warnings and settings."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from asr.apps.report.language_model import is_language_model, perplexity_tiles, text_facts
from asr.apps.report.training_charts import VALID, charts, missing, smoothing
from asr.apps.report.training_examples import examples
from asr.apps.report.training_gains import gains
from asr.apps.report.training_manifests import manifests_section
from asr.apps.report.training_shares import shares
from asr.apps.web.curves import Curve, read_curves
from asr.apps.web.figures import facts, figure
from asr.apps.web.page import escape, page
from asr.base.system.files import real, write_whole_text
from asr.base.text.numbers import NONE, counted, duration, interval, number, percent
from asr.base.text.scripts import NO_WORDS
from asr.core.run.events import History, Started, read_history
from asr.core.run.names import COMPARISON, CONFIG, EVENTS, EXAMPLES, LOG, METRICS, PROFILE, REPORT, RESULTS, SHARES
from asr.core.run.validation_samples import ValidationSample, read_samples

logger = logging.getLogger(__name__)

MAX_WARNINGS = 200


@dataclass(frozen=True)
class Record:
    """The content of a run folder's files; an absent file gives an empty value.

    Args:
        name: name of the folder.
        config_text: config.yaml.
        settings: the parsed config.yaml.
        curves: metrics.csv.
        examples: examples.jsonl.
        results: results.json, by test manifest.
        comparisons: comparison.json, by test manifest.
        shares: shares.json of asr.finetune.
        history: events.jsonl.
        profile: profile.txt of debug=profile.
    """

    name: str
    config_text: str
    settings: Mapping[str, Any]
    curves: Mapping[str, Curve]
    examples: Sequence[ValidationSample]
    results: Mapping[str, Mapping[str, Any]]
    comparisons: Mapping[str, Mapping[str, Any]]
    shares: Mapping[str, Any]
    history: History
    profile: str


def leave_report(run_dir: Path) -> None:
    """Write the page of a finished run; if this fails, log a warning, because the run itself is complete."""
    path = run_dir / REPORT
    try:
        write_whole_text(path, training_page(read_record(run_dir)))
    except OSError as error:
        logger.warning("%s could not be written; all other results are complete: %s", path, error.strerror)
    except Exception:  # a fault in the page must not fail a run that may have taken days
        logger.warning("%s could not be made; all other results are complete", path, exc_info=True)
    else:
        logger.info("report written to %s", path)


def read_record(run_dir: Path) -> Record:
    """Read the files of a run.

    Raises:
        OSError: a file exists and cannot be read.
    """
    text = _text(run_dir / CONFIG)
    return Record(
        real(run_dir).name,
        config_text=text,
        settings=_settings(text),
        curves=read_curves(run_dir / METRICS),
        examples=read_samples(run_dir / EXAMPLES),
        results=_results(_text(run_dir / RESULTS)),
        comparisons=_comparisons(_text(run_dir / COMPARISON)),
        shares=_json(_text(run_dir / SHARES)),
        history=read_history(run_dir / EVENTS),
        profile=_text(run_dir / PROFILE),
    )


def training_page(record: Record) -> str:
    """Return the page of a run."""
    title = f"Training run {record.name}"
    clip = _at(record.settings, "trainer", "gradient_clip_val")
    drawn = charts(record.curves, clip if isinstance(clip, int | float) else None)
    is_text = is_language_model(record.settings)
    headline, about, notes = _headline(record), _facts(record), _notes(record)
    if is_text:
        headline = [*perplexity_tiles(record.results, record.curves), *_time_tile(record.history)]
        about = [*text_facts(record.settings), *about]
    parts = [
        f"<main><header><h1>{escape(title)}</h1>",
        f'<div class="headline">{"".join(headline)}</div>{facts(about)}</header>',
        f"<section><h2>Change from the start</h2>{_gains(record)}</section>" if record.comparisons else "",
        f"<section><h2>Share of the initial model</h2>{chosen}</section>" if (chosen := shares(record.shares)) else "",
        "<section><h2>Curves</h2>",
        f'<p class="note">{escape(" ".join(notes))}</p>' if notes else "",
        f'<div class="charts">{"".join(drawn)}</div></section>',
        f"<section><h2>Profile</h2>{_preformatted(record.profile)}</section>" if record.profile else "",
        manifests_section(record.curves),
        f"<section><h2>Hypotheses during training</h2>{examples(record.examples)}</section>"
        if recognises(record.settings) and _validated(record)
        else "",
        "<section><h2>Warnings, dropped and skipped utterances</h2>",
        _warnings(record),
        "</section><section><h2>Settings</h2>",
        _config(record),
        "</section></main>",
    ]
    return page(title, "\n".join(parts), scripts=["chart.js"])


def recognises(settings: Mapping[str, Any]) -> bool:
    """Whether settings are those of a recogniser's training; an older run has no objective."""
    return not is_language_model(settings) and ("head" in settings or "objective" not in settings)


def _validated(record: Record) -> bool:
    """Whether the run has validated a model; true, too, if its files are missing and do not answer this."""
    if record.examples or any(
        len(curve) or curve.not_finite for name, curve in record.curves.items() if name.startswith(VALID)
    ):
        return True
    return _last_step(record.curves) is None and _at(record.settings, "corpus", "valid") != []


def _headline(record: Record) -> list[str]:
    history, curves = record.history, record.curves
    tiles = _test_tiles(record.results) + _validation_tiles(curves.get("valid/wer", Curve([], [])), not record.results)
    steps = [step for step in (history.step, _last_step(curves)) if step is not None]  # curves lack unlogged steps
    if steps:
        detail = [f"epoch {math.ceil(history.passes):,}"] if history.passes is not None else []
        tiles.append(figure("steps", "Optimizer steps", f"{max(steps):,}", detail))
    hours = history.latest.train.get("hours") if history.latest is not None else None
    if history.passes is not None and hours is not None:
        audio = f"about {number(round(history.passes * hours, 1))} h"
        times = f"{number(round(history.passes, 2))} times {number(round(hours, 2))} h"
        tiles.append(figure("audio", "Audio trained on", audio, [times]))
    return [*tiles, *_time_tile(history)]


def _time_tile(history: History) -> list[str]:
    if history.wall_seconds is None:
        return []
    return [figure("time", "Time", duration(history.wall_seconds), [_starts(history)])]


def _test_tiles(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    tiles: list[str] = []
    for name, result in results.items():
        words = result.get("reference_words")
        over = {"utterances": result.get("wer_interval"), "speakers": result.get("wer_speaker_interval")}
        details = [f"{interval(ends)} % over {unit}" for unit, ends in over.items() if ends]
        details += [f"{words:,} words"] if isinstance(words, int) else []
        raw = result.get("raw_wer")
        details += [f"{_rate(raw)} on texts as written"] if raw not in (None, result.get("wer")) else []
        if result.get("unspaced"):
            tiles.append(figure("cer", f"CER, {name}", _rate(result.get("cer")), [NO_WORDS], main=not tiles))
        tiles.append(figure("wer", f"WER, {name}", _rate(result.get("wer")), details, main=not tiles))
    return tiles


def _validation_tiles(wers: Curve, main: bool) -> list[str]:
    tiles = []
    if len(wers) and wers.steps[0] == 0:
        detail = ["of the initial model"]
        tiles = [figure("start_wer", "Validation WER before", _rate(wers.values[0]), detail)]
    wers = wers.since(1)
    if not len(wers):
        return tiles
    best, last = wers.values.index(min(wers.values)), len(wers) - 1
    where = [f"step {wers.steps[best]:,}{', the last one' if best == last else ''}"]
    tiles.append(figure("best_wer", "Best validation WER", _rate(wers.values[best]), where, main))
    if best != last:
        where = [f"step {wers.steps[last]:,}"]
        tiles.append(figure("last_wer", "Last validation WER", _rate(wers.values[last]), where))
    return tiles


def _rate(value: Any) -> str:
    return percent(value, 2) if isinstance(value, int | float) else NONE


def _facts(record: Record) -> list[tuple[str, str]]:
    """Describe the model and the data, if the files of the run contain this information."""
    start, settings = record.history.latest, record.settings
    net, data = _sizes(start)
    corpus = _at(settings, "corpus", "name")
    pairs = [*net, *([("Corpus", str(corpus))] if corpus is not None else []), *data]
    if (model := _at(settings, "init", "from")) is not None:
        pairs.append(("Started from", str(model)))
    if isinstance(trainer := settings.get("trainer"), Mapping):
        keys = ("accelerator", "devices", "num_nodes", "strategy", "precision")
        pairs.append(("Trainer", ", ".join(f"{key}={trainer[key]}" for key in keys if key in trainer)))
    if start is not None:
        origin = {"Command": start.command, "Code": start.code, "Libraries": start.libraries, "Machine": start.machine}
        pairs += [(name, text) for name, text in origin.items() if text]
    if start is not None and start.shared_texts:
        pairs.append(("Test", f"{counted(start.shared_texts, 'utterance')} with a text of the training set"))
    if record.history.began is not None:
        pairs.append(("Begun", f"{datetime.fromtimestamp(record.history.began, UTC):%Y-%m-%d %H:%M} UTC"))
    if record.history.early_end is not None:
        pairs.append(("Ended early", record.history.early_end))
    if not record.results and recognises(settings):
        pairs.append(("Not tested", f"there is no {RESULTS}: the run has not ended, or has no test manifest"))
    return pairs


def _sizes(start: Started | None) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Describe the model, and the amount of training and validation data."""
    if start is None:
        return [], []
    model, trained, validated = (
        ", ".join(f"{number(round(size, 2))} {'h' if unit == 'hours' else unit}" for unit, size in sizes.items())
        for sizes in (start.model, start.train, start.valid)
    )
    data = [("Trained on", trained), ("Validated on", validated or "nothing: corpus.valid is []")]
    return [("Model", f"{start.net}, {model}")], data


def _notes(record: Record) -> list[str]:
    """Describe the smoothing of the curves, and list missing metrics."""
    curves = record.curves
    if _last_step(curves) is None:
        return [f"No step was logged: {METRICS} is missing or empty."]
    notes = []
    if (width := smoothing(curves)) > 1:
        notes.append(f"Training curves: the mean of {width} neighbouring points, drawn over the points themselves.")
    if not (validated := _validated(record)):
        notes.append("There was no validation.")
    if absent := missing(curves, recognises(record.settings), validated):
        notes.append(f"Missing in {METRICS}: {', '.join(absent)}.")
    for name, curve in curves.items():
        if curve.not_finite:
            notes.append(f"{name} was not a finite number in {curve.not_finite:,} lines, which are left out.")
    return notes


def _warnings(record: Record) -> str:
    skipped = record.curves.get("train/skipped_utterances")
    maximum = max(skipped.values, default=0.0) if skipped is not None else 0.0
    lines = [f"Up to {maximum:,.0f} utterances of an epoch could not be read, and were skipped."] if maximum else []
    history = record.history
    warnings = history.warnings
    for message, times in list(warnings.items())[:MAX_WARNINGS]:
        lines.append(f"{message} ({times} times)" if times > 1 else message)
    if len(warnings) > MAX_WARNINGS:
        lines.append(f"… and {len(warnings) - MAX_WARNINGS:,} more, in {LOG}")
    notes = []
    if history.first is None:
        notes.append(f"{EVENTS} does not record how this run started; see {LOG}.")
    elif history.first.step:
        notes.append(f"{EVENTS} begins at step {history.first.step:,}; earlier events are only in {LOG}.")
    if history.damaged:
        notes.append(f"Damaged lines of {EVENTS}, which are left out: {history.damaged:,}.")
    if not lines and not notes:
        notes.append(f"{EVENTS} has no warning: nothing was dropped or skipped.")
    items = f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>" if lines else ""
    return "".join(f"<p>{note}</p>" for note in notes) + items


def _config(record: Record) -> str:
    if not record.config_text:
        return f"<p>There is no {CONFIG}.</p>"
    text = _preformatted(record.config_text)
    return f"<details><summary>{CONFIG}, every setting of the run</summary>{text}</details>"


def _preformatted(text: str) -> str:
    return f'<div class="table-scroll" tabindex="0"><pre>{escape(text)}</pre></div>'


def _last_step(curves: Mapping[str, Curve]) -> int | None:
    return max((curve.steps[-1] for curve in curves.values() if len(curve)), default=None)


def _starts(history: History) -> str:
    return f"in {history.starts} starts" if history.starts > 1 else "without interruption"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _settings(text: str) -> Mapping[str, Any]:
    try:
        settings = yaml.safe_load(text)
    except yaml.YAMLError:  # the page shows the text anyway
        return {}
    return settings if isinstance(settings, Mapping) else {}


def _results(text: str) -> dict[str, Mapping[str, Any]]:
    """Read results.json; entries that are not results are left out."""
    return {name: result for name, result in _json(text).items() if isinstance(result, dict)}


def _json(text: str) -> dict[str, Any]:
    """Parse an object; {} if it is none."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _comparisons(text: str) -> dict[str, Mapping[str, Any]]:
    """Read comparison.json; entries that are not comparisons are left out."""
    parts = ("a", "b", "difference")
    return {
        name: comparison
        for name, comparison in _results(text).items()
        if all(isinstance(comparison.get(key), Mapping) for key in parts)
    }


def _gains(record: Record) -> str:
    also = _at(record.settings, "corpus", "also_test")
    return gains(record.comparisons, [Path(path).stem for path in also] if isinstance(also, list) else [])


def _at(settings: Mapping[str, Any], *keys: str) -> Any:
    value: Any = settings
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
