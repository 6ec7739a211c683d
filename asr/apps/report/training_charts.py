"""Charts of a run: loss, errors, gradient, learning rate, speed, padding, waiting for data, blank ratio."""

from collections.abc import Mapping
from statistics import fmean, median

from asr.apps.web.chart import Axis, Series, line_chart
from asr.apps.web.curves import Curve
from asr.base.text.numbers import number, percent

LOGGED = {  # column of metrics.csv: its name in the note on missing metrics
    "train/loss": "the training loss",
    "valid/loss": "the validation loss",
    "valid/wer": "the validation WER",
    "train/grad_norm": "the gradient norm",
    "train/learning_rate": "the learning rate",
    "train/audio_seconds_per_second": "the speed",
    "train/padding": "padding",
    "train/data_wait": "waiting for data",
}
OF_RECOGNISERS = ("valid/wer", "train/audio_seconds_per_second")
BLANK_RATIO = "valid/blank_ratio"  # of heads with log_probs of frames only
VALID = "valid/"  # begins the names of a validation's columns
SPLITS = {"train": "training", "valid": "validation"}
BEFORE = "before the first step"
SMOOTH = 40  # a line is a moving mean over 1 / SMOOTH of its points
RAW_BUCKETS, SMOOTH_BUCKETS = 120, 80
HIGH_DATA_WAIT = 0.05
WIDE = 30  # an axis is logarithmic if the greatest value is at least this many times the least value


def charts(curves: Mapping[str, Curve], clip: float | None) -> list[str]:
    """Draw the logged metrics, with one chart for each kind.

    Args:
        curves: curve of each column of metrics.csv; a chart without any value is left out.
        clip: maximum gradient norm; None: not clipped, or not known.
    """
    logged = {name: curve for name, curve in curves.items() if len(curve)}
    steps = Axis("optimizer step", low=0, high=max([1, *(curve.steps[-1] for curve in logged.values())]))
    drawn = [_loss(logged, steps), _wer(logged, steps), _gradient(logged, clip, steps)]
    if "train/learning_rate" in logged:
        rate = logged["train/learning_rate"]
        title = f"Learning rate: maximum {_short(max(rate.values))}, {_short(rate.values[-1])} {_when(rate)}"
        drawn.append(line_chart(title, steps, Axis("learning rate"), [Series("learning rate", _points(rate))]))
    if "train/audio_seconds_per_second" in logged:
        title = f"Speed: {_short(median(logged['train/audio_seconds_per_second'].values))} s of audio a second"
        note = "the median of the logged steps"
        drawn.append(
            _training_chart(
                logged, steps, "train/audio_seconds_per_second", title, Axis("audio seconds a second"), note
            )
        )
    if "train/padding" in logged:
        title = f"Padding: {percent(fmean(logged['train/padding'].values))} of a batch's frames on average"
        drawn.append(
            _training_chart(logged, steps, "train/padding", title, Axis("padding", percent), "over all processes")
        )
    if "train/data_wait" in logged:
        title = f"Waiting for data: {percent(fmean(logged['train/data_wait'].values))} of a step's time on average"
        note = "a larger data.num_workers may help" if fmean(logged["train/data_wait"].values) > HIGH_DATA_WAIT else ""
        drawn.append(_training_chart(logged, steps, "train/data_wait", title, Axis("waiting", percent), note))
    if BLANK_RATIO in logged:
        blanks = logged[BLANK_RATIO]
        title = f"Blank: {percent(blanks.values[-1])} of the frames in the validation {_when(blanks)}"
        series = [Series("validation", _points(blanks), dots=_few(blanks))]
        drawn.append(line_chart(title, steps, Axis("blank frames", percent), series))
    return [chart for chart in [*drawn, *_others(logged, steps)] if chart]


def _others(logged: Mapping[str, Curve], steps: Axis) -> list[str]:
    """Draw the metrics that only some objectives, heads or plugins log, `train/NAME` and `valid/NAME` in one chart."""
    of_names: dict[str, dict[str, Curve]] = {}
    for column, curve in logged.items():
        split, _, name = column.partition("/")
        if split in SPLITS and "/" not in name and column not in (*LOGGED, BLANK_RATIO, "train/skipped_utterances"):
            of_names.setdefault(name, {})[split] = curve
    drawn = []
    for name, of_splits in of_names.items():
        words = name.replace("_", " ")
        parts = [f"{_short(curve.values[-1])} in {SPLITS[split]} {_when(curve)}" for split, curve in of_splits.items()]
        series = [_series(SPLITS[split], curve, smooth=split == "train") for split, curve in of_splits.items()]
        drawn.append(_log_chart(f"{words.capitalize()}: {', '.join(parts)}", steps, Axis(words), series, ""))
    return drawn


def missing(curves: Mapping[str, Curve], recognises: bool, validated: bool) -> list[str]:
    """List the metrics without a chart, because they were not logged or were never finite.

    Args:
        curves: curve of each column of metrics.csv.
        recognises: whether a recogniser is trained; other objectives do not log all metrics.
        validated: whether there was a validation.
    """
    names = [name for name in LOGGED if recognises or name not in OF_RECOGNISERS]
    names = [name for name in names if validated or not name.startswith(VALID)]
    return [LOGGED[name] for name in names if not len(curves.get(name, Curve([], [])))]


def smoothing(curves: Mapping[str, Curve]) -> int:
    """Return the number of neighbouring points over which training curves are averaged."""
    return _width(curves.get("train/loss", Curve([], [])))


def _loss(logged: Mapping[str, Curve], steps: Axis) -> str:
    losses = {words: logged[f"{split}/loss"] for split, words in SPLITS.items() if f"{split}/loss" in logged}
    if not losses:
        return ""
    widths = {"training": _width(losses["training"]) if "training" in losses else 1, "validation": 1}
    parts = []
    for name, curve in losses.items():
        last = _short(fmean(curve.values[-widths[name] :]))
        parts.append(f"{last} in {name} {_when(curve)}")
    series = [_series(name, curve, smooth=name == "training") for name, curve in losses.items()]
    return _log_chart(f"Loss: {', '.join(parts)}", steps, Axis("loss"), series, "")


def _when(curve: Curve) -> str:
    """Describe when the last value of a curve was logged."""
    return f"at step {curve.steps[-1]:,}" if curve.steps[-1] else BEFORE


def _wer(logged: Mapping[str, Curve], steps: Axis) -> str:
    if "valid/wer" not in logged:
        return ""
    wer = logged["valid/wer"]
    parts = []
    if wer.steps[0] == 0:
        parts.append(f"{percent(wer.values[0])} {BEFORE}")
    if len(trained := wer.since(1)):
        best = min(trained.values)
        at = trained.steps[trained.values.index(best)]
        parts.append(f"{percent(wer.values[-1])} {_when(wer)}")
        if at < wer.steps[-1]:
            parts.append(f"best {percent(best)} at step {at:,}")
        elif best == min(wer.values):
            parts.append("the best")
    title = f"Validation WER: {', '.join(parts)}"
    series = [Series("validation", _points(wer), dots=_few(wer))]
    return line_chart(title, steps, Axis("word error rate", percent), series)


def _gradient(logged: Mapping[str, Curve], clip: float | None, steps: Axis) -> str:
    if "train/grad_norm" not in logged:
        return ""
    norms = logged["train/grad_norm"]
    title = f"Gradient norm: median {_short(median(norms.values))}, maximum {_short(max(norms.values))}"
    clipped = [value for value in norms.values if clip is not None and value > clip]
    num_clipped = f"{len(clipped):,} of {len(norms):,} logged steps"
    note = f"before clipping; {num_clipped} were clipped to {number(clip)}" if clip else ""
    return _log_chart(title, steps, Axis("gradient norm"), [_series("gradient norm", norms, smooth=True)], note)


def _training_chart(logged: Mapping[str, Curve], steps: Axis, name: str, title: str, axis: Axis, note: str) -> str:
    return line_chart(title, steps, axis, [_series(axis.label, logged[name], smooth=True)], note)


def _log_chart(title: str, steps: Axis, axis: Axis, series: list[Series], note: str) -> str:
    """Draw a line chart, with a logarithmic axis if the values differ by a factor of WIDE or more."""
    values = [value for line in series for _, value in [*line.points, *line.raw] if value is not None]
    if min(values) > 0 and max(values) / min(values) >= WIDE:
        axis = Axis(f"{axis.label} (logarithmic)", axis.write, log=True)
    return line_chart(title, steps, axis, series, note)


def _series(name: str, curve: Curve, smooth: bool) -> Series:
    if smooth and _width(curve) > 1:
        line = curve.smoothed(_width(curve)).thinned(SMOOTH_BUCKETS)
        return Series(name, _points(line), raw=_points(curve.thinned(RAW_BUCKETS)))
    return Series(name, _points(curve), dots=_few(curve))


def _width(curve: Curve) -> int:
    return max(1, len(curve) // SMOOTH) // 2 * 2 + 1 if len(curve) >= 2 * SMOOTH else 1


def _short(value: float) -> str:
    """Write a value with three significant digits, which are enough for a title."""
    return number(float(f"{value:.3g}"))


def _few(curve: Curve) -> bool:
    return len(curve) <= SMOOTH


def _points(curve: Curve) -> list[tuple[float, float | None]]:
    thin = curve.thinned(RAW_BUCKETS)
    return list(zip(thin.steps, thin.values, strict=True))
