"""The output of asr.evaluate on the screen and in files, and its errors."""

import json
import os
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import jiwer
import pytest
from rich.cells import cell_len

from asr.apps.report.evaluation import headline
from asr.compare import headline as compare_headline
from asr.core.data.batch import Rejected
from asr.core.data.manifest import read_manifest, write_manifest
from asr.core.evaluation.analysis import figures, rates
from asr.core.evaluation.comparison import before_and_after, compare
from asr.core.evaluation.result import Evaluation, together
from asr.core.evaluation.utterances import read_scored
from asr.errors import InputError
from asr.evaluate import main as evaluate
from asr.evaluate import summary, table, write
from tests.forked import run_module
from tests.refusals import check_refusal, mentions, refused
from tests.scoring import scored, simulated
from tests.test_train import trained  # noqa: F401


def test_all_reported_figures_can_be_computed_from_the_written_utterances(
    trained: Path,  # noqa: F811
    tones: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    utterances = read_manifest(tones / "test.jsonl")
    written = [replace(utterance, text=utterance.text.upper() + ".") for utterance in utterances]
    write_manifest(tmp_path / "shouted.jsonl", written)
    manifests = [str(tones / "valid.jsonl"), str(tmp_path / "shouted.jsonl")]
    assert evaluate([str(trained), *manifests, "--output-dir", str(tmp_path / "out"), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    everything = []
    for line, name in zip(lines[1:3], ("valid", "shouted"), strict=True):
        rows = read_scored(tmp_path / "out" / f"{name}.utterances.jsonl")
        everything += rows
        stored = json.loads((tmp_path / "out" / f"{name}.wer.json").read_text())
        references, hypotheses = [row.reference for row in rows], [row.transcript.text for row in rows]
        raw = [row.utterance.text for row in rows]
        assert stored["wer"] == pytest.approx(jiwer.wer(references, hypotheses), abs=1e-12)
        assert stored["cer"] == pytest.approx(jiwer.cer(references, hypotheses), abs=1e-12)
        raw_wer = pytest.approx(jiwer.wer(raw, hypotheses), abs=1e-12) if name == "shouted" else None
        assert stored["raw_wer"] == raw_wer, "valid has neither case nor punctuation"
        assert stored["wer_interval"] == rates(rows)["words"]["interval"]
        assert stored["normalizer"] == "basic"
        assert stored["characters"]["reference_length"] == sum(map(len, references))
        printed_rates = ["-" if stored[key] is None else f"{100 * stored[key]:.2f}" for key in ("raw_wer", "cer")]
        low, high = (f"{100 * end:.2f}" for end in stored["wer_interval"])
        expected_cells = [
            "8",
            str(stored["reference_words"]),
            f"{100 * stored['wer']:.2f}",
            low,
            "to",
            high,
            *printed_rates,
        ]
        assert line.split()[1:9] == expected_cells
    assert lines[3].startswith("all manifests")
    assert lines[3].split()[2:4] == ["16", str(sum(row.counts.reference_length for row in everything))]
    assert "normalised by 'basic'" in lines[5]


def test_a_model_that_writes_case_and_punctuation_has_two_error_rates_and_accepts_any_normalizer(
    fluent: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(fluent / "run" / "bundle", bundle)
    config = json.loads((bundle / "config.json").read_text())
    (bundle / "config.json").write_text(json.dumps(config | {"normalizer": "as_written"}))
    utterances = read_manifest(fluent / "test.jsonl")[:10]
    write_manifest(
        tmp_path / "written.jsonl", [replace(utterance, text=utterance.text.title() + ".") for utterance in utterances]
    )
    figures = {}
    for normalizer in (None, "basic", "as_written"):
        options = ["--normalizer", normalizer] if normalizer else []
        out = tmp_path / str(normalizer)
        arguments = [str(bundle), str(tmp_path / "written.jsonl"), "--output-dir", str(out), "--device", "cpu"]
        assert evaluate([*arguments, *options]) == 0
        rows = read_scored(out / "written.utterances.jsonl")
        figures[normalizer] = json.loads((out / "written.wer.json").read_text())
        raw = jiwer.wer([row.utterance.text for row in rows], [row.raw_hypothesis for row in rows])
        assert figures[normalizer]["raw_wer"] == pytest.approx(raw, abs=1e-12)
        line = capsys.readouterr().out.splitlines()[1]
        assert all(f" {100 * figures[normalizer][key]:.2f} " in line for key in ("wer", "raw_wer"))
    assert figures[None] == figures["basic"] | {"real_time_factor": figures[None]["real_time_factor"]}
    assert figures["as_written"]["wer"] == figures["as_written"]["raw_wer"] == figures["basic"]["raw_wer"]
    assert figures["basic"]["wer"] < 0.1
    assert figures["basic"]["raw_wer"] == 1, "each word of the references has a capital letter"


def test_an_unknown_normalizer_is_refused_before_the_model_is_loaded(tones: Path) -> None:
    with refused(InputError, "normalizer", got="b"):
        evaluate(["no-model", str(tones / "test.jsonl"), "--normalizer", "b"])


CHINESE = [scored("今天天气很好", said, name=str(n)) for n, said in enumerate(["今天天气很好", "今天天汽很好"] * 4)]


def test_references_without_spaces_lead_with_the_cer() -> None:
    evaluation = Evaluation(CHINESE, [], 1.0, "basic")
    assert evaluation.summary().startswith("CER 8.33 % of 48 characters")
    lines = table([("zh", summary(evaluation))]).splitlines()
    assert lines[0].split()[2:4] == ["characters", "CER"]
    assert lines[1].split()[:4] == ["zh", "8", "48", "8.33"]
    assert re.search(r"without\s+spaces .*compare\s+the\s+CER", " ".join(lines))
    assert "compare the CER" not in table([("en", summary(Evaluation(simulated(9, seed=1), [], 1.0, "basic")))])
    page = headline(figures(CHINESE))
    assert page.index("Character error rate") < page.index("Word error rate")
    assert "compare the CER" in page


def test_a_comparison_of_references_without_spaces_counts_characters() -> None:
    better = [scored("今天天气很好", "今天天气很好", name=str(n)) for n in range(8)]
    comparison = compare(CHINESE, better)
    assert (comparison["unit"], comparison["a"]["errors"], comparison["a"]["reference_length"]) == ("character", 4, 48)
    assert before_and_after(comparison).startswith("CER 8.33 % before, 0.00 % after")
    assert len(comparison["changed"]) == 4
    lines = compare_headline(comparison, "a", "b")
    assert any("compare the CER" in line for line in lines)
    assert compare(simulated(9, seed=1), simulated(9, seed=2))["unit"] == "word"


def test_the_totals_of_several_manifests_are_sums_over_their_utterances() -> None:
    first = Evaluation(simulated(30, seed=1), [], 2.0, "basic")
    second = Evaluation(
        [scored("a b", "a", subset="two")], [Rejected(scored("", "").utterance, "broken")], 3.0, "basic"
    )
    both = together([first, second])
    assert both.counts == first.counts + second.counts
    assert (both.wall_seconds, len(both.scored), len(both.rejected)) == (5.0, 31, 1)
    assert both.as_dict()["utterances"] == 31
    assert both.as_dict()["not_scored"] == 1
    assert both.summary().endswith("; 1 utterances could not be read")
    assert Evaluation([scored("", "oh")], [], 1.0, "basic").summary() == "WER - of 0 words"


def test_the_table_fits_100_columns_for_any_manifest_names() -> None:
    long = "a-manifest-with-a-long-name-that-ends-in-its-version-7"
    rows = [
        (name, summary(Evaluation(simulated(40, seed=1), [], 2.0, "basic")))
        for name in (long, "\u4f60\u597d" * 20, "x")
    ]
    lines = table(rows).splitlines()
    assert max(map(cell_len, lines)) <= 100
    assert lines[1].startswith("a-manifest…version-7  ")
    assert [line.split()[1] for line in lines[1:4]] == ["40"] * 3


def test_names_with_terminal_control_characters_are_escaped() -> None:
    rows = [(name, summary(Evaluation(simulated(9, seed=1), [], 2.0, "basic"))) for name in ("\x1b[2J", "\udcff")]
    assert "\\x1b[2J" in table(rows)
    assert not {"\x1b", "\udcff"} & set(table(rows))


def test_if_references_have_no_words_the_table_gives_the_reason_and_json_is_valid(tmp_path: Path) -> None:
    for rows in ([], [scored("", "a")]):
        evaluation = Evaluation(rows, [], 0.0, "basic")
        figures = summary(evaluation)
        json.dumps(figures, allow_nan=False)
        assert table([("x", figures)]).splitlines()[1].split()[3:7] == ["-", "-", "-", "-"]
        write(tmp_path, evaluation, "x", figures)
        assert (tmp_path / "x.utterances.jsonl").read_text().count("\n") == len(rows)


def test_speakers_are_also_resampled_if_there_are_enough() -> None:
    many, few = simulated(100, seed=1), simulated(3, seed=1)
    output = table(
        [(name, summary(Evaluation(rows, [], 1.0, "basic"))) for name, rows in (("many", many), ("few", few))]
    )
    notes = " ".join(output.split("\n\n")[1].split())
    assert "bootstrap over utterances (-: too few utterances, or no errors); over speakers: many " in notes
    assert "(20 speakers)." in notes
    assert "few" not in notes.partition("over speakers: ")[2]


def test_without_an_interval_the_table_gives_the_reason() -> None:
    """No interval is given for 40 utterances without errors, because other utterances may have errors."""
    perfect = [scored("a b", "a b", name=str(number)) for number in range(40)]
    output = table([("perfect", summary(Evaluation(perfect, [], 1.0, "basic")))])
    assert output.splitlines()[1].split()[3:5] == ["0.00", "-"]
    assert "95 % interval: bootstrap over utterances (-: too few utterances, or no errors)." in output
    assert "too few" not in table([("x", summary(Evaluation(simulated(40, seed=1), [], 1.0, "basic")))])


def test_utterances_that_could_not_be_scored_are_named_even_if_the_report_cannot_be_written(
    trained: Path,  # noqa: F811
    tones: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("asr.base.system.files.write_whole_text", full)
    utterance = read_manifest(tones / "test.jsonl")[0]
    write_manifest(
        tmp_path / "some.jsonl", [utterance, replace(utterance, id="gone", audio_filepath=str(tmp_path / "gone.wav"))]
    )
    arguments = [str(trained), str(tmp_path / "some.jsonl"), "--device", "cpu", "--report", str(tmp_path / "r.html")]
    with refused(InputError, "--report ... writable file"):
        evaluate(arguments)
    assert "error: some: not scored: " in capsys.readouterr().err


LINE = {"id": "1", "audio_filepath": "1.wav", "duration": 1.0, "text": "a"}
BAD: dict[str, tuple[str | bytes, str]] = {
    "not there": ("", "no such manifest"),
    "a folder": ("", "is a folder"),
    "empty": ("", "it is empty"),
    "not JSON": ("hello", "line ... JSON"),
    "a list": ("[1]", "line; got list"),
    "missing keys": ('{"text": "a"}', "missing audio_filepath, duration"),
    "duration NaN": (json.dumps(LINE | {"duration": float("nan")}), "duration; got nan"),
    "text a number": (json.dumps(LINE | {"text": 7}), "text; got 7"),
    "text a huge list": (json.dumps(LINE | {"text": ["x" * 3_000_000]}), "text; got xx"),
    "a recording": (
        b"RIFF\x24\x00\x00\x00WAVEfmt " + os.urandom(500),
        "not text ... asr.transcribe",
    ),
    "a huge line": ("[" + "1," * 3_000_000, "line ... JSON"),
    "twice": (2 * (json.dumps(LINE) + "\n"), "ids ... '1'"),
    "twice in Unicode": (2 * (json.dumps(LINE | {"id": "\u202e\u00e9"}) + "\n"), r"ids ... '\u202eé'"),
    "half a character": (
        json.dumps(LINE | {"speaker": "\ud800"}),
        "speaker ... lone surrogate",
    ),
}


run = partial(run_module, "asr.evaluate")


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_manifest_is_reported_in_one_line_with_status_1_before_the_model_is_loaded(
    kind: str, tmp_path: Path
) -> None:
    content, message = BAD[kind]
    path = tmp_path / "bad.jsonl"
    if kind == "a folder":
        path.mkdir()
    elif kind != "not there":
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    ended = run("no-model", path)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error: {path}:")
    assert mentions(ended.stderr, message)
    assert ended.stderr.count("\n") == 1
    assert len(ended.stderr) < 500
    assert "Traceback" not in ended.stderr


def test_an_unreadable_manifest_an_invalid_model_and_an_invalid_output_folder_are_reported_in_one_line_each(
    tmp_path: Path,
) -> None:
    path = tmp_path / "good.jsonl"
    path.write_text(json.dumps(LINE))
    unreadable = run("no-model", "/proc/self/mem")
    check_refusal(unreadable.stderr, "/proc/self/mem; got Input/output error")
    for arguments in (
        ("no-model", path),
        (path, path),
        ("no-model", path, "--output-dir", path),
        ("no-model", path, path),
    ):
        ended = run(*arguments)
        assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
        assert ended.stderr.startswith("error: ")
        assert "Traceback" not in ended.stderr


def test_an_evaluation_that_fails_leaves_no_new_empty_folder(tmp_path: Path) -> None:
    manifest = tmp_path / "good.jsonl"
    manifest.write_text(json.dumps(LINE))
    for folder in ("new", "new/a/b", f"new/{'x' * 300}"):
        ended = run("no-model", manifest, "--output-dir", tmp_path / folder)
        assert ended.returncode == 1
        assert os.listdir(tmp_path) == ["good.jsonl"]
    (tmp_path / "old").mkdir()
    assert run("no-model", manifest, "--output-dir", tmp_path / "old" / "new").returncode == 1
    assert os.listdir(tmp_path / "old") == []
