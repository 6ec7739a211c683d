"""Output paths of all commands: a file, a link, a pipe or a device gets the output, and still exists afterwards."""

import argparse
import errno
import importlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import soundfile

from asr import evaluate
from asr.align import main as align
from asr.average import main as average
from asr.base.system.files import check_output, write_whole_text
from asr.compare import main as compare
from asr.convert import main as convert
from asr.core.cli import output
from asr.core.cli.output import NamedRecording
from asr.core.data.manifest import Utterance, write_manifest
from asr.core.evaluation.result import Evaluation
from asr.core.recognition.transcript import Transcript, Word
from asr.errors import InputError
from asr.export import main as export
from asr.ngram import main as ngram
from asr.shards import main as shards
from asr.training_report import main as training_report
from asr.transcribe import main as transcribe
from recipes.convert.__main__ import main as convert_recipe
from tests.conftest import ROOT, tone_corpus
from tests.refusals import check_ended, check_refusal, mentions, refused
from tests.scoring import simulated, write_scored
from tests.tones import SAMPLE_RATE, speak

Write = Callable[[Path], object]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("one two three\ntwo three four\n" * 50)
    return path


def transcripts(path: Path) -> None:
    """Write a transcript as asr.transcribe and asr.align do with --output-dir."""
    transcript = Transcript((Word("one", 0.0, 0.5, 0.9),), (), 1.0)
    recording = NamedRecording("a.wav", Utterance("a.wav", 1.0, "", "a"), Path(path.stem))
    options = argparse.Namespace(output_dir=path.parent, format=["txt"])
    assert list(output.write(iter([(recording, transcript)]), options)) == [(recording, transcript)]


def evaluation(path: Path) -> None:
    """Write the files of asr.evaluate --output-dir; `path` is the file of utterances."""
    scored = Evaluation(simulated(3, seed=1), [], 1.0, "basic")
    evaluate.write(path.parent, scored, path.name.partition(".")[0], evaluate.summary(scored))


def compared(option: str) -> Write:
    def write(path: Path) -> None:
        scored = str(write_scored(path.parent / "scored.jsonl", simulated(6, seed=1)))
        assert compare([scored, scored, option, str(path)]) == 0

    return write


def language_model(path: Path) -> None:
    (path.parent / "lm.txt").write_text("one two three\n")
    assert ngram([str(path.parent / "lm.txt"), "-o", str(path)]) == 0


def page_of_a_run(path: Path) -> None:
    (path.parent / "config.yaml").write_text("seed: 1\n")
    assert training_report([str(path.parent), "--output", str(path)]) == 0


WRITERS: dict[str, tuple[str, Write, str]] = {
    "any file": ("out.txt", lambda path: write_whole_text(path, "content"), "content"),
    "ngram": ("lm.arpa", language_model, "\\end\\"),
    "training_report": ("page.html", page_of_a_run, "</html>"),
    "compare --json": ("figures.json", compared("--json"), "utterance_wins"),
    "compare --report": ("page.html", compared("--report"), "</html>"),
    "evaluate": ("test.utterances.jsonl", evaluation, "utterance-2"),
    "transcribe": ("a.txt", transcripts, "one"),
    "manifest": ("m.jsonl", lambda path: write_manifest(path, [Utterance("a.wav", 1.0, "one", "a")]), '"one"'),
}


@pytest.mark.parametrize("who", WRITERS)
def test_a_link_remains_and_its_target_is_replaced_or_created(who: str, tmp_path: Path) -> None:
    name, write, content = WRITERS[who]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / name).symlink_to(tmp_path / "next")
    (tmp_path / "next").symlink_to(Path("elsewhere") / "target")
    for _ in ("there is no target", "there is an older one"):
        write(tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "next").is_symlink()
        assert content in (elsewhere / "target").read_text()
        assert [path.name for path in elsewhere.iterdir()] == ["target"]
        (elsewhere / "target").write_text("older")


@pytest.mark.parametrize("who", WRITERS)
def test_a_pipe_receives_the_output_and_remains(who: str, tmp_path: Path) -> None:
    name, write, content = WRITERS[who]
    os.mkfifo(tmp_path / name)
    end = os.open(tmp_path / name, os.O_RDWR)  # opening the pipe then blocks neither side
    with ThreadPoolExecutor() as pool, open(os.open(tmp_path / name, os.O_RDONLY), encoding="utf-8") as reader:
        read = pool.submit(reader.read)
        try:
            write(tmp_path / name)
        finally:
            os.close(end)
        assert content in read.result(timeout=60)
    assert (tmp_path / name).is_fifo()


@pytest.mark.parametrize("who", WRITERS)
def test_a_device_remains_a_device(who: str, tmp_path: Path) -> None:
    """A command run by root must not replace a device node like /dev/null."""
    name, write, _ = WRITERS[who]
    try:
        os.mknod(tmp_path / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (tmp_path / name).read_bytes()
    except PermissionError:
        pytest.skip("this process may not create or open device nodes")
    write(tmp_path / name)
    assert (tmp_path / name).is_char_device()


def test_folders_and_circular_links_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, number, must in (
        ("folder", errno.EISDIR, "is a folder"),
        ("circle", errno.ELOOP, "writable file"),
    ):
        with pytest.raises(OSError, match=os.strerror(number)):
            write_whole_text(tmp_path / name, "content")
        with refused(InputError, f"--report ... {must}"):
            check_output("--report", tmp_path / name, "report.html")
    assert (tmp_path / "circle").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "folder"]


def test_an_impossible_file_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for length in (250, 300):  # for 250 bytes, only the temporary file's name is too long
        with refused(InputError, "File name"):
            check_output("--report", tmp_path / ("x" * length), "report.html")


# ---- standard output, and files opened by a shell


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def stdout(tmp_path: Path) -> Path:
    """A substitute for /dev/stdout, which may safely be overwritten."""
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    return tmp_path / "stdout"


def test_a_model_on_standard_output_is_not_mixed_with_messages(text: Path, stdout: Path, tmp_path: Path) -> None:
    ended = run("asr.ngram", text, "-o", stdout, capture_output=True)
    assert ended.returncode == 0
    assert ended.stdout.startswith("\\data\\\n")
    assert ended.stdout.endswith("\\end\\\n")
    assert "100 sentences" in ended.stderr
    assert stdout.is_symlink()
    assert run("asr.ngram", text, "-o", tmp_path / "lm.arpa", capture_output=True).stdout.startswith("100 sentences")
    assert (tmp_path / "lm.arpa").read_text() == ended.stdout


def test_earlier_content_of_a_file_opened_by_a_shell_remains(text: Path, stdout: Path, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        file.write("before\n")
        file.flush()
        assert run("asr.ngram", text, "-o", stdout, stdout=file, stderr=subprocess.PIPE).returncode == 0
        file.seek(0, os.SEEK_END)
        file.write("after\n")
    lines = (tmp_path / "file").read_text().splitlines()
    assert [*lines[:2], *lines[-2:]] == ["before", "\\data\\", "\\end\\", "after"]


def test_figures_can_be_written_to_another_process(tmp_path: Path) -> None:
    scored = write_scored(tmp_path / "a.jsonl", simulated(6, seed=1))
    reader = f'"{sys.executable}" -c "import json, sys; print(json.load(sys.stdin)[\'utterances\'])"'
    script = f'"{sys.executable}" -m asr.compare "{scored}" "{scored}" --json >({reader} > "{tmp_path}/said")'
    pause = f'while [ ! -s "{tmp_path}/said" ]; do sleep 0.05; done'
    ended = subprocess.run(
        ["bash", "-c", f"{script} && {pause}"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "said").read_text() == "6\n"
    assert "B minus A, 6 utterances" in ended.stdout


def test_a_figure_on_standard_output_is_not_mixed_with_messages(stdout: Path, tmp_path: Path) -> None:
    scored = write_scored(tmp_path / "a.jsonl", simulated(6, seed=1))
    ended = run("asr.compare", scored, scored, "--json", stdout, capture_output=True)
    assert json.loads(ended.stdout)["utterances"] == 6
    assert "B minus A, 6 utterances" in ended.stderr


@pytest.mark.parametrize(
    "command",
    [["asr.train", "--help"], ["asr.plan", "--cfg", "job"], ["asr.plan", "trainer.max_epochs=1"], ["asr", "--help"]],
    ids=" ".join,
)
@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.slow)])
def test_a_reader_that_stops_reading_messages_is_not_an_error(
    command: list[str], unbuffered: str, tones: Path, tmp_path: Path
) -> None:
    """`| head` stops reading, for example; here the reader has ended before the first line."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    settings = [*tone_corpus(tones), f"run_dir={tmp_path}"] if command[-1].startswith("trainer") else []
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ended = run(*command, *settings, stdout=write_end, stderr=subprocess.PIPE, env=environment)
    os.close(write_end)
    assert ended.returncode in (1, -signal.SIGPIPE)
    assert ended.stderr == ""


def test_a_reader_that_has_closed_the_output_is_reported_in_one_line(text: Path, stdout: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    ended = run("asr.ngram", text, "-o", stdout, stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert ended.returncode == 1
    check_refusal(ended.stderr, f"{stdout} ... Broken pipe")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full, a device that is always full")
def test_a_full_device_is_reported_in_one_line(text: Path, tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    ended = run("asr.ngram", text, "-o", tmp_path / "full", capture_output=True)
    check_ended(ended, f"{tmp_path / 'full'} ... No space left")
    assert (tmp_path / "full").is_symlink()
    scored = write_scored(tmp_path / "a.jsonl", simulated(6, seed=1))
    ended = run("asr.compare", scored, scored, "--json", tmp_path / "full", capture_output=True)
    check_ended(ended, f"--json ... {tmp_path / 'full'}: No space left")


# ---- an output that is also an input

Command = Callable[[list[str]], int]


def other_names(path: Path) -> list[Path]:
    """Return three paths of a file: its own, a symbolic link and a hard link."""
    symbolic, hard = path.with_name("symbolic" + path.suffix), path.with_name("hard" + path.suffix)
    symbolic.symlink_to(path)
    hard.hardlink_to(path)
    return [path.parent / "." / path.name, symbolic, hard]


@pytest.mark.parametrize(
    ("command", "option", "arguments"),
    [
        (align, "--segments", ["MODEL", "INPUT"]),
        (ngram, "--output", ["INPUT"]),
        (compare, "--json", ["INPUT", "INPUT"]),
        (compare, "--report", ["INPUT", "INPUT"]),
        (evaluate.main, "--report", ["MODEL", "INPUT"]),
        (convert_recipe, "MANIFEST", ["nemo", "INPUT"]),
    ],
)
def test_no_command_replaces_its_input(
    command: Command,
    option: str,
    arguments: list[str],
    fluent: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The manifest that is the input is refused as an output, whether under its own name or by a link."""
    manifest = tmp_path / "talks.jsonl"
    content = (fluent / "test.jsonl").read_bytes()
    manifest.write_bytes(content)
    names = {"INPUT": str(manifest), "MODEL": str(fluent / "run")}
    for output_path in other_names(manifest):
        target = [str(output_path)] if option == "MANIFEST" else [option, str(output_path)]
        try:
            assert command([*(names.get(argument, argument) for argument in arguments), *target]) == 1
            message = capsys.readouterr().err
        except InputError as error:
            message = str(error)
        assert mentions(message, f"{option} ... not replace")
        assert "talks.jsonl" in message
        assert manifest.read_bytes() == content


@pytest.mark.parametrize(
    ("command", "option", "arguments", "output"),
    [
        (average, "--output-dir", ["{run}", "--start", "{copy}"], "{copy}"),
        (convert, "--output", ["{copy}", "--local-attention", "8"], "{copy}"),
        (convert, "--output", ["{copy}", "--to", "nemo"], "{copy}"),
        (export, "--output", ["{copy}"], "{copy}"),
        (export, "--output", ["{copy}", "--to", "huggingface"], "{copy}"),
        (shards, "--output", ["--index-only", "{folder}/shard.tar"], "{folder}/shard.tar"),
        (shards, "--output", ["{folder}/index.arrow"], "{folder}"),
        (training_report, "--output", ["{run}"], "{run}/results.json"),
    ],
)
def test_no_command_replaces_its_model_or_a_folder_with_its_input(
    command: Command, option: str, arguments: list[str], output: str, fluent: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(fluent / "run" / "bundle", copy)
    for name in ("shard.tar", "index.arrow"):
        (tmp_path / name).write_bytes(b"precious")
    places = {"run": fluent / "run", "copy": copy, "folder": tmp_path}
    before = {path: path.read_bytes() for folder in places.values() for path in folder.rglob("*") if path.is_file()}
    given = [argument.format(**places) for argument in arguments]
    with refused(InputError, option):
        command([*given, option, output.format(**places)])
    assert {path: path.read_bytes() for path in before} == before


def test_figures_and_page_of_a_comparison_must_be_two_files(tmp_path: Path) -> None:
    scored = str(write_scored(tmp_path / "scored.jsonl", simulated(6, seed=1)))
    with refused(InputError, "--json ... --report"):
        compare([scored, scored, "--json", str(tmp_path / "out"), "--report", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", [transcribe, align])
def test_no_transcript_replaces_the_manifest_or_the_audio(command: Command, fluent: Path, tmp_path: Path) -> None:
    """The output for `a` would replace a.jsonl, the manifest; that for `b` would replace b.jsonl, a link to audio."""
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "sound.wav")
    soundfile.write(tmp_path / "sound.wav", speak("abcd ef"), SAMPLE_RATE)
    for manifest, utterance_id in (("a.jsonl", "a"), ("other.jsonl", "b")):
        utterance = Utterance(str(tmp_path / "sound.wav"), 1.0, "abcd ef", utterance_id)
        write_manifest(tmp_path / manifest, [utterance])
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        arguments = [str(fluent / "run"), str(tmp_path / manifest), "--format", "jsonl"]
        with refused(InputError, "would be written ... .jsonl"):
            command([*arguments, "--output-dir", str(tmp_path)])
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "command",
    [
        "align MODEL a.jsonl --output-dir",
        "average RUN --output-dir",
        "compare a b --report",
        "convert MODEL -o",
        "evaluate MODEL a.jsonl --output-dir",
        "export MODEL -o",
        "finetune MODEL a.csv --output",
        "merge MODEL --base BASE -o",
        "ngram a.txt -o",
        "shards a.jsonl -o",
        "training_report RUN --output",
        "transcribe MODEL a.jsonl --parts --output-dir",
    ],
)
def test_an_empty_name_of_an_output_is_refused_by_the_name_of_its_option(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module, *arguments = command.split()
    with pytest.raises(SystemExit):
        importlib.import_module(f"asr.{module}").main([*arguments, ""])
    [line] = capsys.readouterr().err.splitlines()
    assert mentions(line, f"{arguments[-1]} ... got ''")
    assert not list(tmp_path.iterdir())
