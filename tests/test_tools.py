"""The tools of CONTRIBUTING: which tests a change needs, and faults that are planted to test the tests."""

import subprocess
from pathlib import Path

import pytest

from tools import quick
from tools.coverage_map import CoverageMap
from tools.mutants import Fault, faults
from tools.quick import base, changes, git, requests, selection


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one commit, as the root of the tools."""
    monkeypatch.setattr(quick, "ROOT", tmp_path)
    for folder in ("asr/components/decode", "conf/decode", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "asr" / "components" / "decode" / "beam.py").write_text("one\ntwo\nthree\nfour\n")
    (tmp_path / "asr" / "gone.py").write_text("one\ntwo\n")
    (tmp_path / "conf" / "decode" / "wide.yaml").write_text("name: beam\nbeam_size: 100\n")
    (tmp_path / "tests" / "test_beam.py").write_text("from asr.components.decode.beam import Beam\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def test_changed_lines_have_the_numbers_of_the_commit(checkout: Path) -> None:
    (checkout / "asr" / "components" / "decode" / "beam.py").write_text("one\n2\nthree\nadded\nfour\n")
    (checkout / "asr" / "gone.py").unlink()
    (checkout / "asr" / "new.py").write_text("one\n")
    assert changes("HEAD") == {"asr/components/decode/beam.py": {2, 3, 4}, "asr/gone.py": {1, 2}, "asr/new.py": set()}


def test_a_changed_line_needs_the_tests_that_execute_it_and_a_yaml_those_of_its_component(checkout: Path) -> None:
    seconds = {"tests/test_a.py::slow": 9.0, "tests/test_a.py::fast": 1.0, "tests/test_b.py::other": 2.0}
    lines = {
        "asr/components/decode/beam.py": {
            2: ["tests/test_a.py::slow", "tests/test_a.py::fast"],
            4: ["tests/test_b.py::other"],
        }
    }
    tests = CoverageMap("HEAD", seconds, lines)
    both = [["tests/test_a.py::fast", "tests/test_a.py::slow"], ["tests/test_b.py::other"]]
    assert list(requests({"asr/components/decode/beam.py": {1, 2}}, tests))[:1] == both[:1]
    assert list(requests({"conf/decode/wide.yaml": {2}}, tests))[:2] == both


def test_tests_that_are_gone_are_not_requested_and_parameters_may_have_changed(checkout: Path) -> None:
    (checkout / "tests" / "test_beam.py").write_text("def test_a(x):\n    pass\n")
    ids = ["tests/test_beam.py::test_a[1]", "tests/test_beam.py::test_a[2]", "tests/test_beam.py::test_b"]
    tests = CoverageMap("HEAD", dict.fromkeys(ids, 1.0), {"asr/components/decode/beam.py": {1: ids}})
    changed = {"asr/components/decode/beam.py": {1}, "tests/test_beam.py": {1}}
    assert next(requests(changed, tests)) == ["tests/test_beam.py::test_a"]


def test_without_a_map_the_tests_that_import_the_folder_run(checkout: Path) -> None:
    assert ["tests/test_beam.py"] in list(requests({"asr/components/decode/beam.py": {1}}, CoverageMap("HEAD", {}, {})))


def test_without_a_map_a_command_needs_the_tests_that_import_it_not_all_tests() -> None:
    [_, tests] = requests({"asr/finetune.py": {1}}, CoverageMap("HEAD", {}, {}))
    assert "tests/test_finetune.py" in tests
    assert len(tests) < 20


@pytest.mark.parametrize(
    "line", ['run("asr.compare", "a")', '"python -m asr.compare a b"', "from asr.compare import main"]
)
def test_without_a_map_a_command_needs_the_tests_that_start_it(checkout: Path, line: str) -> None:
    (checkout / "tests" / "test_scores.py").write_text(f"    {line}\n")
    (checkout / "tests" / "test_other.py").write_text('"asr.compare.other", asr.compare_all, "asr.compared"\n')
    assert ["tests/test_scores.py"] in list(requests({"asr/compare.py": {1}}, CoverageMap("HEAD", {}, {})))


def test_without_a_map_commits_of_the_branch_count_as_changes(checkout: Path) -> None:
    [first] = git("rev-parse", "HEAD")
    assert base([]) == first
    git("update-ref", "refs/remotes/origin/main", first)
    (checkout / "asr" / "gone.py").write_text("changed\n")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "second")
    assert base([]) == first
    assert base(["HEAD"]) != first


def test_the_fastest_tests_of_each_line_are_selected_first_until_the_time_is_over() -> None:
    seconds = {"a": 1.0, "b": 5.0, "c": 3.0, "d": 1.0, "of other lines": 20.0}  # 20 % are 6 seconds
    assert selection([["a", "b"], ["c", "d"]], seconds) == (["a", "c", "d"], 1)
    assert selection([["a", "new"], ["a"]], seconds) == (["a", "new"], 0)
    assert selection([], seconds) == ([], 0)


def test_each_executed_operator_and_number_has_a_fault() -> None:
    source = b"if a < b and c:\n    x = (y + 1) * 2\nz = 3\n"
    assert set(faults("asr/a.py", source, {1, 2})) == {
        Fault("asr/a.py", 1, 4, 7, " <= "),
        Fault("asr/a.py", 1, 8, 13, " or "),
        Fault("asr/a.py", 2, 10, 13, " - "),
        Fault("asr/a.py", 2, 13, 14, "2"),
        Fault("asr/a.py", 2, 18, 19, "3"),
    }
