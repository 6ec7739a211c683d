"""Training as a user sees it: learning, output files, and resumption."""

import csv
import json
import shutil
from functools import partial
from pathlib import Path

import jiwer
import pytest
import torch
from safetensors.torch import load_file

from asr.core.checkpoint.saved import kept_checkpoints, select, superfluous
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.manifest import read_manifest
from asr.core.data.position import Position
from asr.core.data.training_set import TrainingSet
from asr.core.run.validation_samples import read_samples
from asr.evaluate import main as evaluate
from asr.train import train
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.processes import finish, start


def run(run_dir: Path, corpus: Path, *overrides: str) -> Path:
    train(settings_with(*TINY, *tone_corpus(corpus), f"run_dir={run_dir}", *overrides))
    return run_dir


def metrics(run_dir: Path) -> list[dict[str, str]]:
    with (run_dir / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def losses(run_dir: Path) -> list[float]:
    return [float(row["train/loss"]) for row in metrics(run_dir) if row["train/loss"]]


@pytest.fixture(scope="session")
def trained(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three epochs on the tones."""
    return run(tmp_path_factory.mktemp("trained") / "run", tones, "trainer.max_epochs=3")


# Losses of the first ten steps of the tiny net on the tones, CPU, float32. Machines differ in the last bits, and
# ten steps of Adam amplify this; the relative tolerance of 2e-3 allows for it, and is far below the effect of a changed
# model or loss.
GOLDEN = [5.446, 4.621, 4.1653, 3.732, 3.3764, 3.8501, 5.9435, 2.8854, 3.1237, 2.8824]


def test_the_first_ten_losses_equal_the_golden_ones(tones: Path, tmp_path: Path) -> None:
    run_dir = run(tmp_path / "run", tones, "trainer.max_epochs=3", "head=ctc")
    assert losses(run_dir)[:10] == pytest.approx(GOLDEN, rel=2e-3)


@pytest.mark.apps
def test_a_run_writes_all_its_files_into_its_folder(trained: Path) -> None:
    folders = {"bundle", "checkpoints", "fitted", "tensorboard"}
    files = {
        "config.yaml",
        "counts.json",
        "events.jsonl",
        "examples.jsonl",
        "metrics.csv",
        "report.html",
        "results.json",
        "train.log",
    }
    assert {path.name for path in trained.iterdir()} == folders | files
    assert {path.name for path in (trained / "bundle").iterdir()} == {
        "README.md",
        "characters.json",
        "config.json",
        "weights.safetensors",
    }
    bundled = json.loads((trained / "bundle" / "config.json").read_text())
    assert bundled.keys() == {"format", "normalizer", "tokenizer", "features", "encoder", "head", "decode"}


def test_restarting_a_finished_run_plans_no_more_epochs(
    trained: Path, tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    (run_dir / "results.json").unlink()
    planned: list[int] = []
    plan = TrainingSet.epoch

    def counting(self: TrainingSet, position: Position) -> EpochPlan:
        planned.append(position.epoch)
        return plan(self, position)

    monkeypatch.setattr(TrainingSet, "epoch", counting)
    caplog.set_level("INFO", "asr")
    run(run_dir, tones, "trainer.max_epochs=3")
    assert any(message.startswith("the run is already finished, at step ") for message in caplog.messages)
    assert [epoch for epoch in planned if epoch >= 3] == []
    assert (run_dir / "results.json").read_bytes() == (trained / "results.json").read_bytes()


def test_equal_commands_give_byte_identical_bundles(trained: Path, tones: Path, tmp_path: Path) -> None:
    again = run(tmp_path / "run", tones, "trainer.max_epochs=3")
    for file in sorted((trained / "bundle").iterdir()):
        assert (again / "bundle" / file.name).read_bytes() == file.read_bytes(), file.name
    assert losses(again) == losses(trained)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_schedule_ends_with_the_last_step(seed: int, accumulate: int, tones: Path, tmp_path: Path) -> None:
    """Epochs have different numbers of batches, because speeds and batches are drawn again."""
    uneven = ["augment=[speed_perturb]", "data.batch_seconds=5", f"seed={seed}", "trainer.check_val_every_n_epoch=4"]
    falling = ["schedule.final_factor=0", f"trainer.accumulate_grad_batches={accumulate}", "corpus.test=[]"]
    run_dir = tmp_path / "run"
    settings = resolved(
        *TINY, *tone_corpus(tones), f"run_dir={run_dir}", "trainer.max_epochs=4", *uneven, *falling, "num_threads=1"
    )
    assert finish(start(settings, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    rates = [float(row["train/learning_rate"]) for row in metrics(run_dir) if row["train/learning_rate"]]
    assert f" {len(rates)} steps: " in (run_dir / "train.log").read_text()
    assert rates[-1] == 0
    assert all(rate > 0 for rate in rates[:-1])


def test_the_number_of_workers_does_not_change_the_result(trained: Path, tones: Path, tmp_path: Path) -> None:
    again = run(tmp_path / "run", tones, "trainer.max_epochs=1", "data.num_workers=2", "schedule=noam")
    alone = run(tmp_path / "alone", tones, "trainer.max_epochs=1", "data.num_workers=0", "schedule=noam")
    assert losses(again) == losses(alone)


def test_a_finished_run_is_extended_from_its_last_checkpoint(tones: Path, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", tones, "schedule=noam", "trainer.max_epochs=4", "augment=[spec_augment]")
    parts = run(tmp_path / "parts", tones, "schedule=noam", "trainer.max_epochs=2", "augment=[spec_augment]")
    longer = "resume.allow=[trainer.max_epochs]"
    run(parts, tones, "schedule=noam", "trainer.max_epochs=4", "augment=[spec_augment]", longer)
    assert losses(parts) == losses(whole)
    assert [int(row["step"]) for row in metrics(parts)] == list(range(1, 1 + len(losses(whole))))


@pytest.mark.parametrize("overrides", [["optimizer.lr=0.01"], ["normalizer=absent"], ["data.max_dropped_fraction=2"]])
def test_a_refused_command_leaves_no_trace_in_the_log_and_the_events_of_a_run(
    overrides: list[str], trained: Path, tones: Path, tmp_path: Path
) -> None:
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    before = {name: (run_dir / name).read_bytes() for name in ("train.log", "events.jsonl")}
    settings = [*TINY, *tone_corpus(tones), f"run_dir={run_dir}", "trainer.max_epochs=3", *overrides]
    assert finish(start(resolved(*settings), tmp_path / "log")) == 1
    assert " error: " in (tmp_path / "log").read_text()
    assert {name: (run_dir / name).read_bytes() for name in before} == before


def test_tensorboard_has_the_settings_and_the_hypotheses_of_each_validation(trained: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained / "tensorboard"))
    events.Reload()
    assert b"optimizer.lr" in events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    tables = events.Tensors("valid/hypotheses/text_summary")
    samples = read_samples(trained / "examples.jsonl")
    assert [table.step for table in tables] == sorted({sample.step for sample in samples})
    for table in tables:
        text = table.tensor_proto.string_val[0].decode()
        assert all(sample.hypothesis in text for sample in samples if sample.step == table.step)


def test_a_run_with_other_settings_is_not_resumed_and_the_difference_is_named(trained: Path, tones: Path) -> None:
    with pytest.raises(
        ValueError, match=r"contains a run with other settings.*Changed: optimizer\.lr: 0\.002 -> 0\.01\."
    ):
        run(trained, tones, "trainer.max_epochs=3", "optimizer.lr=0.01")


def test_results_json_agrees_with_evaluate_and_with_jiwer(trained: Path, tones: Path, tmp_path: Path) -> None:
    manifest = tones / "test.jsonl"
    assert evaluate([str(trained), str(manifest), "--output-dir", str(tmp_path), "--device", "cpu"]) == 0
    results = json.loads((trained / "results.json").read_text())["test"]
    summary = json.loads((tmp_path / "test.wer.json").read_text())
    assert {key: summary[key] for key in results} == results
    assert summary.keys() - results.keys() == {"audio_seconds", "real_time_factor"}
    lines = [json.loads(line) for line in (tmp_path / "test.utterances.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == [utterance.id for utterance in read_manifest(manifest)]
    by_jiwer = jiwer.wer([line["reference"] for line in lines], [line["hypothesis"] for line in lines])
    assert results["wer"] == pytest.approx(by_jiwer, abs=1e-12)


@pytest.mark.parametrize("select", ["average_best", pytest.param("average_last", marks=pytest.mark.slow)])
def test_the_average_bundle_is_the_mean_of_the_kept_checkpoints(select: str, tones: Path, tmp_path: Path) -> None:
    average = [f"checkpoint.select={select}", "checkpoint.keep=2"]
    run_dir = run(tmp_path / "run", tones, "trainer.max_epochs=3", *average)
    checkpoints = kept_checkpoints(run_dir / "checkpoints")
    assert all(checkpoint.score == 1.0 for checkpoint in checkpoints), "the error rates are equal"
    states = [torch.load(checkpoint.path, weights_only=True)["state_dict"] for checkpoint in checkpoints]
    chosen = states[:2] if select == "average_best" else states[-2:]
    bundle = load_file(run_dir / "bundle" / "weights.safetensors")
    for name, weight in bundle.items():
        mean = (chosen[0][f"model.{name}"].double() + chosen[1][f"model.{name}"].double()) / 2
        torch.testing.assert_close(weight.double(), mean, atol=1e-7, rtol=1e-6)


def test_checkpoints_are_selected_by_their_names(tmp_path: Path) -> None:
    names = ["5", "10-wer=0.9000", "20-wer=0.0400", "25", "30-wer=0.1590", "40-wer=0.1610", "41", "42"]
    for name in names:
        (tmp_path / f"step={name}.ckpt").touch()
    checkpoints = kept_checkpoints(tmp_path)
    assert [checkpoint.step for checkpoint in checkpoints] == [5, 10, 20, 25, 30, 40, 41, 42]

    def steps(selection: str, keep: int) -> list[int]:
        return [checkpoint.step for checkpoint in select(selection, checkpoints, keep)]

    assert steps("average_best", 3) == [20, 30], "checkpoints much worse than the best are not averaged"
    assert steps("average_best", 1) == steps("best", 3) == [20]
    assert steps("average_last", 2) == [30, 40]
    assert steps("average_last", 4) == [20, 30, 40], "checkpoints much worse than the last are not averaged"
    assert steps("last", 3) == [42]
    # The newest two are kept for resuming; the bundle uses the best two, or the last two validated ones.
    assert [checkpoint.step for checkpoint in superfluous("best", checkpoints, 2)] == [5, 10, 25, 40]
    assert [checkpoint.step for checkpoint in superfluous("average_last", checkpoints, 2)] == [5, 10, 20, 25]


def test_a_run_folder_can_be_moved_and_the_run_resumed(tones: Path, tmp_path: Path) -> None:
    run(tmp_path / "old", tones, "schedule=noam", "trainer.max_epochs=2")
    (tmp_path / "old").rename(tmp_path / "new")
    run(tmp_path / "new", tones, "schedule=noam", "trainer.max_epochs=3", "resume.allow=[trainer.max_epochs]")
    assert len([row for row in metrics(tmp_path / "new") if row["valid/wer"]]) == 3


def test_two_runs_in_one_process_each_log_to_their_own_folder(
    tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "asr")
    for name in ("first", "second"):
        train(settings_with(*TINY, *tone_corpus(tones), "trainer.max_steps=1", f"run_dir={tmp_path / name}"))
    for name in ("first", "second"):
        assert (tmp_path / name / "train.log").read_text().count("training utterances in the manifests") == 1


def test_a_run_without_checkpoints_does_not_block_its_folder(tones: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"encoder\.block\.num_heads"):
        run(tmp_path / "run", tones, "trainer.max_epochs=1", "encoder.block.num_heads=5")
    run(tmp_path / "run", tones, "trainer.max_epochs=1")


def count_starts(path: Path) -> None:
    """Write a line for each start of a process that reads audio."""
    from asr.core.training import data_module as module

    begin = module._start_worker

    def begin_and_count(worker: int) -> None:
        with path.open("a") as file:
            file.write(f"{worker}\n")
        begin(worker)

    module._start_worker = begin_and_count


def test_training_workers_start_once_per_run_and_validation_workers_each_time(tones: Path, tmp_path: Path) -> None:
    overrides = [*TINY, *tone_corpus(tones), f"run_dir={tmp_path / 'run'}", "trainer.max_epochs=3", "corpus.test=[]"]
    settings = resolved(*overrides, "data.num_workers=1", "num_threads=1")
    assert finish(start(settings, tmp_path / "log", before=partial(count_starts, tmp_path / "starts"))) == 0
    assert (tmp_path / "starts").read_text().split() == ["0"] * (1 + 3)
