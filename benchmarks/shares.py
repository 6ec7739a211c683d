"""python -m benchmarks.shares MODEL DATA --clips N: gains and losses of asr.finetune by the share of the initial model.

    python -m benchmarks.shares english speechocean762/train.jsonl --clips 60 --seeds 0 1 \\
        --test speechocean762/test.jsonl --keep dev-mini.jsonl --also-test test-other-mini.jsonl --output-dir shares

For each seed, clips are drawn, from as few speakers as have them with `--of-speaker` each, and `asr.finetune` trains on
them. Then each share is evaluated on the test, of which at most 200 utterances are used, the same for all seeds.
`results.jsonl` gets a line for each seed as soon as it is known, and the same command continues where it was stopped.
The line has the seed, the number of clips, the chosen share, and for each test the WER of the initial model, of the
trained one (share 0), with the chosen share, and with the best share in hindsight.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from asr.apps.finetune.share import SHARES
from asr.apps.web.chart import Axis, Series, line_chart
from asr.apps.web.page import page
from asr.base.text.numbers import counted, percent
from asr.base.text.word_errors import total
from asr.core.checkpoint.averaging import with_share_of
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer, read_initial, read_model, write_bundle
from asr.core.checkpoint.saved import CHECKPOINTS, intact_checkpoints, select
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.evaluation.result import evaluate
from asr.core.hub.download import path_of
from asr.core.run.names import SHARES as SHARES_FILE
from asr.core.training.hydra_command import compose_settings
from asr.errors import InputError
from recipes.command import ROOM, AddOption, run_recipe
from recipes.output import claim

TESTED = 200  # utterances of the test
RESULTS, PAGE = "results.jsonl", "shares.html"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe("benchmarks.shares", __doc__, _add_options, _run, arguments, must=ROOM)


def _add_options(add: AddOption) -> None:
    add("model", help="the initial model")
    add("data", type=Path, help="manifest from which clips are drawn")
    add("--clips", type=int, required=True, help="number of clips")
    add("--of-speaker", type=int, default=5, help="clips of each speaker (default 5)")
    add("--seeds", type=int, nargs="+", default=[0], help="seeds of the draw and of the training (default 0)")
    add("--test", type=Path, help="manifest of the test (default: clips of DATA that are never drawn)")
    add("--keep", type=Path, help="as in asr.finetune")
    add("--also-test", type=Path, nargs="+", default=[], help="as in asr.finetune")
    add("--hours", type=float, help="as in asr.finetune")
    add("--output-dir", type=Path, required=True, help="folder of the results")


def _run(options: argparse.Namespace) -> None:
    folder: Path = options.output_dir
    claim(
        folder,
        "benchmarks.shares",
        [RESULTS, PAGE, *(f"{kind}_{seed}" for kind in ("data", "run") for seed in options.seeds)],
    )
    data = read_manifest(options.data)
    if options.test is None:
        test = _shuffled(data, 0)[: min(TESTED, max(1, len(data) - options.clips))]
    else:
        test = _shuffled(read_manifest(options.test), 0)[:TESTED]
    rest = [each for each in data if each.id not in {one.id for one in test}] if options.test is None else data
    path = folder / RESULTS
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    for seed in options.seeds:
        if all(row["seed"] != seed for row in done):
            drawn = draw(rest, options.clips, options.of_speaker, seed)
            done.append({"seed": seed, "clips": len(drawn), **_measured(options, drawn, test, seed)})
            path.write_text("".join(json.dumps(row) + "\n" for row in done))
        print(_line(next(row for row in done if row["seed"] == seed)), flush=True)
    (folder / PAGE).write_text(picture(done, f"{options.clips} clips of {options.data.parent.name}"), encoding="utf-8")


def picture(rows: Sequence[Mapping[str, Any]], data: str) -> str:
    """Return a page with the mean WER of all seeds by share, for each test, in percent of the initial model's."""
    curves = []
    for test in rows[0]["rates"]:
        rates = [
            fmean(row["rates"][test][number] / row["rates"][test][-1] for row in rows) for number in range(len(SHARES))
        ]
        name = "test, like DATA" if test == "test" else test
        curves.append(Series(name, [*zip(SHARES, rates, strict=True)], dots=True))
    x, y = Axis("share of the initial model in each weight", low=0, high=1), Axis("WER", percent)
    title = f"WER after fine-tuning on {data}, in percent of the WER before"
    note = f"mean of {counted(len(rows), 'draw')} of clips and speakers"
    return page(title, f'<main><div class="charts">{line_chart(title, x, y, curves, note, zero=False)}</div></main>')


def _shuffled(utterances: Sequence[Utterance], seed: int) -> list[Utterance]:
    return random.Random(seed).sample(list(utterances), len(utterances))


def draw(utterances: Sequence[Utterance], clips: int, of_speaker: int, seed: int) -> list[Utterance]:
    """Draw clips: speakers in random order, some clips of each; a clip of an unknown speaker is one of its own."""
    shuffled = _shuffled(utterances, seed)
    speakers: dict[str, list[Utterance]] = {}
    for each in shuffled:
        speakers.setdefault(each.speaker or each.id, []).append(each)
    drawn = [each for clips_of in speakers.values() for each in clips_of[:of_speaker]][:clips]
    if len(drawn) < clips:
        must = f"DATA must have {clips} clips, {of_speaker} of each speaker"
        raise InputError(f"{must}; it has {len(drawn)}. Give fewer --clips or a larger --of-speaker.")
    return drawn


def _measured(
    options: argparse.Namespace, drawn: Sequence[Utterance], test: Sequence[Utterance], seed: int
) -> dict[str, Any]:
    """Fine-tune on the drawn clips, and evaluate each share; WERs by share, for each test."""
    folder: Path = options.output_dir
    (folder / f"data_{seed}").mkdir(exist_ok=True)
    for name, utterances in {"clips": drawn, "test": test}.items():
        write_manifest(folder / f"data_{seed}" / f"{name}.jsonl", utterances)
    run = folder / f"run_{seed}"
    command = ["asr.finetune", options.model, folder / f"data_{seed}/clips.jsonl", "--output", run, "--seed", seed]
    command += ["--test", folder / f"data_{seed}/test.jsonl"]
    command += ["--also-test", *options.also_test] if options.also_test else []
    command += ["--keep", options.keep] if options.keep else []
    command += ["--hours", options.hours] if options.hours else []
    with (folder / f"run_{seed}.log").open("w") as log:
        subprocess.run([sys.executable, "-m", *map(str, command)], check=True, stdout=log, stderr=subprocess.STDOUT)
    stored = json.loads((run / "finetune.json").read_text())
    is_adapter = stored["is_adapter"]
    initial = read_initial(path_of(options.model))
    trained = _without_share(run, path_of(options.model) if is_adapter else None, stored["overrides"])
    tests = {"test": test, **{path.stem: read_manifest(path) for path in options.also_test}}
    rates: dict[str, list[float]] = {name: [] for name in tests}
    for share in SHARES:
        bundle = replace(trained, weights=with_share_of(initial, trained, share))
        recognizer = bundle_recognizer(bundle, run)
        for name, utterances in tests.items():
            rates[name].append(total(each.counts for each in evaluate(recognizer, name, utterances).scored).rate)
    chosen = json.loads((run / SHARES_FILE).read_text())["share"] if (run / SHARES_FILE).is_file() else 0.0
    return {"share": chosen, "rates": rates}


def _without_share(run: Path, base: Path | None, overrides: Sequence[str]) -> Bundle:
    """Read the trained model of a run as it is without a share of the initial model; `base` is that of an adapter."""
    checkpoint = compose_settings(overrides).checkpoint
    chosen = select(checkpoint.select, intact_checkpoints(run / CHECKPOINTS), checkpoint.keep)
    with tempfile.TemporaryDirectory() as folder:
        write_bundle(Path(folder) / "trained", [each.path for each in chosen], card="")
        return read_model(Path(folder) / "trained", base)


def _line(row: Mapping[str, Any]) -> str:
    """Return a row of a table: the WER of the initial model, of share 0, of the chosen share and of the best share."""
    cells = [str(row["seed"]), str(row["clips"]), f"{row['share']:g}"]
    for rates in row["rates"].values():
        named = rates[-1], rates[0], rates[SHARES.index(row["share"])], min(rates)
        cells += [f"{100 * rate:.2f}" for rate in named]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
