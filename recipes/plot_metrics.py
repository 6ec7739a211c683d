"""python -m recipes.plot_metrics RUN_DIR... --output curves.png: training curves of runs, as a picture.

Needs matplotlib: pip install -e '.[plot]'.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

from asr.errors import InputError

PANELS = {  # title: columns of metrics.csv
    "Loss per token": ("train/loss", "valid/loss"),
    "Word error rate, validation": ("valid/wer",),
    "Gradient norm": ("train/grad_norm",),
    "Learning rate": ("train/learning_rate",),
}
STYLES: dict[str, dict[str, Any]] = {
    "train": {"linewidth": 0.8, "alpha": 0.7},
    "valid": {"linewidth": 1.8, "marker": "o", "markersize": 3},
}


def main() -> int:
    """Read the command line and draw; 1 if a run folder has no metrics."""
    parser = argparse.ArgumentParser(description="Draw the training curves of runs.")
    parser.add_argument("run_dirs", metavar="RUN_DIR", nargs="+", type=Path, help="folder with a metrics.csv")
    parser.add_argument("--output", type=Path, default=Path("curves.png"), help="picture to write (curves.png)")
    options = parser.parse_args()
    try:
        draw({run_dir.name: read_metrics(run_dir) for run_dir in options.run_dirs}, options.output)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(options.output)
    return 0


def read_metrics(run_dir: Path) -> list[dict[str, str]]:
    """Read the lines of a run's metrics.csv."""
    path = run_dir / "metrics.csv"
    if not path.is_file():
        raise InputError(f"{run_dir}: a run folder must hold metrics.csv; it does not.")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def draw(runs: dict[str, list[dict[str, str]]], output: Path) -> None:
    """Draw a panel for each of `PANELS`, over the optimizer steps."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("drawing needs matplotlib; pip install -e '.[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")
    for axis, (title, columns) in zip(axes.flat, PANELS.items(), strict=True):
        for name, rows in runs.items():
            for column in columns:
                points = [(int(row["step"]), float(row[column])) for row in rows if row.get(column)]
                split = column.split("/")[0]
                label = f"{name}: {split}" if len(runs) > 1 else split
                axis.plot(*zip(*points, strict=True), label=label, **STYLES[split]) if points else None
        axis.set(title=title, xlabel="optimizer step")
        axis.grid(alpha=0.3)
        if "rror" in title:
            axis.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
            axis.set_ylim(bottom=0)
        if len(columns) * len(runs) > 1:
            axis.legend()
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
