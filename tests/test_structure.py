"""The architecture: permitted imports, and agreement of configuration and code."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache

import pytest
import yaml

from asr.apps.check.settings import Component, check_settings, components, without_files
from asr.apps.language_models.objective.language_model import LanguageModelSettings
from asr.base.settings.plugins import Home, homes
from asr.base.settings.read import Kind, as_mapping, entries
from asr.core import build
from asr.core.run.settings import RunSettings, read_run_settings
from tests.conftest import CONF, ROOT, resolved
from tests.imports import FLOORS, imported, is_module, modules, room

PARTS = [
    *("adapter", "augment", "decode", "encoder", "features", "head", "logger", "optimizer", "prompt", "schedule"),
    "tokenizer",
]
APPS = [
    *("bulk", "check", "convert", "doctor", "export", "finetune", "language_models", "pretrain", "report", "runs"),
    *("serve", "shards"),
]
# Folders, and the modules of the contract, from the lowest layer up: a line's modules import only from earlier lines.
# Commands, which are in asr/ itself, are above all layers, and do not import each other.
LAYERS = [
    ["errors"],
    ["lengths", "base/system"],
    ["base/settings"],
    ["interfaces", "base/storage"],
    ["base/audio", "base/text", "base/language_model", "base/kernels", "base/onnx"],
    [f"components/{name}" for name in PARTS],
    ["components/token_model", "components/program"],
    ["core/data"],
    ["core/recognition"],
    ["core/build"],
    ["core/decoder_choice"],
    ["core/evaluation"],
    ["core/checkpoint"],
    ["core/hub"],
    ["core/run"],
    ["core/cli"],
    ["core/training"],
    ["core/objective"],
    ["apps/web"],
    [f"apps/{name}" for name in APPS],
    ["apps/zoo"],
]
COMMANDS = sorted(
    path.stem
    for path in (ROOT / "asr").glob("*.py")
    if path.stem not in {"__init__", "__main__", *(name for names in LAYERS for name in names)}
)
RECIPES_MAY = {
    *("errors", "base/system", "base/storage", "base/text", "base/audio", "core.data.manifest", "apps/finetune"),
    *(
        "apps.bulk.statistics",
        "core.checkpoint.formats",
        "core.evaluation.bootstrap",
        "core.evaluation.utterances",
        "core.evaluation.word_errors",
        "core.recognition.confidence",
    ),  # used only by recipes/pseudo_label
    *("apps.web.chart", "apps.web.page", "core.cli.parser"),
}


def layer(module: str) -> int:
    """Return the number of the line in LAYERS that names a module's folder; commands are after the last line."""
    return next((number for number, names in enumerate(LAYERS) if room(module) in names), len(LAYERS))


def test_a_module_imports_only_from_its_own_folder_and_from_lower_layers() -> None:
    for module, tree in modules("asr"):
        for name in imported(tree):
            theirs = name.removeprefix("asr.")
            if not name.startswith("asr.") or not is_module(name):
                continue
            assert room(theirs) == room(module) or layer(theirs) < layer(module), f"asr/{module} imports {name}"


@pytest.mark.parametrize("floor", FLOORS)
def test_the_package_lists_every_folder_in_the_order_of_the_layers(floor: str) -> None:
    """The docstring of a floor has a line for each folder, and for each module beside the folders."""
    about = ast.get_docstring(ast.parse((ROOT / "asr" / floor / "__init__.py").read_text(encoding="utf-8"))) or ""
    listed = [f"{floor}/{name}" for name in re.findall(r"^ {4}(\w+)(?:/|\.py)  +\S", about, re.MULTILINE)]
    there = [path for path in (ROOT / "asr" / floor).iterdir() if path.name[0] != "_"]
    assert sorted(listed) == sorted(f"{floor}/{path.stem}" for path in there)
    order = [layer(name.replace("/", ".")) for name in listed]
    assert order == sorted(order)


def test_an_init_contains_at_most_a_docstring() -> None:
    for path in sorted((ROOT / "asr").glob("*/**/__init__.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        assert [type(node) for node in body] in ([], [ast.Expr]), path


@pytest.mark.parametrize("app", ["web", *APPS, "zoo"])
def test_each_app_says_what_it_may_import_and_which_commands_need_it(app: str) -> None:
    about = ast.get_docstring(ast.parse((ROOT / "asr" / "apps" / app / "__init__.py").read_text(encoding="utf-8")))
    named = set(re.findall(r"asr\.(\w+)", about or ""))
    need = {
        command
        for command in COMMANDS
        for name in imported(ast.parse((ROOT / "asr" / f"{command}.py").read_text(encoding="utf-8")))
        if room(name.removeprefix("asr.")) == f"apps/{app}"
    }
    assert need <= named
    assert "may import base, components" in " ".join((about or "").split())


def test_imports_between_folders_have_no_cycles() -> None:
    """Sub-folders are separate folders; imports for types alone do not count."""
    above: dict[str, set[str]] = {}
    for mine, theirs in arrows():
        above.setdefault(mine, set()).add(theirs)

    def reachable(begin: str) -> set[str]:
        seen: set[str] = set()
        waiting = [*above.get(begin, ())]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += above.get(name, ())
        return seen

    circles = sorted(name for name in above if name in reachable(name))
    assert circles == []


def test_every_public_class_has_a_unique_name() -> None:
    places: dict[str, list[str]] = {}
    for module, tree in modules("asr"):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert {name: several for name, several in places.items() if len(several) > 1} == {}


def folder(module: str) -> str:
    """Return the folder of a module; a module of asr/ itself is its own folder."""
    return module.rpartition(".")[0] or module


@cache
def arrows() -> set[tuple[str, str]]:
    """Return all pairs of a folder and another from which it imports; imports for types alone do not count."""
    return {
        (folder(module), folder(name.removeprefix("asr.")))
        for module, tree in modules("asr")
        for name in imported(without_types(tree))
        if name.startswith("asr.") and is_module(name) and folder(module) != folder(name.removeprefix("asr."))
    }


def without_types(tree: ast.Module) -> ast.Module:
    """Return the tree without the statements under `if TYPE_CHECKING:`."""
    body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return ast.Module(body, type_ignores=[])


def test_the_package_folder_itself_contains_only_the_contract_and_the_commands() -> None:
    contract = {"__init__", "__main__", "interfaces", "errors", "lengths"}
    assert {path.stem for path in (ROOT / "asr").glob("*.py")} == contract | set(COMMANDS)
    assert {path.name for path in (ROOT / "asr").iterdir() if (path / "__init__.py").is_file()} == set(FLOORS)
    for command in COMMANDS:
        assert 'if __name__ == "__main__":' in (ROOT / "asr" / f"{command}.py").read_text(), command


def test_the_package_lists_its_commands_without_importing_torch() -> None:
    code = "import sys, runpy\nrunpy.run_module('asr', run_name='__main__')\n"
    code += "assert not {'torch', 'hydra'} & sys.modules.keys()"
    ended = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert sorted(re.findall(r"^  asr (\w+)  ", ended.stdout, re.MULTILINE)) == COMMANDS


def test_the_wheel_contains_every_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "asr").rglob("__init__.py")}
    assert set(listed) == there | {"asr.conf"}


@pytest.mark.parametrize("app", ["language_models", "pretrain", "web", "zoo"])
def test_the_wheel_contains_the_data_of_apps(app: str) -> None:
    suffixes = (".css", ".html", ".js") if app == "web" else (".yaml",)
    package_data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folder = ROOT / "asr" / "apps" / app
    files = {path for path in folder.rglob("*.*") if path.suffix in suffixes}
    assert files
    assert files == {path for pattern in package_data[f"asr.apps.{app}"] for path in folder.glob(pattern)}


def test_only_training_imports_lightning_and_hydra() -> None:
    for module, tree in modules("asr"):
        tops = {name.split(".")[0] for name in imported(tree)}
        may = module == "train" or room(module) in ("core/training", "components/logger")
        assert "lightning" not in tops or may, module
        assert not tops & {"hydra", "omegaconf"} or module == "core.training.hydra_command", module


# folders and modules that may contain configs of components
MAY_HOLD_CONFIGS = {
    "core/build",
    "core/decoder_choice",
    "core/checkpoint",
    "core/hub",
    "apps/convert",
    "apps/export",
    "apps/zoo",
}


def test_the_name_config_occurs_only_where_components_are_built_or_stored() -> None:
    for module, tree in modules("asr"):
        if room(module) in MAY_HOLD_CONFIGS:
            continue
        for node in ast.walk(tree):
            name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
            assert name != "config", f"asr/{module}, line {getattr(node, 'lineno', 0)}"


def test_recipes_import_only_the_lowest_layers() -> None:
    for module, tree in modules("recipes"):
        for name in imported(tree):
            if name.startswith("asr."):
                theirs = name.removeprefix("asr.")
                assert {theirs, room(theirs)} & RECIPES_MAY, f"recipes/{module} imports {name}"


COMPONENTS = [(file, home) for home in homes() for file in components(home)]


@pytest.mark.parametrize(("file", "home"), COMPONENTS, ids=str)
def test_yaml_keys_equal_the_keyword_only_parameters_and_each_is_documented(file: Component, home: Home) -> None:
    check_settings(file, home)


def sections(cls: type) -> Iterator[type]:
    """Return a settings dataclass, and all dataclasses in it."""
    yield cls
    for entry in entries(cls):
        if entry.kind in (Kind.SECTION, Kind.INLINE):
            yield from sections(entry.type)


@pytest.mark.parametrize(
    "cls", dict.fromkeys([*sections(RunSettings), *sections(LanguageModelSettings)]), ids=lambda cls: cls.__name__
)
def test_each_setting_is_documented_and_has_a_rule(cls: type) -> None:
    docs = [inspect.getdoc(base) or "" for base in cls.__mro__]
    documented = set(re.findall(r"^ +(\w+): ", "\n".join(docs), re.MULTILINE))
    for entry in entries(cls):
        assert entry.field in documented or entry.kind is Kind.INLINE
        assert (entry.rule is not None) == (entry.kind is Kind.SETTING)


def test_settings_read_from_a_config_convert_back_to_it() -> None:
    for overrides in (["corpus=digits"], ["trainer=ddp", "+trainer.benchmark=true"], ["logger=[wandb]"]):
        config = resolved(*overrides)
        assert as_mapping(read_run_settings(config)) == {
            "corpus": {"how_to_prepare": None, "temperature": 1.0} | config["corpus"]
        } | {key: value for key, value in config.items() if key != "corpus"}


@pytest.mark.parametrize("home", homes(), ids=lambda home: home.package)
def test_every_component_has_a_config(home: Home) -> None:
    assert list(without_files(home)) == []


def test_no_interpolation_refers_to_another_component() -> None:
    for path in sorted(path for home in homes() for path in home.conf.rglob("*.yaml")):
        crossing = re.findall(r"\$\{[^}]*\}", path.read_text(encoding="utf-8"))
        assert set(crossing) <= {"${corpus.name}", "${run_dir}", "${now:%Y-%m-%d_%H-%M-%S}"}, path


EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_changing_the_head_of_any_experiment_needs_one_override(experiment: str) -> None:
    for head in ("ctc", "ctc_attention"):
        build.check_components(resolved(f"experiment={experiment}", f"head={head}"))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_experiment_composes_and_builds(experiment: str) -> None:
    config = resolved(f"experiment={experiment}")
    tokenizer, features = build.build_tokenizer(config), build.build_features(config)
    if config["tokenizer"]["name"] == "char":
        tokenizer.fit(["abc"])
    recognizer = build.build_recognizer(config, tokenizer, features)
    build.build_augmentation(config, features.sample_rate)
    build.build_schedule(config)
    model = recognizer.model
    build.build_optimizer(config, model, model.depths)
    assert yaml.safe_load((CONF / "experiment" / f"{experiment}.yaml").read_text())["run_dir"].startswith("runs/")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_imports_neither_torch_nor_hydra(command: str) -> None:
    run = f"runpy.run_module('asr.{command}', run_name='__main__')"
    code = f"import sys, runpy\nsys.argv = ['{command}', '--help']\ntry: {run}\n"
    code += "except SystemExit as ended: assert not ended.code\n"
    code += "assert not {'torch', 'hydra'} & sys.modules.keys()"
    ended = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)
    assert b"%%" not in ended.stdout


def test_using_a_model_imports_neither_lightning_nor_hydra_nor_a_compiler() -> None:
    modules = "asr.transcribe, asr.align, asr.tune, asr.ngram, asr.evaluate"
    modules += ", asr.core.checkpoint.load, asr.apps.language_models.tuning, asr.core.recognition.recognizer"
    code = f"import sys, asr, {modules}; asr.load_recognizer"
    code += "\nslow = {'lightning', 'pytorch_lightning', 'hydra', 'omegaconf', 'torch._dynamo', 'sympy', 'tensorboard'}"
    code += "\nassert not slow & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
