"""Components of a package outside of asr: they train, resume and are loaded only if the command names the package."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import asr
from asr.__main__ import COMMANDS
from asr.apps.check.settings import SEVERAL
from asr.apps.language_models.bundle import write_language_model
from asr.base.language_model.stored import read_token_model, token_model_file
from asr.base.settings import plugins
from asr.base.settings.conf import default_settings
from asr.core import build
from asr.core.data.manifest import read_manifest
from asr.core.evaluation.text_metrics import numbers_of
from asr.core.training.callbacks import chosen_callbacks
from asr.core.training.hydra_command import plugins_named
from asr.errors import InputError
from asr.evaluate import main as evaluate
from asr.perplexity import main as perplexity
from asr.transcribe import main as transcribe
from docs.pages.commands import OVERRIDES, parser_of
from tests.conftest import ROOT, TINY, made_once, tone_corpus
from tests.forked import run_module
from tests.processes import metrics
from tests.refusals import check_refusal, refused

HEAD = '''
"""CTC with scaled logits."""

from pathlib import Path
from typing import Annotated

from asr.components.head.ctc import CTC
from asr.base.settings.rule import above


class ScaledCTC(CTC):
    def __init__(self, output_dim, block_dims, vocab_size, *, scale: Annotated[float, above(0)]):
        super().__init__(output_dim, block_dims, vocab_size)
        self.scale = scale

    def all_log_probs(self, encoder_out):
        return super().all_log_probs(self.scale * encoder_out)

    def on_moment(self, moment):
        with Path("moments.txt").open("a") as file:
            print(moment.step, moment.total_steps, file=file)
'''

ACTIVATION = '''
"""Softsign."""

from torch import nn


class Softsign(nn.Module):
    def forward(self, x):
        return x / (1 + x.abs())
'''

TOKEN_MODEL = '''
"""An LSTM with one size."""

from asr.base.settings.rule import Dim
from asr.components.token_model.lstm import LSTMTokenModel


class Small(LSTMTokenModel):
    def __init__(self, vocab_size, *, dim: Dim):
        super().__init__(vocab_size, embedding_dim=dim, dim=dim, num_layers=1, dropout=0.0)
'''

METRIC = '''
"""Numbers that depend on all texts and on their order."""


class Texts:
    def __call__(self, references, hypotheses):
        order = sum(row * len(text) for row, text in enumerate(references))
        return {"utterances": len(hypotheses), "order": order}
'''

CALLBACK = '''
"""Count steps, also before the run was resumed."""

from pathlib import Path

from lightning.pytorch import Callback


class CountSteps(Callback):
    def __init__(self):
        self.steps = 0

    def on_train_batch_end(self, trainer, *arguments):
        self.steps += 1

    def on_train_end(self, trainer, task):
        Path(trainer.default_root_dir, "steps.txt").write_text(f"{self.steps} of {trainer.global_step}")

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state_dict):
        self.steps = state_dict["steps"]
'''

PLUGIN = "mylab.speech"
PARTS = {
    "callback/count_steps": (CALLBACK, ""),
    "metric/texts": (METRIC, ""),
    "head/scaled_ctc": (HEAD, "scale: 1.5\n"),
    "encoder/block/activation/softsign": (ACTIVATION, ""),
    "token_model/small": (TOKEN_MODEL, "dim: 8\n"),
}


def write_plugin(folder: Path) -> None:
    """Write the package mylab.speech with PARTS into a folder."""
    for path, (code, settings) in PARTS.items():
        group, name = path.rsplit("/", 1)
        head = f"# @package {group}.{name}\n" if group in SEVERAL else f"name: {name}\n"
        for file, text in ((f"{path}.py", code), (f"conf/{path}.yaml", head + settings)):
            place = folder / "mylab" / "speech" / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
    for package in ("mylab", "mylab/speech"):
        (folder / package / "__init__.py").touch()


def train(folder: Path, *arguments: str, module: str = "asr.train") -> "subprocess.CompletedProcess[str]":
    """Run a training in a folder, where Python finds the packages in it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, tones: Path) -> Path:
    """A folder with the plugin, and the folder `run` of a run with its components, resumed after 2 of 4 steps."""

    def make(folder: Path) -> None:
        write_plugin(folder)
        chosen = [f"plugins=[{PLUGIN}]", "head=scaled_ctc", "encoder/block/activation=softsign", *TINY, "run_dir=run"]
        chosen.append("callback=[count_steps]")
        for steps in (2, 4):
            ending = [f"trainer.max_steps={steps}", "resume.allow=[trainer.max_steps]"]
            ended = train(folder, *chosen, *tone_corpus(tones), *ending)
            assert ended.returncode == 0, ended.stderr
        assert "resum" in ended.stderr

    return made_once(tmp_path_factory, "lab", make)


@pytest.fixture
def importable(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Python can import the plugin in the test, but no command has named it; afterwards it is forgotten."""
    monkeypatch.syspath_prepend(lab)
    monkeypatch.setattr(plugins, "_named", {})
    yield lab
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


def test_a_bundle_records_the_plugin_of_its_parts(lab: Path) -> None:
    config = json.loads((lab / "run" / "bundle" / "config.json").read_text())
    assert config["plugins"] == [PLUGIN]
    assert config["head"] == {"name": "scaled_ctc", "scale": 1.5}
    assert config["encoder"]["block"]["activation"] == {"name": "softsign"}


@pytest.fixture(scope="session")
def texts(lab: Path) -> Path:
    """A text; the lab has the run `lm` of a language model of the plugin, trained on it."""
    text = lab / "text.txt"
    text.write_text("abba cab\nface\nbad cab\n")
    chosen = [f"plugins=[{PLUGIN}]", "token_model=small", "recognizer=run", "run_dir=lm", "trainer.max_steps=2"]
    chosen.append("callback=[count_steps]")
    ended = train(
        lab, *chosen, f"text.train=[{text}]", f"text.valid=[{text}]", "trainer.accelerator=cpu", module="asr.train_lm"
    )
    assert ended.returncode == 0, ended.stderr
    return text


def test_a_language_model_needs_its_plugin_too(importable: Path, texts: Path) -> None:
    recognizer, model = (str(importable / name) for name in ("run", "lm"))
    assert json.loads((importable / "lm" / "bundle" / "config.json").read_text())["plugins"] == [PLUGIN]
    stored = token_model_file(Path(model))
    with refused(InputError, f"{stored} ... {PLUGIN}", cure=f"--plugin {PLUGIN}"):
        read_token_model(stored)
    checkpoint = next((importable / "lm" / "checkpoints").glob("*.ckpt"))
    with refused(InputError, f"{checkpoint} ... {PLUGIN}", cure=f"--plugin {PLUGIN}"):
        write_language_model(importable / "never", [checkpoint], "")
    assert "mylab" not in sys.modules
    assert perplexity([recognizer, model, str(texts), "--plugin", PLUGIN]) == 0


def test_a_callback_is_called_by_the_training_of_a_language_model_too(lab: Path, texts: Path) -> None:
    assert (lab / "lm" / "steps.txt").read_text() == "2 of 2"


@pytest.mark.parametrize(
    "arguments",
    [
        ["asr.train"],
        ["asr.train", "objective=best_rq", "features/normalize=global_cmvn"],
        ["asr.train_lm", "recognizer=absent", "text.train=[absent]", "text.valid=[absent]"],
    ],
    ids=["recognition", "best_rq", "language_model"],
)
def test_a_callback_that_does_not_exist_is_refused_by_every_objective(arguments: list[str], tmp_path: Path) -> None:
    ended = run_module(*arguments, "+callback.absent={}", f"run_dir={tmp_path / 'run'}", cwd=tmp_path)
    assert ended.returncode == 1
    check_refusal(ended.stderr.splitlines()[-1], "callback ... absent")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", [transcribe, evaluate], ids=["transcribe", "evaluate"])
@pytest.mark.parametrize("model", ["run", "run/bundle"])
def test_a_model_cannot_import_a_plugin_that_the_command_does_not_name(
    importable: Path, tones: Path, command: Callable[[list[str]], int], model: str
) -> None:
    with refused(InputError, PLUGIN, cure=f"--plugin {PLUGIN}"):
        command([str(importable / model), str(tones / "test.jsonl")])
    assert "mylab" not in sys.modules


def test_a_checkpoint_cannot_import_a_plugin_either(importable: Path) -> None:
    checkpoint = next((importable / "run" / "checkpoints").glob("*.ckpt"))
    with refused(InputError, PLUGIN, cure=f"--plugin {PLUGIN}"):
        asr.load_recognizer(checkpoint)
    assert "mylab" not in sys.modules


def test_a_model_works_with_the_plugin_that_the_command_names(
    importable: Path, tones: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe([str(importable / "run"), str(tones / "test.jsonl"), "--plugin", PLUGIN]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8
    recognizer = asr.load_recognizer(importable / "run", plugins=[PLUGIN])
    assert type(recognizer.model.head).__module__ == "mylab.speech.head.scaled_ctc"


def test_a_model_with_a_plugin_is_fine_tuned_by_one_command(lab: Path, tones: Path, tmp_path: Path) -> None:
    given = [str(lab / "run"), str(tones / "train.jsonl"), "--output", str(tmp_path / "mine")]
    steps = ["--set", "trainer.max_steps=2", "trainer.max_epochs=-1"]
    refusal = train(lab, *given, *steps, module="asr.finetune")
    check_refusal(refusal.stderr, PLUGIN, cure=f"--plugin {PLUGIN}")
    ended = train(lab, *given, "--plugin", PLUGIN, *steps, module="asr.finetune")
    assert ended.returncode == 0, ended.stderr
    assert f"asr.transcribe {tmp_path / 'mine' / 'merged'} --plugin {PLUGIN}" in ended.stdout
    config = json.loads((tmp_path / "mine" / "merged" / "config.json").read_text())
    assert config["plugins"] == [PLUGIN]


OF_A_MODEL = {"MODEL", "ADAPTER", "RUN_DIR|CHECKPOINT", "--tokens"}  # arguments that name a model to load


def test_each_command_that_loads_a_model_has_the_option() -> None:
    loading = set()
    for name in (name for commands in COMMANDS.values() for name in commands if name not in OVERRIDES):
        actions = parser_of(name)._actions
        names = {name for each in actions for name in (*each.option_strings, str(each.metavar))}
        if names & OF_A_MODEL:
            loading.add(name)
            assert "--plugin" in names, name
    assert loading >= {"finetune", "transcribe", "average", "merge", "convert", "ngram", "perplexity"}


def test_settings_of_a_plugins_component_obey_the_same_checks(importable: Path) -> None:
    plugins.use([PLUGIN])
    assert default_settings("head", "scaled_ctc") == {"name": "scaled_ctc", "scale": 1.5}
    with refused(InputError, "head ... scale"):
        build.component("head", {"name": "scaled_ctc"})
    with refused(InputError, "head.scale; got -1"):
        build.component("head", {"name": "scaled_ctc", "scale": -1})


def test_a_metric_is_computed_from_the_texts_of_all_processes(lab: Path, tones: Path) -> None:
    """The learning rate is 0, and there are no batch statistics, so that both runs have equal weights."""
    chosen = [f"plugins=[{PLUGIN}]", "metric=[texts]", *TINY, *tone_corpus(tones), "trainer.max_epochs=1"]
    chosen += ["optimizer.lr=0", "encoder/block/norm=layer_norm", "corpus.test=[]"]
    for name, more in (("one", []), ("two", ["trainer.strategy=ddp", "trainer.devices=2"])):
        ended = train(lab, *chosen, *more, f"run_dir={name}")
        assert ended.returncode == 0, ended.stderr
    one, two = (metrics(lab / name)[-1] for name in ("one", "two"))
    texts = [utterance.text for utterance in sorted(read_manifest(tones / "valid.jsonl"), key=lambda each: each.id)]
    assert float(one["valid/utterances"]) == len(texts)
    assert float(one["valid/order"]) == sum(row * len(text) for row, text in enumerate(texts))
    assert [two["valid/utterances"], two["valid/order"]] == [one["valid/utterances"], one["valid/order"]]
    assert json.loads((lab / "one" / "bundle" / "config.json").read_text()).keys().isdisjoint({"plugins", "metric"})


def test_a_callback_keeps_its_state_in_a_resumed_run(lab: Path) -> None:
    assert (lab / "run" / "steps.txt").read_text() == "4 of 4"


def test_a_part_of_the_model_is_told_each_step_also_of_a_resumed_run(lab: Path) -> None:
    assert (lab / "moments.txt").read_text().splitlines()[:4] == [
        "0 2",
        "1 2",
        "2 4",
        "3 4",
    ]  # other tests train here, too


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("class Mine: pass", "callback=mine ... lightning.pytorch.Callback"),
        (
            """
            from lightning.pytorch import Callback

            class Mine(Callback):
                def state_dict(self):
                    return {"path": __import__("pathlib").Path("a")}
            """,
            "callback=mine ... state_dict",
        ),
    ],
    ids=["class", "state"],
)
def test_a_callback_that_cannot_be_used_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, expected: str
) -> None:
    place = tmp_path / "callbacks_lab" / "callback" / "mine.py"
    place.parent.mkdir(parents=True)
    place.write_text(dedent(body))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_named", {})
    plugins.use(["callbacks_lab"])
    with refused(InputError, expected):
        chosen_callbacks({"callback": {"mine": None}})
    del sys.modules["callbacks_lab.callback.mine"]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda: 1 / 0, "metric=mine ... ZeroDivisionError ... test_plugins.py"),
        (lambda: 0.5, "metric=mine; got 0.5"),
        (lambda: {"cer": "0.5"}, "metric=mine ... cer"),
        (lambda: {"wer": 0.5}, "metric=mine ... wer"),
        (lambda: {"valid/cer": 0.5}, "metric=mine ... valid/cer"),
    ],
)
def test_a_metric_that_fails_is_named(result: Callable[[], object], expected: str) -> None:
    class Mine:
        def __call__(self, references: object, hypotheses: object) -> Any:
            return result()

    with refused(InputError, expected):
        numbers_of({"mine": Mine()}, ["a"], ["b"])


@pytest.mark.parametrize("file", ["conf/head/ctc.yaml", "conf/train.yaml"])
def test_a_plugin_cannot_replace_a_yaml_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    place = tmp_path / "shadowing" / file
    place.parent.mkdir(parents=True)
    place.write_text("name: ctc\n")
    monkeypatch.syspath_prepend(tmp_path)
    with refused(InputError, f"shadowing ... {file}"):
        plugins.use(["shadowing"])


def test_a_plugin_cannot_replace_a_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "shadowing" / "head" / "ctc.py"
    place.parent.mkdir(parents=True)
    place.write_text("class CTC: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_named", {})
    plugins.use(["shadowing"])
    with refused(InputError, "head.name ... ctc ... asr ... shadowing"):
        build.component("head", {"name": "ctc"})


@pytest.mark.parametrize("name", ["nowhere_to_be_found", "json.decoder", "asr.components.head", "../mylab", "a;b"])
def test_a_plugin_must_be_a_package_outside_of_asr(name: str) -> None:
    with refused(InputError, f"plugins ... {name}"):
        plugins.use([name])


def test_a_missing_plugin_ends_a_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        transcribe(["never", "never.wav", "--plugin", "nowhere_to_be_found"])
    assert ended.value.code == 1
    check_refusal(capsys.readouterr().err, "--plugin ... nowhere_to_be_found")


def test_plugins_are_found_in_overrides_and_in_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "ours.yaml").write_text("# @package _global_\nplugins: [mylab.speech]\n")
    assert plugins_named(["plugins=[a.b, c]", "seed=1"]) == ["a.b", "c"]
    for option in (["--config-dir", str(tmp_path)], [f"--config-dir={tmp_path}"]):
        assert plugins_named([*option, "experiment=ours"]) == [PLUGIN]
    assert plugins_named(["experiment=digits"]) == []
