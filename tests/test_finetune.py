"""asr.finetune: one command from recordings with texts to a bundle, a card and a result with its interval."""

import csv
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from asr import finetune
from asr.apps.doctor import memory
from asr.apps.doctor.trial import MemoryLimit
from asr.apps.finetune import own_corpus
from asr.apps.finetune import settings as finetuning
from asr.apps.finetune.settings import ChosenSettings, mask_choices
from asr.base.system.lock import alone_in
from asr.core.checkpoint.load import BUNDLE
from asr.core.checkpoint.saved import CHECKPOINTS
from asr.core.data.batch import Batch
from asr.core.data.manifest import read_manifest
from asr.core.evaluation.comparison import compare
from asr.core.recognition.model import Model
from asr.core.run.names import CONFIG
from asr.core.training.hydra_command import compose_settings
from asr.errors import InputError
from tests.conftest import PATIENCE
from tests.refusals import refused
from tests.scoring import simulated
from tests.tones import sentences, write_corpus

STEPS = ["trainer.max_epochs=-1", "trainer.max_steps=12", "checkpoint.every_steps=1"]
QUICK = ["--set", *STEPS, "data.batch_seconds=10"]


def table_of(manifest: Path, table: Path) -> Path:
    """Write a manifest as a CSV file with the columns path, sentence and mood."""
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "sentence", "mood"])
        writer.writerows([each.audio_filepath, each.text, "calm"] for each in read_manifest(manifest))
    return table


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 60 recordings without speakers, and a manifest of other speech."""
    folder = tmp_path_factory.mktemp("recordings")
    write_corpus(folder, {"mine": sentences(60, seed=7), "other": sentences(4, seed=8)})
    return table_of(folder / "mine.jsonl", folder / "mine.csv")


def asr(module: str, *arguments: object, cwd: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], cwd=cwd, text=True, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def stop_after_a_checkpoint(
    run_dir: Path, module: str, *arguments: object, cwd: Path, signum: signal.Signals = signal.SIGKILL
) -> int:
    """Start a command, and send it a signal when its run has a checkpoint; return its status."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + PATIENCE
        while not list((run_dir / CHECKPOINTS).glob("step=*.ckpt")):
            assert process.poll() is None, "the run ended without a checkpoint"
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(signum)
        return process.wait()


def weights(bundle: Path) -> dict[str, torch.Tensor]:
    return load_file(bundle / "weights.safetensors")


def test_a_further_test_has_the_name_of_its_data_unless_another_manifest_has_it() -> None:
    given = ["/a/dev-clean.jsonl", "b/dev-clean", "c/TEST.csv", "d/音", "hf://datasets/me/my news", "also_1.tsv"]
    names = own_corpus.names_of_tests(given)
    assert names == ["dev-clean", "also_2", "also_3", "also_4", "my_news", "also_6"]


def test_one_command_killed_and_repeated_makes_a_bundle_and_a_result_and_equals_the_printed_command(
    recordings: Path, fluent: Path, tmp_path: Path
) -> None:
    also = ["--also-test", recordings.parent / "other.jsonl"]
    command = ["asr.finetune", fluent / "run", recordings, "--output", "mine", *also, *QUICK]
    planned = asr(*command, "--dry-run", cwd=tmp_path)
    output = tmp_path / "mine"
    assert not (output / BUNDLE).exists()
    assert "ignored: mood" in planned
    train = next(line for line in planned.splitlines() if "-m asr.train" in line)
    recordings.rename(recordings.with_suffix(".moved"))  # further starts use what the first has stored
    assert stop_after_a_checkpoint(output, *command, cwd=tmp_path, signum=signal.SIGTERM) == 128 + signal.SIGTERM
    assert "SIGTERM" in (output / "train.log").read_text()
    half = output / "halves" / "half_1"
    assert stop_after_a_checkpoint(half, *command, cwd=tmp_path) == -signal.SIGKILL
    printed = asr(*command, cwd=tmp_path)
    recordings.with_suffix(".moved").rename(recordings)
    assert train in printed
    [with_share] = [line for line in printed.splitlines() if "-m asr.train" in line]
    asr("asr.train", *shlex.split(with_share)[3:], "run_dir=printed", cwd=tmp_path)
    chosen = json.loads((output / "shares.json").read_text())["share"]
    assert ("init.share" in with_share) == (0 < chosen < 1)
    trained, equal = weights(output / BUNDLE), weights(tmp_path / "printed" / BUNDLE)
    assert trained.keys() == equal.keys()
    assert all(torch.equal(weight, equal[name]) for name, weight in trained.items())

    comparison = json.loads((output / "comparison.json").read_text())
    assert comparison.keys() == {"test", "other"}
    assert "hown to be" in printed
    assert printed.splitlines()[-1].strip().startswith("python -m asr.export")
    cards = [(output / folder / "README.md").read_text() for folder in (BUNDLE, finetune.MERGED)]
    assert all("before" in card and "after" in card for card in cards)
    assert all((output / page).is_file() for page in ("report.html", "test.html"))
    assert asr(
        "asr.transcribe",
        output / finetune.MERGED,
        read_manifest(output / "data/test.jsonl")[0].audio_filepath,
        cwd=tmp_path,
    )
    parts = [{each.id for each in read_manifest(output / f"data/{name}.jsonl")} for name in ("train", "test")]
    assert [len(part) for part in parts] == [48, 12]
    assert not parts[0] & parts[1]


@pytest.mark.parametrize(
    ("before", "after", "count", "has_gained", "used", "said"),
    [
        (0.3, 0.1, 60, True, "new", "Shown to be better"),
        (0.1, 0.3, 60, True, "initial", "Shown to be worse"),
        (0.12, 0.1, 20, True, "new", "utterances may show one"),
        (0.1, 0.1, 0, True, "new", "Not compared"),
        (0.12, 0.1, 20, False, "initial", "Nothing was gained"),
        (0.1, 0.1, 0, False, "initial", "Nothing was gained"),
        (0.3, 0.1, 60, False, "new", "Shown to be better"),
    ],
)
def test_the_next_commands_name_a_model_that_is_not_shown_to_be_worse(
    before: float, after: float, count: int, has_gained: bool, used: str, said: str
) -> None:
    pair = (simulated(count, seed, error_rate=rate) for seed, rate in enumerate((before, after)))
    comparison = compare(*pair) if count else None
    lines = finetune.recommendation(comparison, "initial", "new", has_gained, ["--plugin", "my part.py"])
    assert lines[-1] == f"  python -m asr.export {used} --plugin 'my part.py' -o FOLDER"
    assert said in " ".join(lines)


def test_an_option_that_is_left_out_is_another_command(recordings: Path, fluent: Path, tmp_path: Path) -> None:
    given = [str(fluent / "run"), str(recordings), "--output", str(tmp_path / "mine"), "--dry-run", *QUICK]
    kept = tmp_path / "mine" / "data" / "keep.jsonl"
    finetune.main([*given, "--keep", str(recordings.parent / "other.jsonl")])
    assert kept.is_file()
    finetune.main(given)
    assert not kept.exists()
    finetune.main([*given, "--share", "0.3"])
    (tmp_path / "mine" / CONFIG).touch()
    with refused(InputError, "--output ... share=0.3 ... share=None"):
        finetune.main(given)


def test_a_run_that_an_earlier_version_began_goes_on_without_a_share(
    recordings: Path, fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(fluent / "run"), str(recordings), "--output", str(tmp_path / "mine"), "--dry-run", *QUICK]
    finetune.main(given)
    path = tmp_path / "mine" / finetune.STORED
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({key: stored[key] for key in ("command", "lines", "overrides", "model", "is_adapter")}))
    (tmp_path / "mine" / CONFIG).touch()
    capsys.readouterr()
    finetune.main(given)
    assert "init.share=" not in capsys.readouterr().out.splitlines()[-2]


def test_another_command_in_the_folder_is_refused(recordings: Path, fluent: Path, tmp_path: Path) -> None:
    def run(*more: str, output: Path = tmp_path / "mine") -> None:
        finetune.main([str(fluent / "run"), str(recordings), "--output", str(output), "--dry-run", *QUICK, *more])

    run("--seed", "1")
    run()  # nothing has been trained yet
    (tmp_path / "mine" / CONFIG).touch()
    with refused(InputError, "--output ... seed=0 ... seed=1"):
        run("--seed", "1")
    run()
    with refused(InputError, "nowhere"):
        finetune.main([str(fluent / "run"), "nowhere", "--output", str(tmp_path / "corrected"), "--dry-run"])
    run(output=tmp_path / "corrected")  # a command that was refused leaves the folder free
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with refused(InputError, "--output"):
        run(output=tmp_path / "full")


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        ("<COMMA>", "<COMMA>"),
        ("[noise]", "[noise]"),
        ("<unk>", "<unk>"),
        ("a&amp;b", "&amp;"),
        ("c\N{CYRILLIC SMALL LETTER A}b", "c\N{CYRILLIC SMALL LETTER A}b"),
        ("caf\N{LATIN CAPITAL LETTER A WITH TILDE}\N{COPYRIGHT SIGN}", "caf"),
    ],
)
def test_faults_of_texts_are_named_before_they_are_trained_on(
    fault: str, shown: str, recordings: Path, fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines_about_texts(table: Path) -> list[str]:
        other = ["--also-test", str(recordings.parent / "other.jsonl")]
        output = str(tmp_path / table.stem)
        finetune.main([str(fluent / "run"), str(table), "--output", output, "--dry-run", *other, *QUICK])
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if re.search(r"\d+ of \d+ (training|test|other) texts? ", line)]

    faulty = tmp_path / "faulty.csv"
    rows = recordings.read_text().splitlines()
    faulty.write_text("\n".join([rows[0], *(re.sub(",([^,]*),calm", rf",\1 {fault},calm", row) for row in rows[1:])]))
    training, test = lines_about_texts(faulty)
    assert "48 of 48 training" in training
    assert "12 of 12 test" in test
    assert shown in training
    assert shown in test
    assert not lines_about_texts(recordings)


def test_other_data_may_be_the_test(
    recordings: Path, fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path, {"few": sentences(10, seed=9), "again": sentences(10, seed=9)})
    given = [str(fluent / "run"), str(tmp_path / "few.jsonl"), "--output", str(tmp_path / "mine"), "--dry-run", *QUICK]
    with refused(InputError, "DATA ... 40", got=10, cure="--test DATA"):
        finetune.main(given)
    finetune.main([*given[:3], str(tmp_path / "other"), *given[4:], "--test", str(tmp_path / "again.jsonl")])
    assert "10 of 10" in capsys.readouterr().out
    assert len(read_manifest(tmp_path / "other/data/train.jsonl")) == 10


def test_letters_that_the_model_lacks_leave_the_training_texts_alone(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [f"{text} {'zé' if number % 2 else ''}" for number, text in enumerate(sentences(60, seed=3))]
    write_corpus(tmp_path, {"mine": texts})
    arguments = [str(fluent / "run"), str(tmp_path / "mine.jsonl"), "--output", str(tmp_path / "mine"), "--dry-run"]
    finetune.main([*arguments, *QUICK])
    printed = capsys.readouterr().out
    assert "'é'" in printed
    assert "'z'" in printed
    assert not any(set("zé") & set(each.text) for each in read_manifest(tmp_path / "mine/data/train.jsonl"))
    assert any("zé" in each.text for each in read_manifest(tmp_path / "mine/data/test.jsonl"))
    assert "'corpus.also_test=[test.jsonl]'" in printed


def overrides(*choices: ChosenSettings) -> set[str]:
    return {override for choice in choices for override in choice.overrides}


@pytest.mark.parametrize(
    ("method", "minutes", "expected"),
    [(None, 29, "adapter=lora"), (None, 30, "optimizer.lr=2e-4"), ("full", 3, "optimizer.lr=2e-4")],
)
def test_the_method_follows_from_the_amount_of_speech(method: str | None, minutes: float, expected: str) -> None:
    norm = "encoder.blocks.0.convolution.norm.running_mean"
    assert expected in overrides(finetuning.method_choice(method, 60.0 * minutes, [norm], extends=False))
    weight = "encoder.blocks.0.convolution.norm.weight"
    full = overrides(finetuning.method_choice("full", 60.0 * minutes, [weight], extends=False))
    assert "init.frozen=[]" in full  # without batch norms there is nothing to freeze


def test_mel_bins_are_masked_only_where_a_model_reads_them() -> None:
    assert overrides(*mask_choices({"name": "waveform"})) == {"augment.spec_augment.num_freq_masks=0"}
    assert not [*mask_choices({"name": "fbank", "num_mel_bins": 80})]


@pytest.mark.parametrize(
    ("per_epoch", "seconds", "steps"), [(5, 100, 60), (12, 200, 60), (90, 1800, 450), (6, 3601, 36)]
)
def test_the_length_is_five_epochs_or_sixty_steps(per_epoch: int, seconds: float, steps: int) -> None:
    assert f"trainer.max_steps={steps}" in overrides(finetuning.length_choice(per_epoch, seconds))


@pytest.mark.parametrize(
    ("durations", "on_gpu", "batch_seconds"),
    [
        ([3.0, 5.0], False, 20),
        ([3.0, 24.2], False, 25),
        ([10.0] * 60, True, 60),
        ([10.0] * 1000, True, 200),
    ],
)
def test_a_batch_holds_the_longest_utterance(durations: Sequence[float], on_gpu: bool, batch_seconds: int) -> None:
    assert overrides(finetuning.batch_choice(durations, on_gpu)) == {f"data.batch_seconds={batch_seconds}"}


SECONDS = finetuning.RunSeconds(step=2.0, validation=10.0, tests=60.0)


TRAIN_SECONDS = 600.0


def plainly(hours: float, per_epoch: int) -> int:
    """The usual number of steps, or the largest one in whole epochs, or in the first epoch, that fits into the time."""

    def fits(steps: int) -> bool:
        validations = 1 + steps // per_epoch
        return steps * 2.0 + validations * 10.0 + 60.0 <= 0.9 * 3600 * hours + 1e-6

    usual = finetuning.num_steps(per_epoch, TRAIN_SECONDS)
    if fits(usual):
        return usual
    epochs = [steps for steps in range(per_epoch, 3000, per_epoch) if fits(steps)]
    return max(epochs or [steps for steps in range(per_epoch) if fits(steps)])


@pytest.mark.parametrize(("hours", "per_epoch"), [(0.2, 50), (0.1, 50), (1, 333), (5, 333), (0.5, 900), (0.08, 100)])
def test_hours_become_a_number_of_steps(hours: float, per_epoch: int) -> None:
    chosen = overrides(finetuning.hours_choice(hours, SECONDS, per_epoch, TRAIN_SECONDS))
    assert f"trainer.max_steps={plainly(hours, per_epoch)}" in chosen


def test_too_few_hours_are_refused_with_the_least_useful_number() -> None:
    with refused(InputError, "--hours ... 60 steps", got=0.05) as error:
        finetuning.hours_choice(0.05, SECONDS, 100, TRAIN_SECONDS)
    least = float(str(error.value).split("at least ")[1].split(",")[0])
    assert finetuning.hours_choice(least, SECONDS, 100, TRAIN_SECONDS)
    with refused(InputError, "--hours", got=round(least - 0.01, 2)):
        finetuning.hours_choice(round(least - 0.01, 2), SECONDS, 100, TRAIN_SECONDS)


def test_the_steps_of_a_time_are_chosen_before_the_first_step(
    recordings: Path, fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(fluent / "run"), str(recordings), "--output", str(tmp_path / "mine"), "--dry-run"]
    finetune.main([*given, "--hours", "0.05", "--stop-at-deadline"])
    train = shlex.split(next(line for line in capsys.readouterr().out.splitlines() if "-m asr.train" in line))
    assert [name.partition("=")[0] for name in train if "max_" in name] == [
        "trainer.max_epochs",
        "trainer.max_steps",
        "+trainer.max_time",
    ]


def test_a_refused_time_names_one_that_is_accepted_without_measuring_again(
    recordings: Path, fluent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [str(fluent / "run"), str(recordings), "--output", str(tmp_path / "mine"), "--dry-run", "--hours"]
    with refused(InputError, "--hours ... 0.0001") as error:
        finetune.main([*given, "0.0001"])
    least = str(error.value).split("at least ")[1].split(",")[0]
    monkeypatch.setattr("asr.apps.doctor.durations.durations", None)
    finetune.main([*given, least])


def test_hours_are_a_limit_and_no_target() -> None:
    chosen = finetuning.hours_choice(4, SECONDS, 12, TRAIN_SECONDS)
    assert overrides(chosen) == overrides(finetuning.length_choice(12, TRAIN_SECONDS))
    assert "left over" in chosen.reason
    assert "left over" not in finetuning.hours_choice(0.08, SECONDS, 100, TRAIN_SECONDS).reason


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--hours", "0"], "--hours"),
        (["--hours", "inf"], "--hours"),
        (["--stop-at-deadline"], "--hours"),
        (["--hours", "1", "--set", "trainer.max_steps=5"], "--hours ... trainer.max_steps=5"),
        (["--set", "run_dir=other"], "run_dir ... --output"),
        (["--set", "init.share=0.2"], "init.share ... --share"),
        (["--share", "1"], "--share"),
        (["--share", "0.3", "--keep", "other"], "--keep ... --share"),
        (["--set", "corpus.test=[]"], "corpus.test ... --test"),
        (["--set", "data.batch_seconds=auto"], "data.batch_seconds=auto"),
        (["--set", "adapter=null"], "adapter ... --method"),
        (["--format", "bogus"], "--format ... label_studio ... 'bogus'"),
        (["--test-format", "bogus"], "--test-format ... label_studio ... 'bogus'"),
        (["--test-format", "table"], "--test-format ... --test ... table"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: list[str], named: str, recordings: Path, tmp_path: Path
) -> None:
    with refused(InputError, named):
        finetune.main(["model", str(recordings), "--output", str(tmp_path / "mine"), *options])
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("model", "data", "options", "named"),
    [
        ("absent", "mine.csv", [], "absent"),
        ("run", "absent", [], "absent"),
        ("run", "few.csv", [], "utterances"),
        ("run", "mine.csv", ["--test-format", "table", "--test", "absent.csv"], "absent.csv"),
        ("run", "mine.csv", ["--field", "text"], "--field"),
        ("run", "mine.csv", ["--set", "encoder.dim=7"], "encoder.dim"),
        ("run", "mine.csv", ["--hours", "1e-6"], "--hours"),
        ("run", "mine.csv", ["--method", "full", "--set", "adapter.rank=8"], "--set adapter.rank=8 ... --method lora"),
        ("run", "mine.csv", ["--set", "adapter.rnk=8"], "adapter.rnk"),
    ],
)
def test_a_refused_command_leaves_nothing(
    model: str, data: str, options: list[str], named: str, recordings: Path, fluent: Path, tmp_path: Path
) -> None:
    (recordings.parent / "few.csv").write_text("".join(recordings.read_text().splitlines(keepends=True)[:2]))
    options = [str(recordings.parent / option) if option.endswith(".csv") else option for option in options]
    given = [str(fluent / model), str(recordings.parent / data), "--output"]
    with refused(InputError, named):
        finetune.main([*given, str(tmp_path / "new/run"), *options])
    assert not list(tmp_path.iterdir())
    with refused(InputError, named):
        finetune.main([*given, str(tmp_path), *options])
    assert not list(tmp_path.iterdir())


def test_a_refused_command_leaves_what_was_in_the_folder(recordings: Path, fluent: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("mine")
    with refused(InputError, "--output"):
        finetune.main([str(fluent / "run"), str(recordings), "--output", str(tmp_path)])
    assert {path.name for path in tmp_path.rglob("*")} == {"data", "train.jsonl"}
    assert (tmp_path / "data" / "train.jsonl").read_text() == "mine"


def test_settings_of_the_adapter_may_be_set(
    recordings: Path, fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(fluent / "run"), str(recordings), "--output", str(tmp_path / "mine"), "--dry-run", *QUICK]
    finetune.main([*given, "adapter.rank=3"])
    command = next(line for line in capsys.readouterr().out.splitlines() if "-m asr.train" in line)
    assert compose_settings(shlex.split(command)[3:]).components["adapter"]["rank"] == 3


def test_a_folder_that_cannot_be_written_or_is_in_use_is_refused(
    recordings: Path, fluent: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with refused(InputError, "--output ... file"):
        finetune.main([str(fluent / "run"), str(recordings), "--output", str(tmp_path / "file")])
    (tmp_path / "used").mkdir()
    with alone_in(tmp_path / "used"), refused(InputError, str(tmp_path / "used")):
        finetune.main([str(fluent / "run"), str(recordings), "--output", str(tmp_path / "used")])


def test_the_output_may_be_named_by_a_number_and_the_command_is_valid_in_any_folder(
    recordings: Path, fluent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(fluent)
    output = tmp_path / "2024"
    finetune.main(["run", str(recordings), "--output", str(output), "--dry-run", *QUICK])
    monkeypatch.chdir(tmp_path)
    finetune.main([str(fluent / "run"), str(recordings), "--output", "2024", "--dry-run", *QUICK])
    assert str(output / finetune.STORED) in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run[1]", "a{b,c}", "${x}", "[x]", "null", "a=b", "*"])
def test_the_name_of_the_output_may_have_any_characters(
    name: str, recordings: Path, fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run1" / "data").mkdir(parents=True)  # what the pattern run[1] matches
    shutil.copy(recordings.parent / "other.jsonl", tmp_path / "run1" / "data" / "train.jsonl")
    finetune.main([str(fluent / "run"), str(recordings), "--output", str(tmp_path / name), "--dry-run", *QUICK])
    command = next(line for line in capsys.readouterr().out.splitlines() if "-m asr.train" in line)
    settings = compose_settings(shlex.split(command)[3:])
    assert settings.run_dir == str(tmp_path / name)
    assert settings.corpus.name == name
    assert settings.corpus.manifests("train") == [str(tmp_path / name / "data" / "train.jsonl")]


@pytest.mark.parametrize("name", ["???", "/"])
def test_a_name_of_the_output_that_no_config_can_have_is_refused(name: str, recordings: Path, tmp_path: Path) -> None:
    with refused(InputError, f"--output; got {tmp_path / name}"):
        finetune.main(["model", str(recordings), "--output", str(tmp_path / name)])


def test_recordings_of_the_training_are_refused_as_test(recordings: Path, fluent: Path, tmp_path: Path) -> None:
    with refused(InputError, "--test ... DATA ... 60 ... 60"):
        finetune.main(
            [str(fluent / "run"), str(recordings), "--output", str(tmp_path / "a"), "--test", str(recordings)]
        )


def test_recordings_of_the_training_part_are_refused_as_other_speech(
    recordings: Path, fluent: Path, tmp_path: Path
) -> None:
    given = [str(fluent / "run"), str(recordings), "--output", str(tmp_path / "a"), "--dry-run", *QUICK]
    finetune.main(given)
    train, test = (str(tmp_path / f"a/data/{name}.jsonl") for name in ("train", "test"))
    with refused(InputError, "--also-test ... DATA ... 48 ... 48"):
        finetune.main([*given[:3], str(tmp_path / "b"), *given[4:], "--also-test", test, train])


def test_an_option_of_another_format_is_refused(recordings: Path, fluent: Path, tmp_path: Path) -> None:
    given = [str(fluent / "run"), str(recordings), "--output", str(tmp_path / "a"), "--field", "text"]
    with refused(InputError, "--field ... label_studio ... table", cure="--field"):
        finetune.main(given)


def test_what_is_not_trained_on_is_counted_and_does_not_choose_the_method(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_corpus(tmp_path, {"mine": sentences(60, seed=7), "long": [" ".join(sentences(22, seed=9))] * 60})
    manifest = tmp_path / "both.jsonl"
    lines = [tmp_path / f"{name}.jsonl" for name in ("mine", "long")]
    manifest.write_text("".join(path.read_text() for path in lines))
    assert read_manifest(lines[1])[0].duration > 30
    finetune.main([str(fluent / "run"), str(manifest), "--output", str(tmp_path / "run"), "--dry-run", *QUICK])
    printed = capsys.readouterr().out
    num_long = sum(each.duration > 30 for each in read_manifest(tmp_path / "run/data/train.jsonl"))
    assert re.search(rf"^not trained on: {num_long} utterances", printed, re.MULTILINE)
    assert "adapter=lora" in printed  # the long utterances alone would be more than 30 minutes


def test_texts_that_the_model_cannot_spell_are_refused(fluent: Path, tmp_path: Path) -> None:
    write_corpus(tmp_path, {"mine": [f"при {'вет' * number}" for number in range(1, 61)]})
    with refused(InputError, "letters", cure="another model"):
        finetune.main([str(fluent / "run"), str(tmp_path / "mine.jsonl"), "--output", str(tmp_path / "run"), *QUICK])


def test_a_run_whose_bundle_is_an_adapter_is_refused_as_model_in_favour_of_the_merged_model(
    recordings: Path, tmp_path: Path
) -> None:
    (tmp_path / "run" / finetune.MERGED).mkdir(parents=True)
    (tmp_path / "run" / finetune.STORED).touch()
    with refused(InputError, "MODEL", cure=str(tmp_path / "run" / finetune.MERGED)):
        finetune.main([str(tmp_path / "run"), str(recordings), "--output", str(tmp_path / "mine")])


def test_given_settings_replace_choices() -> None:
    choice = ChosenSettings(("a.b=1", "c=2"), "reason")
    assert overrides(*finetuning.without([choice], ["c=3"])) == {"a.b=1"}
    assert not list(finetuning.without([choice], ["c=3", "a.b=0"]))


def test_the_expected_interval_is_about_that_of_a_measurement() -> None:
    assert finetuning.expected_width(7327) == pytest.approx(0.3257 - 0.2916, rel=0.02)  # speechocean762/test


def test_the_longest_batch_that_fits_is_in_the_printed_command_unless_the_user_gives_one(
    recordings: Path, fluent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recomputed: list[bool] = []

    def fits(settings: object, model: Model, batches: Sequence[Batch]) -> bool:
        recomputed.append("forward" in vars(model.encoder.blocks[0]))  # replaced by recompute_blocks
        return max(len(batch) * batch.features.shape[1] for batch in batches) <= 1200

    monkeypatch.setattr(MemoryLimit, "_in_child", lambda limit, function, arguments: function(*arguments))
    monkeypatch.setattr(memory, "take_steps", fits)
    monkeypatch.setattr(memory, "fitting_share", lambda *_: 0.9)
    given = [str(fluent / "run"), str(recordings), "--dry-run", "--set", *STEPS]
    for name in ("false", "true"):
        finetune.main([*given, f"gradient_checkpointing={name}", "--output", str(tmp_path / name)])
        printed = capsys.readouterr().out
        [seconds] = {float(found) for found in re.findall(r"data.batch_seconds=([\d.]+)", printed)}
        assert 8 < seconds < 13
    assert set(recomputed[: len(recomputed) // 2]) == {False}
    assert set(recomputed[len(recomputed) // 2 :]) == {True}
    finetune.main([*given, "data.batch_seconds=200", "--output", str(tmp_path / "given")])
    assert "data.batch_seconds=200" in capsys.readouterr().out
