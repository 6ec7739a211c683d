"""Overrides are read as they are written; a name that is no setting, or that is a number, is answered with a cure."""

import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from asr.base.settings.rule import ONLY_IN_QUOTES, PATH, TEXT, list_of, or_null, whole
from asr.core.training.hydra_command import readable_arguments
from asr.core.training.overrides import NAMES, SYNONYMS, in_quotes, setting, settings_named
from asr.errors import InputError
from asr.train import main as train
from tests.conftest import CONF, resolved
from tests.forked import run_module
from tests.refusals import refused

GRAMMAR = OverridesParser.create()
PATHS = [
    "runs/x/checkpoints/step=10-wer=1.0000.ckpt",
    "runs/seed=1,lr=0.1",
    "K\u00f6ln/\u00e9t\u00e9",
    "\u97f3\u58f0",
    "LM~1",
    "a (copy)",
    "a#b",
    "R&D",
    "it's",
    'say "x"',
    "a;b!c^d",
    "back\\slash=",
    "end=\\",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_hydra_refuses_is_taken_as_it_is_written(path: str) -> None:
    with pytest.raises(HydraException):
        GRAMMAR.parse_override(f"init.from={path}")
    [argument] = readable_arguments([f"init.from={path}"], "train")
    assert GRAMMAR.parse_override(argument).value() == path


@pytest.mark.parametrize(
    "name", [*PATHS, "[x]", "run[1]", "a{b,c}", "${x}", "\\\\${x}", "a,b", "null", "1e3", "", "s3://b/x"]
)
def test_an_override_made_from_a_text_sets_this_text(name: str) -> None:
    def value(override: str) -> Any:
        config = OmegaConf.create({"folder": GRAMMAR.parse_override(override).value(), "equal": "${folder}"})
        read: Any = OmegaConf.to_container(config, resolve=True)
        assert read["equal"] == read["folder"]
        return read["folder"]

    assert value(setting("folder", name)) == name
    assert value(setting("folder", [name, name])) == [name, name]


def test_entries_of_a_list_are_taken_as_they_are_written() -> None:
    [argument] = readable_arguments(["corpus.test=[a=1.jsonl, \u00e9t\u00e9.jsonl,plain.jsonl]"], "train")
    assert GRAMMAR.parse_override(argument).value() == ["a=1.jsonl", "\u00e9t\u00e9.jsonl", "plain.jsonl"]


def test_a_tilde_at_the_beginning_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    [argument] = readable_arguments(["run_dir=~/runs"], "train")
    assert GRAMMAR.parse_override(argument).value() == "/home/me/runs"


@pytest.mark.parametrize(
    "arguments",
    [
        ["seed=3", "run_dir=runs/a", "encoder=lstm", "+trainer.max_time={hours: 1}", "augment=[noise,gain]", "~corpus"],
        ["--multirun", "seed=1,2", "init.from=runs/seed=1,runs/seed=2"],
        ["a=[b", "a={b", "a='b", "nothing", "1 2"],
    ],
)
def test_other_arguments_are_not_changed(arguments: list[str]) -> None:
    assert readable_arguments(arguments, "train") == arguments


def test_a_checkpoint_whose_name_has_equals_signs_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "step=10-wer=1.0000.ckpt").touch()
    given = run_module("asr.train", f"init.from={tmp_path}/step=10-wer=1.0000.ckpt", "--cfg", "job")
    assert given.returncode == 0, given.stderr
    assert f"from: {tmp_path}/step=10-wer=1.0000.ckpt" in given.stdout


@pytest.mark.parametrize("written", ["2024_11_26", "2024_01", "3.10", "1e3", "true", "0"])
@pytest.mark.parametrize("rule", [TEXT, PATH, or_null(PATH)])
def test_a_number_where_a_name_must_be_is_to_be_put_in_quotes(written: str, rule: Any) -> None:
    value = GRAMMAR.parse_override(f"run_dir={written}").value()
    with refused(InputError, "run_dir ... quotes"):
        rule.check("run_dir", value)
    with refused(InputError, "run_dir ... quotes"):
        list_of(rule, "of texts").check("run_dir", [value])
    with pytest.raises(InputError) as raised:
        whole(5, 6).check("seed", value)
    assert ONLY_IN_QUOTES not in str(raised.value)


@pytest.mark.parametrize(("override", "cure"), [("run_dir=2024_11_26", """'run_dir="2024_11_26"'"""), ("seed=x", None)])
def test_the_command_reports_how_to_quote_a_number(override: str, cure: str | None) -> None:
    given = run_module("asr.train", override)
    assert given.returncode == 1
    assert [line.endswith(f"Give {cure}.") for line in given.stderr.splitlines()] == [cure is not None]


def test_quotes_are_those_of_a_shell() -> None:
    assert in_quotes("run_dir=1e3") == """'run_dir="1e3"'"""
    assert in_quotes("corpus.test=[1,b]") == """'corpus.test=["1","b"]'"""


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lr", ["optimizer.lr"]),
        ("trainer.lr", ["optimizer.lr"]),
        ("learning-rate", ["optimizer.lr"]),
        ("batch_size", ["data.batch_seconds"]),
        ("gpus", ["trainer.devices"]),
        ("patience", ["early_stopping.patience"]),
        ("max_epoch", ["trainer.max_epochs"]),
        ("nonsense", []),
    ],
)
def test_a_name_without_its_section_or_of_another_toolkit_has_a_suggestion(name: str, meant: list[str]) -> None:
    assert settings_named(name, resolved()) == meant


def test_all_synonyms_name_settings_and_files_that_exist() -> None:
    configs = (
        resolved("tokenizer=sentencepiece"),
        resolved("recognizer=x", "text.train=[a]", "text.valid=[a]", root="train_lm"),
    )
    for name, settings in SYNONYMS.items():
        assert {setting for config in configs for setting in settings_named(name, config)} == set(settings), name
    for group, names in NAMES.items():
        assert all((CONF / group / f"{name}.yaml").is_file() for name in names.values()), group
        assert not any((CONF / group / f"{name}.yaml").is_file() for name in names), group


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--lr", "optimizer.lr"),
        ("--learning-rate=3", "optimizer.lr"),
        ("--nonsense", "--hydra-help"),
        ("--cfg=x", "job"),
    ],
)
def test_an_unknown_option_is_refused_in_one_line(
    option: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["asr.train", option, "3"])
    with pytest.raises(SystemExit) as ended:
        train()
    assert str(ended.value.code).startswith("error: ")
    assert hint in str(ended.value.code)
    assert "\n" not in str(ended.value.code)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("override", ["adapter=null", "encoder/block/norm=null"])
def test_null_instead_of_a_file_of_conf_is_refused(override: str) -> None:
    group = override.partition("=")[0]
    with refused(InputError, f"{group} ... null", cure=f"~{group}"):
        readable_arguments([override], "train")
    assert readable_arguments(["schedule.warmup_steps=null"], "train") == ["schedule.warmup_steps=null"]


@pytest.mark.parametrize("value", ["${x}", "???", "[x]", "", "${"])
@pytest.mark.parametrize("more", [(), ("--multirun",)])
def test_a_run_dir_that_is_no_text_is_refused_in_a_line(value: str, more: tuple[str, ...], tmp_path: Path) -> None:
    ended = run_module("asr.train", *more, f"run_dir={value}", cwd=tmp_path)
    assert ended.returncode == 1
    assert "run_dir" in ended.stderr
    assert "error: " in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
    assert not [path for path in tmp_path.iterdir() if path.name != "multirun.yaml"]  # Hydra's list of the jobs
