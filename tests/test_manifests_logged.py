"""Losses, errors and hours of each manifest of a split, in metrics.csv, train.log and the report."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch

from asr import evaluate
from asr.apps.report.training import read_record, training_page
from asr.base.text.word_errors import ErrorCounts
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.evaluation.manifest_sums import ManifestSums
from asr.core.training.metrics import MetricsFile
from tests.conftest import TINY, resolved, tone_corpus
from tests.processes import bundle, finish, start
from tests.tones import sentences, write_corpus

# A step uses all utterances, like a validation, so its losses equal those of the validation before it.
AS_VALIDATED = ["augment=[]", "encoder/block/norm=layer_norm", "data.batch_seconds=1000", "data.jitter=0"]
NAMES = ["train", "a,b"]  # the name of a column may need quotes


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, tones: Path) -> Path:
    """A folder with the tones, `other/a,b.jsonl` (20 utterances) and `other/valid-2.jsonl` (5 utterances)."""
    folder = tmp_path_factory.mktemp("two")
    write_corpus(folder / "other", {"a,b": sentences(20, seed=9), "valid-2": sentences(5, seed=8)})
    (folder / "audio").symlink_to(tones / "audio")
    for split in ("train", "valid", "test"):
        (folder / f"{split}.jsonl").write_bytes((tones / f"{split}.jsonl").read_bytes())
    return folder


@pytest.fixture(scope="module")
def run_dir(two: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six epochs on two manifests, validated and tested on two other manifests."""
    path = tmp_path_factory.mktemp("run") / "run"
    splits = ["corpus.train=[{manifest: train.jsonl, weight: 1.5}, 'other/a,b.jsonl']"]
    splits += [f"corpus.{split}=[valid.jsonl,other/valid-2.jsonl]" for split in ("valid", "test")]
    settings = ["trainer.max_epochs=6", "optimizer.lr=8e-3", "checkpoint.select=last", f"run_dir={path}"]
    assert finish(start(resolved(*TINY, *tone_corpus(two), *splits, *settings), path.parent / "log")) == 0
    return path


def rows(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def column(run_dir: Path, name: str) -> list[float]:
    return [float(row[name]) for row in rows(run_dir) if row[name]]


def test_the_sums_for_each_manifest_equal_those_of_a_plain_loop() -> None:
    names, count = ["a", "b", "empty"], 40
    generator = torch.Generator().manual_seed(5)
    losses, lengths = torch.rand(count, generator=generator) * 9, torch.randint(1, 30, (count,), generator=generator)
    losses[3] = float("inf")  # the loss of a text that does not fit its audio
    utterances = [Utterance("a.wav", 1.0, "", str(place), manifest=names[place % 3 % 2]) for place in range(count)]
    errors = [ErrorCounts(place % 3, place % 2, 1, place % 5, 1) for place in range(count)]
    sums = ManifestSums(names)
    for batch in (slice(0, 17), slice(17, 17), slice(17, count)):
        sums.add(utterances[batch], losses[batch], lengths[batch], errors[batch])
    figures = sums.take(lambda mine: 2 * mine, torch.device("cpu"))  # simulates two ranks with equal batches
    for name in names:
        own = [place for place, utterance in enumerate(utterances) if utterance.manifest == name]
        fit = [place for place in own if losses[place] < float("inf")]
        if not own:
            assert figures[name] == (None, None)
            continue
        assert figures[name].loss == pytest.approx(
            sum(float(losses[place]) for place in fit) / sum(int(lengths[place]) for place in fit), rel=1e-12
        )
        assert figures[name].wer == sum(errors[place].errors for place in own) / sum(
            errors[place].reference_length for place in own
        )
    assert sums.take(lambda mine: mine, torch.device("cpu")) == dict.fromkeys(names, (None, None))  # reset by `take`


def test_a_single_manifest_has_no_separate_columns(tones: Path, tmp_path: Path) -> None:
    settings = resolved(*TINY, *tone_corpus(tones), "trainer.max_steps=2", f"run_dir={tmp_path / 'run'}")
    assert finish(start(settings, tmp_path / "log")) == 0
    assert not [name for name in rows(tmp_path / "run")[0] if name.count("/") > 1]
    assert "By manifest" not in training_page(read_record(tmp_path / "run"))


def test_the_wer_of_each_validation_manifest_equals_that_of_asr_evaluate(
    run_dir: Path, two: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    paths = [str(two / "valid.jsonl"), str(two / "other" / "valid-2.jsonl")]
    assert evaluate.main([str(run_dir), *paths, "--output-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    hours = [sum(utterance.duration for utterance in read_manifest(path)) / 3600 for path in paths]
    parts = f"(valid {hours[0]:.2f} h, valid-2 {hours[1]:.2f} h)"
    assert f"{sum(hours):.2f} h of audio {parts}" in " ".join(printed.split())
    last = {name: column(run_dir, f"valid/wer/{name}")[-1] for name in ("valid", "valid-2")}
    results = json.loads((run_dir / "results.json").read_text())
    for name, wer in last.items():
        assert json.loads((tmp_path / f"{name}.wer.json").read_text())["wer"] == pytest.approx(wer, abs=1e-6)
        assert results[name]["wer"] == pytest.approx(wer, abs=1e-6)
    words = {name: results[name]["reference_words"] for name in last}
    together = sum(last[name] * words[name] for name in last) / sum(words.values())
    assert column(run_dir, "valid/wer")[-1] == pytest.approx(together, abs=1e-6)


def test_the_logged_hours_of_a_manifest_are_its_weight_times_its_hours_times_the_epochs(
    run_dir: Path, two: Path
) -> None:
    for name, path, weight in zip(NAMES, ("train.jsonl", "other/a,b.jsonl"), (1.5, 1.0), strict=True):
        hours = sum(utterance.duration for utterance in read_manifest(two / path)) / 3600
        logged = column(run_dir, f"train/hours/{name}")
        assert logged[-1] == pytest.approx(6 * weight * hours, rel=1e-6)
        assert logged == sorted(logged)


def test_train_log_and_the_report_show_the_figures_of_metrics_csv(run_dir: Path) -> None:
    log = (run_dir / "train.log").read_text()
    lines = [line for line in log.splitlines() if " validation at step " in line]
    assert len(lines) == 6
    for line, place in zip(lines, range(6), strict=True):
        losses, wers = (
            [column(run_dir, f"valid/{kind}/{name}")[place] for name in ("valid", "valid-2")]
            for kind in ("loss", "wer")
        )
        assert f"(valid {losses[0]:.3f}, valid-2 {losses[1]:.3f}), WER" in line
        assert line.endswith(f"(valid {wers[0]:.1%}, valid-2 {wers[1]:.1%})".replace("%", " %"))
    assert re.search(r" done, step .* train loss \S+ \(train \d\.\d+, a,b \d+\.\d+\)", log)
    section = training_page(read_record(run_dir)).partition("<h2>By manifest</h2>")[2].partition("</section>")[0]
    cells = [
        re.findall(r"<t[dh].*?>(?:<bdi>)?(.*?)(?:</bdi>)?</t[dh]>", row) for row in re.findall("<tr>.*?</tr>", section)
    ]
    table = {row[0]: row[1:] for row in cells[:5]}
    assert list(table) == ["manifest", "train", "a,b", "valid", "valid-2"]
    for name in NAMES:
        assert float(table[name][0]) == pytest.approx(column(run_dir, f"train/hours/{name}")[-1], abs=0.005)
        assert float(table[name][1]) == pytest.approx(column(run_dir, f"train/loss/{name}")[-1], rel=0.005)
    for name in ("valid", "valid-2"):
        wers = column(run_dir, f"valid/wer/{name}")
        assert table[name][3:] == [f"{wer:.2%}".replace("%", " %") for wer in (wers[-1], min(wers))]


@pytest.mark.slow
def test_training_and_validation_losses_on_the_same_utterances_are_equal_in_one_and_two_processes(
    two: Path, tmp_path: Path
) -> None:
    splits = [f"corpus.{split}=[train.jsonl,'other/a,b.jsonl']" for split in ("train", "valid")]
    settings = [*TINY, *AS_VALIDATED, *tone_corpus(two), *splits, "trainer.max_epochs=4"]
    for world_size in (1, 2):
        run_dir = tmp_path / str(world_size)
        shares = ["trainer.devices=2", "trainer.strategy=ddp"] if world_size == 2 else []
        config = resolved(*settings, *shares, f"run_dir={run_dir}")
        assert finish(start(config, tmp_path / "log", world_size=world_size)) == 0, (tmp_path / "log").read_text()
        for name in NAMES:
            train, valid = (column(run_dir, f"{kind}/loss/{name}") for kind in ("train", "valid"))
            assert len(train) == len(valid) == 4  # each epoch has one step and one validation
            assert train[1:] == pytest.approx(valid[:-1], rel=1e-5)
    for name in NAMES:
        single_process, both = (column(tmp_path / count, f"train/loss/{name}") for count in ("1", "2"))
        assert both == pytest.approx(single_process, rel=1e-4)  # the order of summation differs


def test_trained_weights_are_bit_identical_with_and_without_figures_of_each_manifest(two: Path, tmp_path: Path) -> None:
    names = {"two": "[train.jsonl,'other/a,b.jsonl']", "one": "[both.jsonl]"}
    other = [json.loads(line) for line in (two / "other" / "a,b.jsonl").read_text().splitlines()]
    moved = [line | {"audio_filepath": f"other/{line['audio_filepath']}"} for line in other]
    (two / "both.jsonl").write_text(
        (two / "train.jsonl").read_text() + "".join(f"{json.dumps(line)}\n" for line in moved)
    )
    for name, manifests in names.items():
        run = [f"corpus.train={manifests}", "trainer.max_epochs=2", "data.jitter=0", f"run_dir={tmp_path / name}"]
        assert finish(start(resolved(*TINY, *tone_corpus(two), *run), tmp_path / "log")) == 0
    assert bundle(tmp_path / "one") == bundle(tmp_path / "two")


def test_a_metric_with_a_comma_and_quotes_in_its_name_remains_one_column(tmp_path: Path) -> None:
    names = ["train/loss", 'train/loss/a,"b"']
    (tmp_path / "metrics.csv").write_text("")
    metrics = MetricsFile(tmp_path / "metrics.csv", done=0)
    metrics.log_metrics({names[0]: 1.0}, step=1)
    metrics.log_metrics({names[0]: 2.0, names[1]: 3.0}, step=2)
    metrics.log_metrics({"valid/wer": 0.5}, step=2)
    assert [[row[name] for name in names] for row in rows(tmp_path)] == [["1.0", ""], ["2.0", "3.0"]]
    assert rows(tmp_path)[1]["valid/wer"] == "0.5"
