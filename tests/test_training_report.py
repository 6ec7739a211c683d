"""The page of a training run: its figures equal those in the run's files, and it names files that are missing."""

import csv
import html
import json
import os
import random
import re
import shutil
import signal
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jiwer
import pytest

from asr import load_recognizer
from asr.apps.report import training as training_report
from asr.apps.report.training import leave_report, read_record, training_page
from asr.core.data.manifest import read_manifest
from asr.core.run.events import Bundled, Event, EventsFile, Progress, Started, Warned, read_history
from asr.training_report import main
from tests.browser import browser, overflow, overlapping_texts, poor_contrasts, visit  # noqa: F401
from tests.conftest import TINY, resolved, tone_corpus
from tests.processes import finish, start
from tests.refusals import refused

MOST_SECONDS = 1.8  # maximum for training; a few utterances are longer, and are dropped


@pytest.fixture(scope="module")
def run_dir(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five epochs on the tones."""
    path = tmp_path_factory.mktemp("report") / "run"
    overrides = ["trainer.max_epochs=5", f"data.max_seconds={MOST_SECONDS}", "data.batch_seconds=4", "num_threads=1"]
    tests = "corpus.test=[test.jsonl,valid.jsonl]"
    settings = resolved(*TINY, *tone_corpus(tones), *overrides, tests, "optimizer.lr=8e-3", f"run_dir={path}")
    assert finish(start(settings, path.parent / "log")) == 0, (path.parent / "log").read_text()
    return path


ORIGIN = ("", "", "", "")  # command, code, libraries and machine
START = Started(
    0,
    "Conformer",
    {"parameters": 2_628_237, "tokens": 29},
    {"utterances": 712, "hours": 0.99},
    {"utterances": 9},
    *ORIGIN,
)


def add_events(run_dir: Path, *events: tuple[float, Event]) -> None:
    """Append events to a run's file, each with its time."""
    with pytest.MonkeyPatch.context() as patch:
        for moment, event in events:
            patch.setattr(time, "time", lambda moment=moment: moment)
            EventsFile(run_dir).append(event)


def die_after_the_first_epoch() -> None:
    """Kill this process at the end of an epoch, after its checkpoint and its event."""
    from asr.core.training.progress import LogLines

    log = LogLines.on_train_epoch_end

    def log_and_die(*arguments: Any) -> None:
        log(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    LogLines.on_train_epoch_end = log_and_die  # type: ignore[method-assign]


def page_of(run_dir: Path) -> str:
    return training_page(read_record(run_dir))


def tiles(page: str) -> dict[str, tuple[str, str]]:
    """Map the labels of the headline to (value, text below it)."""
    by_label = {}
    for tile in re.findall(r'<div class="figure.*?</div>', page, re.DOTALL):
        label, value = (
            tile.split('<span class="value"')[0],
            tile.split('<span class="value"')[1].split('<span class="')[0],
        )
        below = re.findall(r'<span class="detail">(.*?)</span>', tile)
        by_label[text(label)] = (text("<span" + value), "|".join(map(text, below)))
    return by_label


def tables(page: str) -> dict[str, list[list[str]]]:
    """Map the title of each chart to the rows of its table; the first row has the names of the columns."""
    by_title = {}
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        title = re.search(r"<figcaption>(.*?)(<span|</figcaption>)", figure)
        rows = re.findall(r"<tr>(.*?)</tr>", figure)
        by_title[text(title[1])] = [
            [text(cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in rows
        ]  # type: ignore[index]
    return by_title


def text(fragment: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", fragment))


def rows(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def column(run_dir: Path, name: str) -> list[tuple[int, float]]:
    return [(int(row["step"]), float(row[name])) for row in rows(run_dir) if row[name]]


def number(cell: str) -> float:
    cell = cell.replace(",", "")
    return float(cell.removesuffix(" %")) / 100 if cell.endswith(" %") else float(cell)


def test_at_its_end_training_writes_the_page_and_logs_its_path(run_dir: Path) -> None:
    assert (run_dir / "report.html").read_text() == page_of(run_dir)
    assert f"report written to {run_dir / 'report.html'}" in (run_dir / "train.log").read_text()


def test_the_headline_has_the_figures_in_the_files(run_dir: Path, tones: Path) -> None:
    headline = tiles(page_of(run_dir))
    results = json.loads((run_dir / "results.json").read_text())
    assert any(0 < result["wer"] < 1 for result in results.values())
    for name in ("test", "valid"):
        value, detail = headline[f"WER, {name}"]
        assert value == f"{100 * results[name]['wer']:.2f} %"
        interval = results[name]["wer_interval"]
        assert (interval is None) == (results[name]["wer"] == 0)
        interval_text = (
            "" if interval is None else "{:.2f} to {:.2f} % over utterances|".format(*(100 * edge for edge in interval))
        )
        assert detail == f"{interval_text}{results[name]['reference_words']} words"
    wers = column(run_dir, "valid/wer")
    step, best = min(wers, key=lambda point: point[1])
    assert headline["Best validation WER"][0] == f"{100 * best:.2f} %"
    assert headline["Best validation WER"][1].startswith(f"step {step}")
    last = headline.get("Last validation WER", headline["Best validation WER"])
    assert last[0] == f"{100 * wers[-1][1]:.2f} %"
    assert headline["Optimizer steps"] == (rows(run_dir)[-1]["step"], "epoch 5")
    hours = sum(utterance.duration for utterance in read_manifest(tones / "train.jsonl")) / 3600
    assert headline["Audio trained on"][0] == f"about {round(5 * hours, 1):g} h"


def test_the_tables_of_the_charts_equal_the_columns_of_metrics_csv(run_dir: Path) -> None:
    shown_tables = tables(page_of(run_dir))
    expected = {
        "Validation WER": "valid/wer",
        "Gradient norm": "train/grad_norm",
        "Learning rate": "train/learning_rate",
        "Speed": "train/audio_seconds_per_second",
        "Padding": "train/padding",
        "Waiting for data": "train/data_wait",
        "Blank": "valid/blank_ratio",
    }
    for title, name in expected.items():
        [table] = [table for long, table in shown_tables.items() if long.startswith(f"{title}: ")]
        points = dict(column(run_dir, name))
        assert len(table) - 1 == min(len(points), 60), name
        for step, value in table[1:]:
            assert number(value) == pytest.approx(points[int(number(step))], rel=5.1e-4, abs=5.1e-4), name
    [loss] = [table for title, table in shown_tables.items() if title.startswith("Loss")]
    assert loss[0] == ["optimizer step", "training", "validation"]
    for name, place in (("train/loss", 1), ("valid/loss", 2)):
        shown = [(number(row[0]), number(row[place])) for row in loss[1:] if row[place] != "-"]
        points = dict(column(run_dir, name))
        assert len(shown) >= min(len(points), 30)  # the table also has the steps of the other line
        for step, value in shown:
            assert value == pytest.approx(points[int(step)], rel=5.1e-4)


def test_the_titles_of_the_charts_describe_their_lines(run_dir: Path) -> None:
    titles = " | ".join(tables(page_of(run_dir)))
    padding = statistics.fmean(value for _, value in column(run_dir, "train/padding"))
    waiting = statistics.fmean(value for _, value in column(run_dir, "train/data_wait"))
    norms = [value for _, value in column(run_dir, "train/grad_norm")]
    assert f"Padding: {100 * padding:.1f} % of a batch's frames" in titles
    assert f"Waiting for data: {100 * waiting:.1f} % of a step's time" in titles
    match = re.search(r"Gradient norm: median (\S+), maximum (\S+)", titles)
    assert match is not None
    assert number(match[1]) == pytest.approx(statistics.median(norms), rel=5.1e-3)
    assert number(match[2]) == pytest.approx(max(norms), rel=5.1e-3)
    clip = resolved()["trainer"]["gradient_clip_val"]
    number_clipped = f"{sum(norm > clip for norm in norms)} of {len(norms)} logged steps"
    clipped = f"before clipping; {number_clipped} were clipped to {clip:g}"
    assert clipped in page_of(run_dir)


def test_each_sampled_utterance_is_shown_with_the_errors_counted_by_jiwer(run_dir: Path) -> None:
    page = page_of(run_dir)
    lines = [json.loads(line) for line in (run_dir / "examples.jsonl").read_text().splitlines()]
    for name in {line["id"] for line in lines}:
        table = re.search(rf"<h3><bdi>{name}</bdi></h3>.*?</table>", page, re.DOTALL)
        assert table is not None
        shown = re.findall(r'<tr><th scope="row">(.*?)</th><td class="number">(.*?)</td><td>(.*?)</td></tr>', table[0])
        assert shown[-1][0] == "reference"
        steps = [step.split(" to ") for step, _, _ in shown[:-1]]
        assert [int(step[0]) for step in steps] == sorted(int(step[0]) for step in steps)
        for line in (line for line in lines if line["id"] == name):
            [(_, errors, marked)] = [
                row for step, row in zip(steps, shown, strict=False) if int(step[0]) <= line["step"] <= int(step[-1])
            ]
            alignment = jiwer.process_words(line["reference"], line["hypothesis"])
            assert int(errors) == alignment.substitutions + alignment.insertions + alignment.deletions
            assert marked.count('class="sub"') == alignment.substitutions
            assert marked.count('class="ins"') == alignment.insertions
            assert marked.count('class="del"') == alignment.deletions
            hypothesis = re.sub(r'<span class="hidden-text">.*?</span>', "", marked)
            hypothesis = re.sub(r'<span class="del".*?</span>', "", hypothesis)
            assert text(hypothesis).split() == (line["hypothesis"].split() or ["nothing"] * (not line["reference"]))


def test_dropped_utterances_and_settings_are_shown(run_dir: Path, tones: Path) -> None:
    page = page_of(run_dir)
    longer = [utterance for utterance in read_manifest(tones / "train.jsonl") if utterance.duration > MOST_SECONDS]
    assert longer
    assert f"dropped {len(longer)} of 48 training utterances: longer than {MOST_SECONDS:g} s" in page
    assert html.escape((run_dir / "config.yaml").read_text()) in page


def test_the_recorded_events_describe_the_run(run_dir: Path, tones: Path) -> None:
    history = read_history(run_dir / "events.jsonl")
    recognizer = load_recognizer(run_dir)
    parameters = sum(parameter.numel() for parameter in recognizer.model.parameters())
    hours = sum(utterance.duration for utterance in read_manifest(tones / "train.jsonl")) / 3600
    vocab_size = recognizer.model.tokenizer.vocab_size
    start = Started(
        0,
        "Conformer",
        {"parameters": parameters, "tokens": vocab_size},
        {"utterances": 48, "hours": pytest.approx(hours)},
        {"utterances": 8},
        *ORIGIN,
    )
    assert history.latest is not None
    assert history.first == history.latest
    assert replace(history.latest, command="", code="", libraries="", machine="") == start
    assert (history.starts, history.passes, history.damaged) == (1, 5.0, 0)
    logged = re.findall(r"^\S+ \S+ (?:WARNING|ERROR) (.*)$", (run_dir / "train.log").read_text(), re.MULTILINE)
    assert list(history.warnings.elements()) == logged
    seconds = [json.loads(line)["time"] for line in (run_dir / "events.jsonl").read_text().splitlines()]
    assert 0 < history.wall_seconds < seconds[-1] - seconds[0] + 1e-6


def test_the_time_is_the_sum_over_all_starts_without_the_pauses_between_them(tmp_path: Path) -> None:
    night = 80_000
    dropped, damaged = Warned("dropped 3: why (a, b, c)"), Warned("x.ckpt is damaged (why)\na second line of it")
    add_events(tmp_path, (0, START), (1, dropped), (10, Progress(20, 1, 20, 200)), (60, Progress(50, 1, 50, 200)))
    add_events(
        tmp_path, (night, damaged), (night + 1, START), (night + 1, dropped), (night + 31, Progress(350, 2, 150, 200))
    )
    history = read_history(tmp_path / "events.jsonl")
    assert (history.starts, history.wall_seconds, history.passes) == (2, 90.0, 1.75)
    assert history.warnings == {dropped.message: 2, damaged.message: 1}
    page = page_of(tmp_path)
    assert tiles(page)["Optimizer steps"] == ("350", "epoch 2"), "metrics.csv has only the steps that are logged"
    assert "why (a, b, c) (2 times)" in page
    assert "in 2 starts" in page

    # the clock was set back between these events
    add_events(tmp_path, (night + 20, Bundled()), (night + 40, Bundled()))
    assert read_history(tmp_path / "events.jsonl").wall_seconds == 110.0


def test_events_damaged_by_a_kill_or_a_disk_are_counted_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    add_events(tmp_path, (0, START), (10, Progress(10, 1, 10, 100)))
    whole = path.read_bytes()
    for size in range(1, len(whole)):  # killed in the middle of any line
        path.write_bytes(whole[:size])
        add_events(tmp_path, (20, Progress(20, 1, 20, 100)))
        history = read_history(path)
        assert history.passes == 0.2
        left = whole[:size].splitlines()
        started, cut = left[0] == whole.splitlines()[0], left[-1] not in whole.splitlines()
        assert (history.starts, history.damaged) == (started, cut), size
    bad = [
        b"[]",
        b"7",
        b"{}",
        b"\0" * 100,
        b"\xff",
        b'{"time": 1, "event": "unheard of"}',
        b'{"time": NaN, "event": "bundle"}',
    ]
    bad += [b'{"time": 1, "event": "warning", "message": 3}', b'{"time": "x", "event": "bundle"}']
    bad += [b'{"time": 1, "event": "bundle", "more": 1}', b'{"time": 1, "event": []}']
    path.write_bytes(whole + b"\n".join(bad) + b"\n")
    assert read_history(path).damaged == len(bad)
    assert f"Damaged lines of events.jsonl, which are left out: {len(bad)}." in page_of(tmp_path)


def test_a_killed_and_resumed_run_keeps_its_earlier_events(tones: Path, tmp_path: Path) -> None:
    settings = resolved(
        *TINY,
        *tone_corpus(tones),
        "trainer.max_epochs=2",
        "num_threads=1",
        "corpus.test=[]",
        f"run_dir={tmp_path / 'run'}",
    )
    killed = start(settings, tmp_path / "log", before=die_after_the_first_epoch)
    assert finish(killed) == -signal.SIGKILL
    path = tmp_path / "run" / "events.jsonl"
    earlier_events = path.read_bytes()
    assert read_history(path).passes == 1.0
    assert finish(start(settings, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    assert path.read_bytes().startswith(earlier_events)
    history = read_history(path)
    assert (history.starts, history.passes, history.damaged) == (2, 2.0, 0)
    assert history.latest.step > history.first.step == 0


def test_the_page_of_an_older_run_states_that_events_are_missing(run_dir: Path, tmp_path: Path) -> None:
    for name in ("config.yaml", "metrics.csv", "examples.jsonl", "train.log", "results.json"):
        shutil.copy(run_dir / name, tmp_path)
    page = page_of(tmp_path)
    assert "events.jsonl does not record how this run started; see train.log." in page
    assert tables(page).keys() == tables(page_of(run_dir)).keys()
    add_events(tmp_path, (0, replace(START, step=20)))
    assert "events.jsonl begins at step 20; earlier events are only in train.log." in page_of(tmp_path)


HEADER = "step,epoch,train/loss,train/grad_norm,valid/wer,valid/loss\r\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "No step was logged"),
        ({"metrics.csv": HEADER}, "No step was logged"),
        ({"metrics.csv": HEADER + "1,1.0,2.5,0.5,,\r\n"}, "There was no validation."),
        ({"metrics.csv": HEADER + "1,1.0,2.5,0.5,,2\r\n"}, "the validation WER"),
        ({"metrics.csv": HEADER + "1,1.0,2.5,0.5,0.9,2\r\n"}, "padding, waiting for data"),
        ({"metrics.csv": HEADER + "1,1.0,nan,0,1.0,inf\r\n"}, "train/loss was not a finite number in 1 line"),
        ({"metrics.csv": HEADER + "1,1.0,-0.0,0.0,0.0,0.0\r\n2,1.0,0.0,1e-300,0.0,0.0\r\n"}, "Loss: 0 in training"),
        ({"metrics.csv": HEADER + "1,1.0,1e30,1e-30,0,0\r\n2,1.0,1e-30,1e30,0,0\r\n"}, "Gradient norm"),
        ({"results.json": "{"}, "there is no results.json"),
        ({"results.json": '{"test": {"wer": null}, "other": 3}'}, "WER, test"),
        (
            {"results.json": '{"a": {"wer": 0.2, "wer_speaker_interval": [0.1, 0.25]}}'},
            "10.00 to 25.00 % over speakers",
        ),
        ({"config.yaml": "a: [\n<b>"}, "a: [\n&lt;b&gt;"),
        ({"config.yaml": "- 1\n- 2\n"}, "- 1"),
        ({"examples.jsonl": '{"step": 1}\n[]\n7\nnull\n{"st'}, "examples.jsonl is missing or empty"),
        (
            {"examples.jsonl": '{"step": 1, "epoch": 1, "id": [], "reference": "a", "hypothesis": "a"}'},
            "examples.jsonl is missing or empty",
        ),
        ({"train.log": "a log\n"}, "events.jsonl does not record how"),
        ({"events.jsonl": "not events\n"}, "Damaged lines of events.jsonl, which are left out: 1."),
    ],
)
def test_the_page_of_a_run_with_few_files_names_what_is_missing(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, newline="")
    assert message in text(page_of(tmp_path)) or message in page_of(tmp_path)


def test_the_page_of_a_run_without_validation_names_nothing_of_a_validation_as_missing(tmp_path: Path) -> None:
    logged = "step,train/loss,train/grad_norm,train/learning_rate,train/audio_seconds_per_second,train/padding"
    (tmp_path / "metrics.csv").write_text(f"{logged},train/data_wait\n1,2.5,0.5,1e-3,100,0.1,0.01\n")
    for config in ("corpus: {valid: []}", "corpus: {valid: [valid.jsonl]}"):  # the second stopped before a validation
        (tmp_path / "config.yaml").write_text(config)
        page = text(page_of(tmp_path))
        assert "There was no validation." in page
        assert not re.search("Missing|missing or empty|Hypotheses during training", page)


def test_the_page_of_a_head_without_blank_names_no_blank_as_missing(run_dir: Path) -> None:
    record = read_record(run_dir)
    curves = {name: curve for name, curve in record.curves.items() if name != "valid/blank_ratio"}
    assert "Missing" not in text(training_page(replace(record, curves=curves)))


def long_run(folder: Path, lines: int) -> None:
    """Write a run whose metrics have this number of lines and one outlier in the loss."""
    draw = random.Random(0)
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "epoch", "train/loss", "train/grad_norm", "train/padding", "valid/wer"])
        for line in range(1, lines + 1):
            wer = 1 / line if line % 100 == 0 else ""
            writer.writerow([line * 10, 1, 20.0 if line == lines // 3 else 1 + draw.random(), 0.5, draw.random(), wer])
    with (folder / "examples.jsonl").open("w") as file:
        for step in range(100, lines, 100):
            words = " ".join(draw.choice(["one", "two", "three"]) for _ in range(30))
            file.write(json.dumps({"step": step, "epoch": 1, "id": "a", "reference": words, "hypothesis": words[::-1]}))
            file.write("\n")


def test_a_long_run_has_a_small_page_that_shows_extremes(tmp_path: Path) -> None:
    long_run(tmp_path, 100_000)
    page = page_of(tmp_path)
    assert len(page) < 1_000_000
    [loss] = [figure for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL) if "Loss:" in figure]
    drawn = [
        float(y)
        for path in re.findall(r'class="line faint[^"]*" d="(.*?)"', loss)
        for y in re.findall(r" ([\d.]+)", path)
    ]
    top = min(drawn)
    assert sum(y < top + 100 for y in drawn) == 1, "the outlier, a loss of 20, is far above the others"


def test_a_validation_before_the_first_step_is_not_mistaken_for_one_at_the_end(tmp_path: Path) -> None:
    header = "step,train/loss,valid/loss,valid/wer,valid/blank_ratio\r\n"
    lines = [f"{step},{3 - step / 60},,,\r\n" for step in range(20, 61, 20)]
    (tmp_path / "metrics.csv").write_text("".join([header, "0,,1.88,0.5,0.25\r\n", *lines]))
    page = page_of(tmp_path)
    assert "Loss: 2 in training at step 60, 1.88 in validation before the first step" in page
    assert "Validation WER: 50.0 % before the first step" in page
    assert "Blank: 25.0 % of the frames in the validation before the first step" in page
    assert "e-09" not in page
    figures = [figure for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL) if "optimizer step" in figure]
    assert len(figures) == 3
    for figure in figures:
        assert ">60<" in figure, "all charts have the steps of the run"


def test_a_training_curve_with_many_points_is_shown_as_a_running_mean(tmp_path: Path) -> None:
    long_run(tmp_path, 1000)
    page = page_of(tmp_path)
    assert "the mean of 25 neighbouring points" in page
    [(title, table)] = [item for item in tables(page).items() if item[0].startswith("Padding")]
    padding = [value for _, value in column(tmp_path, "train/padding")]
    assert title == f"Padding: {100 * statistics.fmean(padding):.1f} % of a batch's frames on average"
    ends = statistics.fmean([loss for _, loss in column(tmp_path, "train/loss")][-25:])
    assert f"Loss: {ends:.3g} in training at step 10,000" in page
    for step, value in table[1:]:
        place = int(number(step)) // 10 - 1
        reach = min(12, place, 999 - place)
        around = statistics.fmean(padding[place - reach : place + reach + 1])
        assert number(value) == pytest.approx(around, abs=5.1e-4)


HOSTILE = '"><script>document.title = "broken"</script> \u202e \udcff & ' + "x" * 10_000


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A run with malicious texts, names and warnings."""
    folder = tmp_path / "run <script>alert(1)"
    folder.mkdir()
    (folder / "metrics.csv").write_text(HEADER + "1,1.0,2.5,0.5,0.9,2\r\n", newline="")
    line = {"step": 1, "epoch": 1, "id": HOSTILE, "reference": HOSTILE, "hypothesis": HOSTILE[::-1]}
    (folder / "examples.jsonl").write_text(json.dumps(line) + "\n")
    (folder / "results.json").write_text(json.dumps({HOSTILE: {"wer": 0.5, "reference_words": 2}}))
    add_events(folder, (0, START), (1, Warned(HOSTILE)))
    (folder / "config.yaml").write_text("corpus: {name: '<b>x</b>'}\n")
    return folder


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (380, "light"),
        *(pytest.param(*slow, marks=pytest.mark.slow) for slow in ((380, "dark"), (1400, "light"))),
        (1400, "dark"),
    ],
)
def test_the_page_has_no_errors_and_fits_its_window(
    width: int,
    scheme: str,
    run_dir: Path,
    hostile: Path,
    browser: Any,  # noqa: F811
) -> None:
    """The page logs no error, requests only itself, has no text of low contrast, and needs no horizontal scrolling."""
    leave_report(hostile)
    for folder in (run_dir, hostile):
        seen = visit(browser, folder / "report.html", width=width, scheme=scheme)
        for summary in seen.page.query_selector_all("summary"):
            summary.click()
        assert seen.complaints == []
        assert seen.requests == [seen.page.url]
        assert poor_contrasts(seen.page) == []
        assert overflow(seen.page) <= 0
        assert overlapping_texts(seen.page) == []
        assert seen.page.title() == f"Training run {folder.name}"


def test_each_chart_has_a_description_and_a_table(run_dir: Path, browser: Any) -> None:  # noqa: F811
    page = visit(browser, run_dir / "report.html").page
    charts = page.query_selector_all("figure.chart")
    assert len(charts) == 10, "eight of each recogniser, and the two losses of its head"
    for chart in charts:
        title = chart.query_selector("figcaption").inner_text().splitlines()[0]
        assert chart.query_selector("svg[role=img]").get_attribute("aria-label").startswith(title)
        assert len(chart.query_selector_all("tbody tr")) > 1


def test_a_chart_shows_the_values_of_the_point_under_the_pointer(run_dir: Path, browser: Any) -> None:  # noqa: F811
    page = visit(browser, run_dir / "report.html").page
    page.locator("figure.chart", has_text="Validation WER").locator("svg .hit").last.hover()
    step, wer = column(run_dir, "valid/wer")[-1]
    assert f"{step:,}" in page.locator(".tip").inner_text()
    assert f"{100 * wer:.1f} %" in page.locator(".tip").inner_text()


def test_a_page_that_cannot_be_written_causes_only_a_warning(tones: Path, tmp_path: Path) -> None:
    path = tmp_path / "run" / "report.html"
    path.mkdir(parents=True)  # a folder in the place of the file
    settings = resolved(
        *TINY, *tone_corpus(tones), "trainer.max_epochs=1", "num_threads=1", f"run_dir={tmp_path / 'run'}"
    )
    assert finish(start(settings, tmp_path / "log")) == 0
    log = (tmp_path / "log").read_text()
    assert (
        len(re.findall(rf"{re.escape(str(path))} could not be written; all other results are complete: .*", log)) == 1
    )
    assert "Traceback" not in log
    assert (tmp_path / "run" / "results.json").is_file()


def break_the_page() -> None:
    def fail(*_: Any) -> str:
        raise ZeroDivisionError("a fault of ours")

    training_report.training_page = fail


def test_an_internal_error_in_the_page_causes_only_a_warning(tones: Path, tmp_path: Path) -> None:
    settings = resolved(
        *TINY, *tone_corpus(tones), "trainer.max_epochs=1", "num_threads=1", f"run_dir={tmp_path / 'run'}"
    )
    assert finish(start(settings, tmp_path / "log", before=partial(break_the_page))) == 0
    log = (tmp_path / "log").read_text()
    assert f"{tmp_path / 'run' / 'report.html'} could not be made; all other results are complete" in log
    assert "a fault of ours" in log
    assert (tmp_path / "run" / "results.json").is_file()


def test_the_command_makes_the_page_of_an_unfinished_run(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    going_on = tmp_path / "going on"
    going_on.mkdir()
    for name in ("config.yaml", "metrics.csv", "examples.jsonl", "train.log", "events.jsonl"):
        shutil.copy(run_dir / name, going_on)
    assert main([str(going_on), "--output", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert "there is no results.json" in (tmp_path / "page.html").read_text()
    assert not (going_on / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{absent}"], "RUN_DIR; got '{absent}'"),
        (["{run}", "--output", "{folder}"], "--output ... '{folder}'"),
    ],
)
def test_an_invalid_argument_of_the_command_is_named(
    arguments: list[str], message: str, run_dir: Path, tmp_path: Path
) -> None:
    names = {"absent": str(tmp_path / "absent"), "run": str(run_dir), "folder": str(tmp_path)}
    with refused(ValueError, message.format(**names)):
        main([argument.format(**names) for argument in arguments])
