"""asr.plan describes a training run in advance and leaves no files."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from asr import shards
from asr.apps.doctor import reading as reading_module
from asr.apps.doctor.reading import epoch_reading
from asr.base.settings.read import as_mapping
from asr.base.storage import store
from asr.base.text.normalize import basic
from asr.core.build import build_features, build_tokenizer
from asr.core.data.corpus import read_corpus
from asr.core.data.dataset import Reference, fetch
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.index_cache import IndexCache
from asr.core.data.position import start_of_epoch
from asr.core.data.training_set import TrainingSet
from asr.core.data.utterances import Utterances
from asr.core.run.folder import fitted_front_end
from asr.core.run.resume import changes
from asr.core.training.data_module import SpeechData
from asr.errors import InputError
from asr.plan import plan
from asr.train import train
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.forked import run_module
from tests.processes import finish, start, steps_logged
from tests.refusals import check_refusal, refused
from tests.storing import FaultyProxy


def report(capsys: pytest.CaptureFixture[str], corpus: Path, *overrides: str) -> str:
    plan(settings_with(*TINY, *tone_corpus(corpus), "run_dir=/nowhere/run", *overrides))
    return capsys.readouterr().out


def figures(printed: str, name: str) -> list[str]:
    """Return the cells of the table's line with this name."""
    (line,) = re.findall(rf"^ *{re.escape(name)}  +(.*)$", printed, re.MULTILINE)
    return re.split(r"  +", line)


def test_the_report_shows_what_an_epoch_contains(tones: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = report(capsys, tones, "trainer.devices=2", "trainer.accumulate_grad_batches=3", "trainer.max_epochs=6")
    assert printed.startswith("tones: 48 of 48 training utterances, 0.0")
    assert "dropped none" in printed
    assert "2 processes: trainer.devices=2, trainer.num_nodes=1" in printed
    assert figures(printed, "utterances") == ["48", "48"]
    assert re.search(r"^ +epoch 1 +epoch 2$", printed, re.MULTILINE)
    for batches, of_all, updates in zip(
        figures(printed, "batches per process"),
        figures(printed, "batches of all processes"),
        figures(printed, "optimizer steps"),
        strict=True,
    ):
        assert int(of_all) == 2 * int(batches)
        assert int(updates) == -(-int(batches) // 3)
    assert all(re.fullmatch(r"\d+\.\d\d %", padding) for padding in figures(printed, "padding"))
    assert len(figures(printed, "batch-mates changed since the previous epoch")) == 1
    assert re.search(r"^validation: 8 utterances, .* in \d+ batches, at most \d+ per process", printed, re.MULTILINE)


def test_the_report_describes_the_plan_that_training_uses(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = figures(report(capsys, tones), "batches per process")
    counted = []
    loader = SpeechData.train_dataloader

    def counting(self: SpeechData) -> object:
        made = loader(self)
        counted.append(str(len(made)))
        return made

    monkeypatch.setattr(SpeechData, "train_dataloader", counting)
    train(settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path / 'run'}", "trainer.max_epochs=2"))
    assert counted == batches


def test_the_report_shows_the_number_of_steps_of_the_run(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uneven = ["augment=[speed_perturb]", "trainer.max_epochs=4", "data.batch_seconds=5"]
    (steps,) = re.findall(r"^the whole run: ([\d,]+) optimizer steps", report(capsys, tones, *uneven), re.MULTILINE)
    run_dir = tmp_path / "run"
    settings = resolved(*TINY, *tone_corpus(tones), f"run_dir={run_dir}", *uneven)
    assert finish(start(settings, tmp_path / "log")) == 0, (tmp_path / "log").read_text()
    assert steps_logged(run_dir) == int(steps)
    assert f" {steps} steps: " in (run_dir / "train.log").read_text()
    bounded = report(capsys, tones, *uneven, "trainer.max_steps=7", "schedule.warmup_steps=2")
    assert (
        "the whole run: 7 optimizer steps: trainer.max_epochs=4 or trainer.max_steps=7, whichever comes first\n"
        in bounded
    )


@pytest.mark.parametrize("tokenizer", ["tokenizer=char", "tokenizer=sentencepiece"])
def test_a_tokenizer_is_fitted_once_to_a_manifest_and_again_when_it_changes(
    tokenizer: str, tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tones, tmp_path / "corpus", ignore=shutil.ignore_patterns("run*"))
    small = ["tokenizer.vocab_size=12"] if "sentencepiece" in tokenizer else []
    settings = settings_with(*TINY, *tone_corpus(tmp_path / "corpus"), tokenizer, *small, "run_dir=/nowhere/run")
    kind = type(build_tokenizer(settings.components))
    fits: list[int] = []
    fit = kind.fit
    monkeypatch.setattr(kind, "fit", lambda self, texts: (fits.append(1), fit(self, texts))[1])

    def files() -> dict[str, bytes]:
        corpus = read_corpus(settings.corpus, basic, IndexCache(tmp_path / "index").utterances)
        stored = replace(settings, data=replace(settings.data, index_dir=str(tmp_path / "index")))
        return fitted_front_end(stored, corpus, False, None)[0].files()

    assert files() == files()
    assert fits == [1]
    manifest = tmp_path / "corpus" / "train.jsonl"
    manifest.write_text("".join(manifest.read_text().splitlines(keepends=True)[:-3]))
    files()
    assert fits == [1, 1]


def test_dropped_utterances_are_counted_and_named_by_reason(tones: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = report(capsys, tones, "data.min_seconds=1.0")
    (dropped, ids) = re.findall(r"dropped (\d+): shorter than data\.min_seconds=1 \((train-.*)\)", printed)[0]
    assert int(dropped) > 5
    assert ids.count("train-") == 5
    assert ids.endswith(f"and {int(dropped) - 5} more")
    assert printed.startswith(f"tones: {48 - int(dropped)} of 48 training utterances")


def test_the_report_shows_ids_with_control_characters_on_one_line(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "audio").symlink_to(tones / "audio")
    for split in ("train", "valid", "test"):
        text = (tones / f"{split}.jsonl").read_text()
        (tmp_path / f"{split}.jsonl").write_text(re.sub(r'"id": "(.+?)"', r'"id": "\1\\n\\u001b[31m"', text))
    printed = report(capsys, tmp_path, "data.min_seconds=1.0")
    assert "\x1b" not in printed
    assert re.search(r"^  dropped \d+: .* \(train-\d+\\n\\x1b\[31m, .* more\)$", printed, re.MULTILINE)


def test_the_command_prints_the_report_and_leaves_no_file(tones: Path, tmp_path: Path) -> None:
    before = sorted(tones.rglob("*"))
    ended = run_module("asr.plan", *TINY, *tone_corpus(tones), "run_dir=run", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert figures(ended.stdout, "utterances") == ["48", "48"]
    assert list(tmp_path.iterdir()) == []
    assert sorted(tones.rglob("*")) == before


def test_an_invalid_setting_is_reported_in_one_line_with_exit_status_1(tones: Path, tmp_path: Path) -> None:
    ended = run_module("asr.plan", *TINY, *tone_corpus(tones), "data.batch_seconds=-1", cwd=tmp_path)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    check_refusal(line, "data.batch_seconds", got=-1)


@pytest.mark.parametrize(
    ("devices", "num_nodes", "expected"),
    [(4, 1, 4), (4, 2, 8), ([0, 2], 1, 2), ("0,2", 1, 2), ("0,", 1, 1), ("3", 1, 3), (-1, 2, 2), ("auto", 1, 1)],
)
def test_the_number_of_processes_is_devices_times_nodes(devices: object, num_nodes: int, expected: int) -> None:
    trainer = replace(settings_with("trainer.accelerator=cpu").trainer, devices=devices, num_nodes=num_nodes)
    number, why = trainer.num_processes()
    assert number == expected
    assert f"trainer.devices={devices}" in why


def test_minus_1_devices_stands_for_all_gpus_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    trainer = settings_with("trainer.accelerator=gpu", "trainer.devices=-1", "trainer.num_nodes=2").trainer
    assert trainer.num_processes() == (16, "trainer.devices=-1, trainer.num_nodes=2, and this machine has 8 GPUs")


@pytest.fixture
def in_s3(tones: Path, s3: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write shards of 0.3 MB to an object store, and return the overrides for this corpus."""
    monkeypatch.setattr(shards, "MIN_MEGABYTES", 0.0)
    for split in ("train", "valid"):
        options = ["-o", f"s3://bucket/planned/{split}", "--shard-megabytes", "0.3"]
        assert shards.main([str(tones / f"{split}.jsonl"), *options]) == 0
    splits = ["corpus.train=[train/index.arrow]", "corpus.valid=[valid/index.arrow]", "corpus.test=[]"]
    return [*tone_corpus(tones), "corpus.dir=s3://bucket/planned", *splits]


def epoch_of(overrides: Sequence[str]) -> tuple[EpochPlan, Utterances]:
    """Plan the first epoch of a training run with these settings."""
    settings = settings_with(*TINY, *overrides)
    corpus = read_corpus(settings.corpus, str, IndexCache().utterances)
    features = build_features(settings.components)
    reference = Reference(lambda text: [ord(letter) for letter in text], len, lambda frames: frames)
    data = TrainingSet(corpus.train, features, reference, None, 3, settings.data.plan)
    return data.epoch(start_of_epoch(0, 2)), data.utterances


@pytest.mark.parametrize("gap", [0, 1 << 16])
def test_requests_and_bytes_of_an_epoch_equal_those_counted_by_a_store(
    in_s3: list[str], s3: FaultyProxy, gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MERGE_GAP", gap)
    weighted = "corpus.train=[{manifest: train/index.arrow, weight: 1.5}]"
    plan, utterances = epoch_of([*in_s3, weighted])
    reading = epoch_reading(plan, utterances)
    assert reading is not None
    s3.requests.clear()
    wanted = 0
    for step in range(len(plan)):
        for rank in range(2):
            batch = fetch([utterances[item.row] for item in plan.items(step, rank)])
            wanted += sum(len(utterance.content or b"") for utterance in batch)
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", byte_range) for _, _, byte_range in s3.requests if byte_range]
    assert reading.requests == len(ranges)
    assert reading.wanted_bytes == wanted
    assert reading.fetched_bytes == pytest.approx(
        sum(int(match[2]) + 1 - int(match[1]) for match in ranges if match), rel=1e-9
    )
    assert (reading.num_shards, reading.num_planned, reading.num_batches) == (5, 2 * len(plan), 2 * len(plan))
    assert (reading.amplification > 1.0) == (gap > 0), "only with a gap, unneeded bytes are fetched"


def test_only_a_sample_of_many_batches_is_simulated_and_extrapolated(
    in_s3: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, utterances = epoch_of([*in_s3, "data.batch_seconds=4"])
    whole = epoch_reading(plan, utterances)
    monkeypatch.setattr(reading_module, "MAX_BATCHES", 10)
    part = epoch_reading(plan, utterances)
    assert whole is not None
    assert part is not None
    assert part.num_planned == 10 < whole.num_planned
    assert part.wanted_bytes == whole.wanted_bytes  # computed from all rows
    assert part.requests == pytest.approx(whole.requests, rel=0.3)


def test_the_report_shows_requests_their_cost_memory_and_time(
    in_s3: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    overrides = ["trainer.devices=4", "trainer.num_nodes=2", "data.num_workers=3", f"data.cache_dir={tmp_path}"]
    overrides.append("trainer.max_epochs=6")
    plan(settings_with(*TINY, *in_s3, "run_dir=/nowhere/run", *overrides))
    printed = capsys.readouterr().out
    requests, each = re.findall(r"requests to an object store: (\d+), (\d+\.\d) per batch$", printed, re.MULTILINE)[0]
    [batches] = figures(printed, "batches of all processes")[:1]
    assert float(each) == pytest.approx(int(requests) / int(batches), abs=0.05)
    assert f"cost: {int(requests) * 0.0004 / 1000:.4g} US$, at 0.0004 US$" in printed
    per_process, all_ = re.findall(r"per second and process: (\S+) requests .* each process, (\S+) and", printed)[0]
    assert float(all_) == pytest.approx(8 * float(per_process), abs=1)
    assert re.search(r"^  columns and plan of an epoch: .* MB$", printed, re.MULTILINE)
    assert "data.cache_gigabytes=100 stores 100.0 % of the bytes" in printed
    total, parts = re.findall(r"^time to the first step: (\S+) s here, .*\n  (.*)$", printed, re.MULTILINE)[0]
    assert float(total) == pytest.approx(sum(map(float, re.findall(r"(\d+\.\d\d) s", parts))), abs=0.6)


def test_the_reported_memory_of_the_columns_and_the_plan_equals_that_of_their_tensors(in_s3: list[str]) -> None:
    plan, utterances = epoch_of(in_s3)
    per_utterance = 4 + 8 + 1 + 4  # order, durations (also used for padding), speeds, positions
    fixed = plan.plan.edges.nbytes + plan.plan.steps.nbytes + 4
    assert plan.num_bytes == per_utterance * len(utterances) + fixed
    assert utterances.parts[0].index.num_bytes > 8 * 4 * len(utterances)  # four columns of numbers, and texts


def test_local_files_need_no_requests(tones: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = report(capsys, tones)
    assert "requests to an object store" not in printed
    assert "memory of each training process" in printed


def step_of(*overrides: str) -> tuple[float, float]:
    """Return the seconds of an optimizer step over all processes, and of a batch."""
    settings = settings_with(*overrides)
    seconds, processes = settings.data.plan.batches.seconds, settings.trainer.num_processes()[0]
    return seconds * processes * settings.trainer.accumulate_grad_batches, seconds


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("batch", [9, 20, 33.3, 500])
def test_a_step_has_its_seconds_on_any_number_of_devices(devices: int, batch: float) -> None:
    given = ["data.step_seconds=240", f"data.batch_seconds={batch}", "data.max_seconds=7", f"trainer.devices={devices}"]
    step, seconds = step_of(*given)
    assert step == pytest.approx(240)
    assert seconds <= batch * (1 + 1e-12)
    assert seconds > batch / 2 or seconds == 240 / devices, "batches are not shorter than necessary"


@pytest.mark.parametrize("experiment", ["librispeech_100h", "librispeech_960h", "common_voice", "ljspeech"])
def test_a_recipe_for_gpus_has_equal_steps_on_one_four_and_eight(experiment: str) -> None:
    devices = [1, 4, 8]
    steps = [step_of(f"experiment={experiment}", "trainer=ddp", f"trainer.devices={number}")[0] for number in devices]
    assert steps == pytest.approx([settings_with(f"experiment={experiment}").data.step_seconds] * 3)


@pytest.mark.parametrize("debug", ["fast", "overfit", "profile"])
def test_a_debug_file_determines_the_batches_of_a_recipe(debug: str) -> None:
    settings = settings_with("experiment=librispeech_100h", f"debug={debug}")
    assert settings.trainer.accumulate_grad_batches == 1
    assert settings.data.plan.batches.seconds == (500 if debug == "profile" else 480)


def test_a_step_that_devices_cannot_divide_is_refused() -> None:
    given = ["data.step_seconds=240", "data.max_seconds=30", "data.batch_seconds=60"]
    assert step_of(*given, "trainer.devices=8") == (240, 30)
    with refused(InputError, "data.step_seconds ... 30 ... 60 ... 9 processes ... 240", cure="data.max_seconds"):
        step_of(*given, "trainer.devices=9")
    two_views = ["head=ctc_consistency", "augment=[spec_augment]"]
    with refused(InputError, "data.step_seconds ... 60 ... 8 processes ... 240", cure="data.max_seconds"):
        step_of(*given, *two_views, "trainer.devices=8")


def test_accumulation_is_not_given_beside_the_seconds_of_a_step() -> None:
    given = ["data.step_seconds=240", "data.batch_seconds=60"]
    with refused(InputError, "trainer.accumulate_grad_batches ... 3", cure="data.step_seconds=null"):
        step_of(*given, "trainer.accumulate_grad_batches=3")
    assert step_of(*given, "trainer.accumulate_grad_batches=4") == (240, 60)
    assert step_of(*given, "data.step_seconds=null", "trainer.accumulate_grad_batches=3") == (180, 60)


def test_a_run_from_before_recipes_named_their_seconds_resumes() -> None:
    older = {"world_size": 1, "manifests": {}, "fitted": {}}
    recipe, one = "experiment=librispeech_100h", "trainer.devices=1"
    before = ["data.step_seconds=null", "data.batch_seconds=500", "trainer.accumulate_grad_batches=4"]
    old, new = (as_mapping(settings_with(recipe, one, *given)) for given in (before, []))
    del old["data"]["step_seconds"]
    assert changes({**old, **older}, {**new, **older}) == {}


def test_a_plan_that_the_doctor_refuses_is_refused(tones: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with refused(InputError, "warm-up"):
        report(capsys, tones, "schedule.warmup_steps=1000")
    printed = capsys.readouterr().out
    assert "the whole run" in printed
    assert "error: warm-up" in printed
    assert "warning: warm-up" in report(capsys, tones, "schedule.warmup_steps=15", "trainer.max_steps=20")
