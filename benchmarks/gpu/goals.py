"""The goals of benchmarks/README.md, and what the steps' results say of each."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.contest import LONGEST
from benchmarks.gpu.kernels import NONE
from benchmarks.gpu.steps import CORRECTNESS, KERNELS, RATES, RECOGNITION, TRAINING, WAYS
from benchmarks.gpu.training import ENDED
from benchmarks.nets import OURS

Rows = Sequence[Mapping[str, Any]]
NOT_RUN = "not run"
MAX_APART = 0.03  # of a loss, in the mean over the steps: bfloat16 has three digits
MAX_WAIT = 0.1  # of a training's time, for data
MIN_REAL_TIME = 8000.0


class Reached(NamedTuple):
    """What was reached, and whether the goal holds; None: there is no bound."""

    text: str
    holds: bool | None


class Goal(NamedTuple):
    """A goal.

    Args:
        what: is measured.
        target: to be reached.
        step: whose rows tell.
        judge: rows to what was reached; None: they do not tell.
    """

    what: str
    target: str
    step: str
    judge: Callable[[Rows], Reached | None]


def goals() -> list[Goal]:
    """List the goals, in the order of the steps."""
    listed = [
        Goal("tests on the device", "all pass", CORRECTNESS, _tests),
        Goal("ways of computing a step", "all tests pass", WAYS, _tests),
        Goal("bfloat16 attention", "the memory-efficient kernel in every encoder", KERNELS, _kernels),
        Goal("numbers of every encoder", "finite", KERNELS, _finite),
    ]
    for size in ("s", "m"):
        for seconds, least in ((100, 3.0), (400, 2.5)):
            listed.append(_times_parakeet(size, seconds, least))
    listed += [
        _times_parakeet("l", 1600, 2.0),
        Goal("step of l, 1600 s: share of the card's products", "35 %", "steps_l", _of_products(1600, 0.35)),
        _times_parakeet("fast_conformer_l", 400, None),
        Goal("losses of 300 steps in bfloat16", f"{MAX_APART:.0%} from a processor's, finite", TRAINING, _losses),
        Goal("waiting for data, 8 workers", f"{MAX_WAIT:.0%} at most", RATES, _waiting),
        Goal("features on the device, beside in workers", "-", RATES, _features),
        Goal("memory of a training, beside the forecast", "-", RATES, _memory),
        Goal("inference, files to texts", f"{MIN_REAL_TIME:,.0f} times real time", RECOGNITION, _real_time),
    ]
    return listed


def judged(results: Mapping[str, Rows]) -> list[tuple[str, str, str, str]]:
    """Give a row for each goal: what, target, reached, and whether it holds."""
    rows = []
    for goal in goals():
        reached = goal.judge(results[goal.step]) if goal.step in results else None
        holds = {None: "-", True: "yes", False: "no"}[reached.holds] if reached else NOT_RUN
        rows.append((goal.what, goal.target, reached.text if reached else NOT_RUN, holds))
    return rows


def _tests(rows: Rows) -> Reached:
    counts = Counter(row["outcome"] for row in rows)
    return Reached(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), set(counts) == {"passed"})


def _kernels(rows: Rows) -> Reached | None:
    attending = [row for row in rows if row["precision"] == "bfloat16" and row["kernels"] != NONE]
    efficient = [row for row in attending if row["kernels"] == "efficient_attention"]
    if not attending:
        return None
    others = sorted({f"{row['encoder']}: {row['kernels']}" for row in attending if row not in efficient})
    return Reached("; ".join([f"{len(efficient)} of {len(attending)}", *others]), not others)


def _finite(rows: Rows) -> Reached:
    others = sorted({row["encoder"] for row in rows if row["finite"] != "yes"})
    return Reached("; ".join([f"{len(rows)} passes", *others]), not others)


def _of_batch(rows: Rows, seconds: float) -> dict[str, Mapping[str, Any]]:
    batch = f"{max(1, round(seconds / LONGEST))}x{LONGEST:g}"
    return {row["contender"]: row for row in rows if row["batch"] == batch}


def _fastest(of_batch: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]] | None:
    mine = [item for item in of_batch.items() if item[0].startswith(OURS)]
    return min(mine, key=lambda item: item[1]["ms"], default=None)


def _times_parakeet(size: str, seconds: int, least: float | None) -> Goal:
    def judge(rows: Rows) -> Reached | None:
        of_batch = _of_batch(rows, seconds)
        fastest, peer = _fastest(of_batch), of_batch.get("Parakeet")
        if fastest is None or peer is None:
            return None
        times = peer["ms"] / fastest[1]["ms"]
        return Reached(f"{times:.2f} ({fastest[0]})", None if least is None else times >= least)

    target = "-" if least is None else f"{least:g} times eager Parakeet"
    return Goal(f"step of {size}, {seconds} s", target, f"steps_{size}", judge)


def _of_products(seconds: int, least: float) -> Callable[[Rows], Reached | None]:
    def judge(rows: Rows) -> Reached | None:
        fastest = _fastest(_of_batch(rows, seconds))
        return fastest and Reached(f"{fastest[1]['of matmul']:.1%} ({fastest[0]})", fastest[1]["of matmul"] >= least)

    return judge


def _losses(rows: Rows) -> Reached | None:
    by_run = {row["run"]: row for row in rows}
    row = by_run.get("bfloat16")
    if row is None or row["from the processor's"] is None:
        return None
    apart, not_finite = row["from the processor's"], row["not finite"]
    holds = apart <= MAX_APART and not not_finite and row["ended"] == ENDED
    return Reached(f"{apart:.2%}, {not_finite:g} of {row['steps']} not finite", holds)


def _waiting(rows: Rows) -> Reached | None:
    rows = [row for row in rows if row["data wait"] is not None]
    if not rows:
        return None
    text = "; ".join(f"{row['run']}: {row['data wait']:.1%}" for row in rows)
    return Reached(text, all(row["data wait"] <= MAX_WAIT for row in rows))


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
