"""The goals of benchmarks/README.md, and whether the results of the steps reach them."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.contest import MAX_UTTERANCE_SECONDS
from benchmarks.gpu import speech
from benchmarks.gpu.kernels import NONE
from benchmarks.gpu.launches import STUB_LAUNCHES
from benchmarks.gpu.steps import (
    HEADS,
    KERNELS,
    LATTICES,
    LAUNCHES,
    METHODS,
    RATES,
    RECOGNITION,
    SIZES,
    SPEECH,
    STEPS,
    TESTS,
)
from benchmarks.gpu.training import ENDED
from benchmarks.nets import OURS

Rows = Sequence[Mapping[str, Any]]
NOT_RUN = "not run"
MAX_LATTICE_DIFFERENCE = 1e-5  # of a loss, relative; float32 has about seven significant digits
MAX_GRADIENT_DIFFERENCE = {"float32": 1e-3, "bfloat16": 1e-2}  # by the type of the logits, which gradients have, too
MAX_LOSS_DIFFERENCE = {"float32": 0.001, "bfloat16": 0.03}  # mean over the steps; bfloat16 has about three digits
MAX_DATA_WAIT = 0.1  # fraction of a training run's time spent waiting for data
MAX_FORECAST_DIFFERENCE = 0.1  # of memory, relative to the forecast
MIN_REAL_TIME = 8000.0  # seconds of audio recognised per second


class Reached(NamedTuple):
    """The value that was reached.

    Args:
        text: the value.
        is_met: whether it meets the goal; None: the goal has no bound.
        missed_by: by how much it misses the goal.
    """

    text: str
    is_met: bool | None
    missed_by: str = ""


class Goal(NamedTuple):
    """A goal and the function that judges it.

    Args:
        name: the quantity that is measured.
        target: the value to reach.
        step: name of the step that measures it.
        judge: maps the step's rows to the value reached; returns None if the rows lack the measurement.
    """

    name: str
    target: str
    step: str
    judge: Callable[[Rows], Reached | None]


def goals() -> list[Goal]:
    """Return the goals, in the order of the steps."""
    differ = "losses of 20 steps of {}: difference from those of a CPU"
    bounds = ", ".join(f"{bound:.1%} in {precision}" for precision, bound in MAX_LOSS_DIFFERENCE.items())
    all_goals = [
        Goal("tests on the device", "all pass", TESTS, _tests),
        Goal(
            "losses of lattices beside float64",
            f"differ by at most {MAX_LATTICE_DIFFERENCE:.0e}, finite",
            LATTICES,
            _lattices,
        ),
        *(Goal(differ.format(head), f"at most {bounds}", f"losses_{head}", _losses) for head in HEADS),
        Goal("training on speech", "ends as planned", SPEECH, _trained),
        Goal("its waiting for data", f"at most {MAX_DATA_WAIT:.0%}", SPEECH, _speech_waiting),
        Goal("its memory", f"within {MAX_FORECAST_DIFFERENCE:.0%} of the forecast", SPEECH, _speech_memory),
        Goal("its WER", "-", SPEECH, _word_errors),
    ]
    for size in ("s", "m"):
        for seconds, min_ratio in ((100, 3.0), (400, 2.5)):
            all_goals.append(_times_parakeet(size, seconds, min_ratio))
    all_goals += [
        _times_parakeet("l", 1600, 2.0),
        Goal("step of l, 1600 s: share of the GPU's matmul rate", "35 %", STEPS, _matmul_share("l", 1600, 0.35)),
        Goal("launches of a step", "no more than the stub counts", LAUNCHES, _launches),
        Goal("waits in a step", "none", LAUNCHES, _waits),
        Goal("recognition, from files to texts", f"{MIN_REAL_TIME:,.0f} times real time", RECOGNITION, _real_time),
        Goal("bfloat16 attention", "the memory-efficient kernel in every encoder", KERNELS, _kernels),
        Goal("outputs and gradients of every encoder", "finite", KERNELS, _finite),
        Goal("waiting for data, M, 8 workers", f"at most {MAX_DATA_WAIT:.0%}", RATES, _waiting),
        Goal("speed with features on the device and in workers", "-", RATES, _features),
        Goal("memory of a training run, and its forecast", "-", RATES, _memory),
        Goal("methods of computing a step", "all tests pass", METHODS, _tests),
        _times_parakeet("fast_conformer_l", 400, None),
    ]
    return all_goals


def judged(results: Mapping[str, Rows]) -> list[tuple[str, str, str, str]]:
    """Return (name, target, value reached, whether the goal is met, or by how much it is missed) for each goal."""
    rows = []
    for goal in goals():
        reached = goal.judge(results[goal.step]) if goal.step in results else None
        verdict = NOT_RUN if reached is None else {None: "-", True: "yes", False: "no"}[reached.is_met]
        missed = f": {reached.missed_by}" if reached is not None and reached.missed_by else ""
        rows.append((goal.name, goal.target, reached.text if reached else NOT_RUN, verdict + missed))
    return rows


def at_least(value: float, bound: float, text: str) -> Reached:
    """Judge a value by its lower bound."""
    return Reached(text, value >= bound, "" if value >= bound else f"{1 - value / bound:.1%} below")


def at_most(value: float, bound: float, text: str) -> Reached:
    """Judge a value by its upper bound; NaN does not meet it."""
    return Reached(text, value <= bound, "" if value <= bound else f"{value / bound:.3g} times the bound")


def _tests(rows: Rows) -> Reached:
    counts = Counter(row["outcome"] for row in rows)
    failed = [row["test"].partition("::")[2] for row in rows if row["outcome"] in ("failed", "error")]
    text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return Reached(text, set(counts) == {"passed"}, ", ".join(failed))


def _lattices(rows: Rows) -> Reached | None:
    if not rows:
        return None
    missed = [f"{row['not finite']} not finite in {row['loss']}" for row in rows if row["not finite"]]
    for row in rows:
        for column, bound in (
            ("difference", MAX_LATTICE_DIFFERENCE),
            ("gradient difference", MAX_GRADIENT_DIFFERENCE[row["logits"]]),
        ):
            verdict = at_most(row[column], bound, "")
            missed += [f"{row['loss']}, {row['logits']}, {column} {verdict.missed_by}"] * (not verdict.is_met)
    by = ", ".join(sorted({row["by"] for row in rows}))
    text = f"{max(row['difference'] for row in rows):.1e}, gradients {_worst_gradients(rows)}, by {by}"
    return Reached(text, not missed, "; ".join(missed))


def _worst_gradients(rows: Rows) -> str:
    worst = {
        row["logits"]: row["gradient difference"] for row in sorted(rows, key=lambda row: row["gradient difference"])
    }
    return ", ".join(f"{value:.1e} in {precision}" for precision, value in sorted(worst.items(), reverse=True))


def _row(rows: Rows, name: str) -> Mapping[str, Any] | None:
    return next((row for row in rows if row["measurement"] == name and row["value"] is not None), None)


def _trained(rows: Rows) -> Reached | None:
    row = _row(rows, speech.TRAINING)
    if row is None:
        return None
    ended = row["notes"].rpartition("ended: ")[2]
    return Reached(f"{row['value']:,.0f} s/s, {row['notes']}", ended == ENDED)


def _speech_waiting(rows: Rows) -> Reached | None:
    row = _row(rows, speech.WAITING)
    return None if row is None else at_most(row["value"], MAX_DATA_WAIT, f"{row['value']:.1%}")


def _speech_memory(rows: Rows) -> Reached | None:
    row = _row(rows, speech.MEMORY)
    forecast = re.search(r"([\d.]+) GB", row["notes"]) if row else None
    if row is None or forecast is None:
        return None
    difference = abs(row["value"] / float(forecast[1]) - 1)
    return at_most(difference, MAX_FORECAST_DIFFERENCE, f"{row['value']:.2f} GB, {row['notes']}")


def _word_errors(rows: Rows) -> Reached | None:
    texts = [
        f"{row['measurement']}: {row['value']:.1%}" for row in rows if row["unit"] == "WER" and row["value"] is not None
    ]
    return Reached("; ".join(texts), None) if texts else None


def _launches(rows: Rows) -> Reached | None:
    counts = {row["case"]: row["launches"] for row in rows if row["case"] in STUB_LAUNCHES}
    if not counts:
        return None
    more = [f"{case} {number / STUB_LAUNCHES[case] - 1:.1%} more" for case, number in counts.items()]
    more = [text for text, (case, number) in zip(more, counts.items(), strict=True) if number > STUB_LAUNCHES[case]]
    text = ", ".join(f"{number:,.0f} ({STUB_LAUNCHES[case]:,})" for case, number in counts.items())
    return Reached(text, not more, "; ".join(more))


def _waits(rows: Rows) -> Reached | None:
    rows = [row for row in rows if row["case"] in STUB_LAUNCHES]
    if not rows:
        return None
    waiting = [f"{row['case']}: {row['waits']}" for row in rows if row["waits"]]
    return Reached("; ".join(waiting) or "none", not waiting)


def _kernels(rows: Rows) -> Reached | None:
    with_attention = [row for row in rows if row["precision"] == "bfloat16" and row["kernels"] != NONE]
    efficient = [row for row in with_attention if row["kernels"] == "efficient_attention"]
    if not with_attention:
        return None
    inefficient = sorted({f"{row['encoder']}: {row['kernels']}" for row in with_attention if row not in efficient})
    return Reached("; ".join([f"{len(efficient)} of {len(with_attention)}", *inefficient]), not inefficient)


def _finite(rows: Rows) -> Reached:
    not_finite = sorted({row["encoder"] for row in rows if row["finite"] != "yes"})
    return Reached("; ".join([f"{len(rows)} passes", *not_finite]), not not_finite)


def _by_contender(rows: Rows, size: str, seconds: float) -> dict[str, Mapping[str, Any]]:
    batch = f"{max(1, round(seconds / MAX_UTTERANCE_SECONDS))}x{MAX_UTTERANCE_SECONDS:g}"
    return {row["contender"]: row for row in rows if (row["size"], row["batch"]) == (size, batch)}


def _fastest(by_contender: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]] | None:
    our_rows = [item for item in by_contender.items() if item[0].startswith(OURS)]
    return min(our_rows, key=lambda item: item[1]["ms"], default=None)


def _times_parakeet(size: str, seconds: int, min_ratio: float | None) -> Goal:
    def judge(rows: Rows) -> Reached | None:
        by_contender = _by_contender(rows, size, seconds)
        fastest, peer = _fastest(by_contender), by_contender.get("Parakeet")
        if fastest is None or peer is None:
            return None
        ratio = peer["ms"] / fastest[1]["ms"]
        text = f"{ratio:.2f} ({fastest[0]})"
        return Reached(text, None) if min_ratio is None else at_least(ratio, min_ratio, text)

    target = "-" if min_ratio is None else f"{min_ratio:g} times eager Parakeet"
    return Goal(f"step of {size}, {seconds} s", target, STEPS if size in SIZES else size, judge)


def _matmul_share(size: str, seconds: int, min_share: float) -> Callable[[Rows], Reached | None]:
    def judge(rows: Rows) -> Reached | None:
        fastest = _fastest(_by_contender(rows, size, seconds))
        if fastest is None:
            return None
        name, row = fastest
        return at_least(row["of matmul"], min_share, f"{row['of matmul']:.1%} ({name})")

    return judge


def _losses(rows: Rows) -> Reached | None:
    rows = [row for row in rows if row["run"] in MAX_LOSS_DIFFERENCE and row["mean loss difference"] is not None]
    if not rows:
        return None
    texts, missed = [], []
    for row in rows:
        verdict = at_most(row["mean loss difference"], MAX_LOSS_DIFFERENCE[row["run"]], "")
        texts.append(f"{row['mean loss difference']:.2%} in {row['run']}")
        missed += [f"{row['run']} {verdict.missed_by}"] * (not verdict.is_met)
        missed += [f"{row['run']}: {row['not finite']:g} of {row['steps']:g} not finite"] * bool(row["not finite"])
        missed += [f"{row['run']} ended: {row['ended']}"] * (row["ended"] != ENDED)
    return Reached(", ".join(texts), not missed, "; ".join(missed))


def _waiting(rows: Rows) -> Reached | None:
    rows = [row for row in rows if row["data wait"] is not None]
    if not rows:
        return None
    text = "; ".join(f"{row['run']}: {row['data wait']:.1%}" for row in rows)
    return at_most(max(row["data wait"] for row in rows), MAX_DATA_WAIT, text)


def _features(rows: Rows) -> Reached | None:
    texts = [f"{row['run']}: {row['audio s/s']:,.0f} s/s" for row in rows if row["audio s/s"] is not None]
    return Reached("; ".join(texts), None) if texts else None


def _memory(rows: Rows) -> Reached:
    texts = [f"{row['run']}: {row['peak GB']:.2f} GB, {row['forecast']}" for row in rows if row["peak GB"]]
    return Reached("; ".join(texts) or NOT_RUN, None)


def _real_time(rows: Rows) -> Reached | None:
    best = max((row for row in rows if row["decoder"] == "greedy"), key=lambda row: row["x real time"], default=None)
    if best is None:
        return None
    text = f"{best['x real time']:,.0f} ({best['model']}, batches of {best['batch s']} s)"
    return at_least(best["x real time"], MIN_REAL_TIME, text)
