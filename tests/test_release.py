"""The distribution: its names and version, the console script, and the wheel in a separate environment."""

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import httpx
import pytest
import yaml

import asr
from asr.__main__ import COMMANDS
from tests.conftest import ROOT, TINY, tone_corpus
from tests.refusals import check_refusal

NAMES = [name for commands in COMMANDS.values() for name in commands]
# The script that pip writes.
SCRIPT = "import sys; from asr.__main__ import main; sys.argv[0] = 'asr'; sys.exit(main())"
PACKAGED = ("asr", "conf", "pyproject.toml", "README.md", "LICENSE")


def run(
    *command: str, cwd: Path = ROOT, environment: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def script(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the console script `asr` of the checkout."""
    return run(sys.executable, "-c", SCRIPT, *arguments)


def test_all_files_have_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert (project["project"]["name"], project["project"]["dynamic"]) == ("asr-conformer", ["version"])
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "asr.__version__"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == asr.__version__


def test_extras_include_other_extras_under_the_name_of_this_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    included = [wanted for extra in extras.values() for wanted in extra if wanted.startswith("asr")]
    assert len(included) == 2
    for wanted in included:
        name, _, names = wanted.removesuffix("]").partition("[")
        assert name == project["name"]
        assert {*names.split(",")} <= extras.keys()


@pytest.mark.parametrize("command", ["compare", "train"])
def test_the_console_script_runs_the_module_of_a_command(command: str) -> None:
    by_script, by_module = script(command, "--help"), run(sys.executable, "-m", f"asr.{command}", "--help")
    assert by_script.returncode == 0
    assert by_script.stdout == by_module.stdout


def test_the_console_script_passes_on_errors_and_exit_statuses() -> None:
    missing = script("compare", "none", "none")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert script("compare").returncode == 2
    unknown = script("tarin")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    check_refusal(unknown.stderr, "command", got="tarin")
    assert script("xyz").stderr.endswith("got 'xyz'. Run asr without arguments for the list.\n")


def test_the_version_is_printed_with_those_of_python_and_torch() -> None:
    assert script("--version").stdout.startswith(f"asr {asr.__version__}, Python {platform.python_version()}, torch 2.")


def test_the_console_script_imports_only_the_module_of_the_command() -> None:
    code = "import sys, asr.__main__\nsys.argv = ['asr', 'compare', '--help']\n"
    code += "try: asr.__main__.main()\nexcept SystemExit: pass\n"
    code += "slow = {'torch', 'hydra', 'numpy', 'importlib.metadata'} & sys.modules.keys()\nassert not slow, slow"
    assert run(sys.executable, "-c", code).stderr == ""


def test_child_processes_can_determine_the_command_that_started_them(tmp_path: Path) -> None:
    """Lightning and `multiprocessing` start child processes with the module name in `__main__.__spec__`."""
    shutil.copytree(ROOT / "asr", tmp_path / "asr", ignore=shutil.ignore_patterns("*.pyc"))
    (tmp_path / "asr" / "compare.py").write_text(
        "import sys\nprint(sys.modules['__main__'].__spec__.name, sys.argv[1:])\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    assert (
        run(sys.executable, "-c", SCRIPT, "compare", "a", cwd=tmp_path, environment=environment).stdout
        == "asr.compare ['a']\n"
    )


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The source distribution, and the wheel built from it."""
    for package in ("build", "twine"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[test]'")
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGED:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, source / name)
    built = run(sys.executable, "-m", "build", "--outdir", str(source / "dist"), str(source), cwd=source)
    assert built.returncode == 0, built.stdout + built.stderr
    return sorted((source / "dist").iterdir())


@pytest.mark.slow
def test_the_distributions_pass_the_checks_of_pypi(distributions: list[Path]) -> None:
    wheel, source = distributions
    assert wheel.name == f"asr_conformer-{asr.__version__}-py3-none-any.whl"
    assert source.name == f"asr_conformer-{asr.__version__}.tar.gz"
    checked = run(sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions))
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_the_wheel_trains_transcribes_and_serves_outside_the_checkout(
    distributions: list[Path], tones: Path, tmp_path: Path
) -> None:
    """Dependencies come from this environment, asr from the installed wheel."""
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    own = sysconfig.get_paths()["purelib"]
    (packages / "dependencies.pth").write_text(
        "\n".join([own, *(path for path in sys.path if path.endswith("-packages"))])
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def installed(*command: str) -> str:
        ended = run(str(binaries / command[0]), *command[1:], cwd=tmp_path, environment=environment)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    installed("python", "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", str(distributions[0]))
    where = installed("python", "-c", "import asr; print(asr.__file__, asr.__version__)")
    assert where == f"{packages / 'asr' / '__init__.py'} {asr.__version__}\n"
    assert all(f"asr {name} " in installed("asr") for commands in COMMANDS.values() for name in commands)
    overrides = [*TINY, *tone_corpus(tones), "trainer.max_steps=3", "run_dir=runs/tones"]
    installed("asr", "train", *overrides, "trainer.devices=2", "trainer.strategy=ddp")
    assert (tmp_path / "runs" / "tones" / "report.html").is_file()
    assert len(installed("asr", "transcribe", "runs/tones", str(tones / "test.jsonl")).splitlines()) > 1
    command = [str(binaries / "asr"), "serve", "runs/tones", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address is not None
        assert httpx.get(address[0]).status_code == 200
        server.terminate()
    assert server.returncode == 0
