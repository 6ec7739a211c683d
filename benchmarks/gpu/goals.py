"""The goals of benchmarks/README.md, and whether the results of the steps reach them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.contest import MAX_UTTERANCE_SECONDS
from benchmarks.gpu.kernels import NONE
from benchmarks.gpu.steps import CORRECTNESS, KERNELS, METHODS, RATES, RECOGNITION, TRAINING
from benchmarks.gpu.training import ENDED
from benchmarks.nets import OURS

Rows = Sequence[Mapping[str, Any]]
NOT_RUN = "not run"
MAX_LOSS_DIFFERENCE = 0.03  # mean relative difference over the steps; bfloat16 has about three significant digits
MAX_DATA_WAIT = 0.1  # fraction of a training run's time spent waiting for data
MIN_REAL_TIME = 8000.0  # seconds of audio recognised per second


class Reached(NamedTuple):
    """The value that was reached, and whether it meets the goal; None: the goal has no bound."""

    text: str
    is_met: bool | None


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
    all_goals = [
        Goal("tests on the device", "all pass", CORRECTNESS, _tests),
        Goal("methods of computing a step", "all tests pass", METHODS, _tests),
        Goal("bfloat16 attention", "the memory-efficient kernel in every encoder", KERNELS, _kernels),
        Goal("outputs and gradients of every encoder", "finite", KERNELS, _finite),
    ]
    for size in ("s", "m"):
        for seconds, min_ratio in ((100, 3.0), (400, 2.5)):
            all_goals.append(_times_parakeet(size, seconds, min_ratio))
    all_goals += [
        _times_parakeet("l", 1600, 2.0),
        Goal("step of l, 1600 s: share of the GPU's matmul rate", "35 %", "steps_l", _matmul_share(1600, 0.35)),
        _times_parakeet("fast_conformer_l", 400, None),
        Goal(
            "losses of 300 steps in bfloat16",
            f"at most {MAX_LOSS_DIFFERENCE:.0%} from those of a CPU, finite",
            TRAINING,
            _losses,
        ),
        Goal("waiting for data, 8 workers", f"at most {MAX_DATA_WAIT:.0%}", RATES, _waiting),
        Goal("speed with features on the device and in workers", "-", RATES, _features),
        Goal("memory of a training run, and its forecast", "-", RATES, _memory),
        Goal("recognition, from files to texts", f"{MIN_REAL_TIME:,.0f} times real time", RECOGNITION, _real_time),
    ]
    return all_goals


def judged(results: Mapping[str, Rows]) -> list[tuple[str, str, str, str]]:
    """Return (name, target, value reached, whether the goal is met) for each goal."""
    rows = []
    for goal in goals():
        reached = goal.judge(results[goal.step]) if goal.step in results else None
        verdict = {None: "-", True: "yes", False: "no"}[reached.is_met] if reached else NOT_RUN
        rows.append((goal.name, goal.target, reached.text if reached else NOT_RUN, verdict))
    return rows


def _tests(rows: Rows) -> Reached:
    counts = Counter(row["outcome"] for row in rows)
    return Reached(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), set(counts) == {"passed"})


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


def _by_contender(rows: Rows, seconds: float) -> dict[str, Mapping[str, Any]]:
    batch = f"{max(1, round(seconds / MAX_UTTERANCE_SECONDS))}x{MAX_UTTERANCE_SECONDS:g}"
    return {row["contender"]: row for row in rows if row["batch"] == batch}


def _fastest(by_contender: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]] | None:
    our_rows = [item for item in by_contender.items() if item[0].startswith(OURS)]
    return min(our_rows, key=lambda item: item[1]["ms"], default=None)


def _times_parakeet(size: str, seconds: int, min_ratio: float | None) -> Goal:
    def judge(rows: Rows) -> Reached | None:
        by_contender = _by_contender(rows, seconds)
        fastest, peer = _fastest(by_contender), by_contender.get("Parakeet")
        if fastest is None or peer is None:
            return None
        ratio = peer["ms"] / fastest[1]["ms"]
        return Reached(f"{ratio:.2f} ({fastest[0]})", None if min_ratio is None else ratio >= min_ratio)

    target = "-" if min_ratio is None else f"{min_ratio:g} times eager Parakeet"
    return Goal(f"step of {size}, {seconds} s", target, f"steps_{size}", judge)


def _matmul_share(seconds: int, min_share: float) -> Callable[[Rows], Reached | None]:
    def judge(rows: Rows) -> Reached | None:
        fastest = _fastest(_by_contender(rows, seconds))
        if fastest is None:
            return None
        name, row = fastest
        return Reached(f"{row['of matmul']:.1%} ({name})", row["of matmul"] >= min_share)

    return judge


def _losses(rows: Rows) -> Reached | None:
    by_run = {row["run"]: row for row in rows}
    row = by_run.get("bfloat16")
    if row is None or row["mean loss difference"] is None:
        return None
    difference, not_finite = row["mean loss difference"], row["not finite"]
    is_met = difference <= MAX_LOSS_DIFFERENCE and not not_finite and row["ended"] == ENDED
    return Reached(f"{difference:.2%}, {not_finite:g} of {row['steps']} not finite", is_met)


def _waiting(rows: Rows) -> Reached | None:
    rows = [row for row in rows if row["data wait"] is not None]
    if not rows:
        return None
    text = "; ".join(f"{row['run']}: {row['data wait']:.1%}" for row in rows)
    return Reached(text, all(row["data wait"] <= MAX_DATA_WAIT for row in rows))


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
    return Reached(text, best["x real time"] >= MIN_REAL_TIME)
