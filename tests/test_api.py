"""The Python API: the exports of `asr`, its examples, and valid and invalid recordings."""

import doctest
import pydoc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import asr
from asr.core.checkpoint.formats import FORMAT
from asr.core.recognition.recognizer import Recognizer
from tests.documents import DOCUMENTS, code_blocks, name_of
from tests.public_interface import SNAPSHOT, public_interface
from tests.refusals import refused
from tests.tones import SAMPLE_RATE, speak

EXAMPLES = {  # documents with programs that use the API
    f"{name_of(document)}-{number}": block
    for document in DOCUMENTS
    for number, block in enumerate(code_blocks(document, "python"))
    if block.startswith("import asr\n")
}
RECORDING = "data/mini/audio/test/test-00001.flac"  # the recording that these programs read


@pytest.fixture(scope="module")
def recognizer(fluent: Path) -> Recognizer:
    return asr.load_recognizer(fluent / "run")


@pytest.fixture
def desk(fluent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the run and the recordings that the examples use."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mini").symlink_to(fluent / "run")
    soundfile.write(tmp_path / "recording.wav", speak("abcd ef"), SAMPLE_RATE)
    samples = speak("abcd ef")
    soundfile.write(tmp_path / "call.wav", np.stack([samples, samples], axis=1), SAMPLE_RATE)
    (tmp_path / RECORDING).parent.mkdir(parents=True)
    soundfile.write(tmp_path / RECORDING, speak("abcd ef"), SAMPLE_RATE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_is_a_page_that_lists_the_exported_names() -> None:
    text = pydoc.plain(pydoc.render_doc(asr))
    about = text[: text.index("PACKAGE CONTENTS")]
    assert {name for name in dir(asr) if not name.startswith("_")} <= set(re.findall(r"\w+", about))
    assert len(text.splitlines()) < 120
    assert re.fullmatch(r"\d+\.\d+\.\d+", asr.__version__)
    with pytest.raises(AttributeError, match="module 'asr' has no attribute 'Streams'"):
        asr.Streams  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.usefixtures("desk")
def test_the_examples_in_the_docstrings_run() -> None:
    doctests = doctest.DocTestFinder(recurse=False).find(asr, globs={"soundfile": soundfile})
    results = [doctest.DocTestRunner().run(test) for test in doctests]
    assert [result.failed for result in results] == [0]
    assert results[0].attempted > 5


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_in_the_documents_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(EXAMPLES[name], name, "exec"), {})
    assert "abcd" in capsys.readouterr().out


def test_the_readme_and_the_guide_have_examples() -> None:
    documents = {name.rpartition("-")[0] for name in EXAMPLES}
    assert {"README.md", "docs/guide/transcribe.md", "docs/guide/streaming.md"} <= documents


def test_a_recording_is_accepted_in_every_form(recognizer: Recognizer, desk: Path) -> None:
    samples = np.asarray(speak("abcd ef"), dtype=np.float32)
    expected = recognizer.transcribe("recording.wav")
    assert expected.text == "abcd ef"
    forms: list[Any] = [
        desk / "recording.wav",
        samples,
        samples.astype(np.float64),
        samples[::-1][::-1],
        torch.from_numpy(samples),
        torch.from_numpy(samples).double(),
    ]
    samples.flags.writeable = False
    for form in forms:
        single = recognizer.transcribe(form, sample_rate=SAMPLE_RATE)
        assert isinstance(single, asr.Transcript)
        assert single.text == expected.text
    together = recognizer.transcribe(iter(forms), sample_rate=SAMPLE_RATE, batch_seconds=2)
    assert [transcript.text for transcript in together] == [expected.text] * len(forms)
    assert recognizer.transcribe([]) == []


def test_waveforms_with_other_sample_rates_are_resampled_like_files(recognizer: Recognizer, tmp_path: Path) -> None:
    for rate in (8_000, 44_100, 48_000):
        positions = np.arange(0, len(speak("abcd ef")), SAMPLE_RATE / rate)
        samples = np.interp(positions, np.arange(len(speak("abcd ef"))), speak("abcd ef")).astype(np.float32)
        soundfile.write(tmp_path / "file.wav", samples, rate, subtype="FLOAT")
        from_file = recognizer.transcribe(tmp_path / "file.wav")
        assert recognizer.transcribe(samples, sample_rate=rate) == from_file
        assert from_file.text == "abcd ef"


def test_audio_of_the_library_datasets_is_accepted(recognizer: Recognizer, desk: Path) -> None:
    for rate in (SAMPLE_RATE, 8_000):
        samples = np.asarray(speak("abcd ef"), np.float32)[:: SAMPLE_RATE // rate]
        expected = recognizer.transcribe(samples, sample_rate=rate)
        audio = {"array": samples, "sampling_rate": rate, "path": None}
        assert recognizer.transcribe(audio) == expected
        assert recognizer.transcribe([audio, audio]) == [expected] * 2
    with refused(asr.InputError, "sampling_rate"):
        recognizer.transcribe({"array": samples, "sampling_rate": 0})


@pytest.mark.parametrize(
    ("argument", "name"),
    [("batch_size", "batch_seconds"), ("timestamps", "words"), ("sampling_rate", "sample_rate"), ("x", "help")],
)
def test_arguments_of_other_toolkits_are_answered_with_the_right_name(
    argument: str, name: str, recognizer: Recognizer
) -> None:
    with refused(asr.InputError, f"no argument {argument} ... {name}"):
        recognizer.transcribe("a.wav", **{argument: 3})  # type: ignore[call-overload]


def test_a_recognizer_says_what_it_is(recognizer: Recognizer) -> None:
    assert re.search(r"Conformer.*CTC.*weights.*tokens.*16,000 Hz.*greedy", repr(recognizer))


def test_times_of_words_have_whole_milliseconds(recognizer: Recognizer) -> None:
    words = recognizer.transcribe(np.asarray(speak("abcd ef ab cd " * 5), np.float32), sample_rate=SAMPLE_RATE).words
    assert len(words) > 10
    assert all(time == round(time, 3) for word in words for time in (word.start, word.end))


def test_the_number_of_alternatives_is_the_number_requested(fluent: Path, desk: Path) -> None:
    beam = asr.load_recognizer(fluent / "run", decode={"name": "beam"})
    transcript = beam.transcribe("recording.wav", nbest=3)
    assert 1 < len(transcript.alternatives) <= 3
    assert isinstance(transcript.alternatives[0], asr.Alternative)
    assert len(beam.transcribe("recording.wav").alternatives) == 1


@pytest.mark.parametrize(
    ("recording", "options", "message"),
    [
        (np.zeros(800, np.float32), {}, "sample_rate; got None"),
        (np.zeros(800, np.int16), {"sample_rate": 16_000}, "of type ... int16"),
        (np.zeros((800, 2)), {"sample_rate": 16_000}, "the shape (800, 2)"),
        (torch.zeros(800), {"sample_rate": 10}, "sample_rate ... whole number"),
        (torch.zeros(800), {"sample_rate": 44_100.5}, "sample_rate ... whole number"),
        (torch.full((800,), torch.nan), {"sample_rate": 16_000}, "800 samples are NaN"),
        ([b"sound"], {"sample_rate": 16_000}, "recording 0 ... float tensor"),
        (["none.wav"], {}, "none.wav ... no such file"),
        (7, {}, "recordings; got 7"),
        ([], {"nbest": 0}, "nbest ... whole number"),
        (
            [],
            {"nbest": 2},
            "nbest; got 2",
        ),
        ([], {"batch_seconds": 0}, "batch_seconds ... number greater"),
        ([], {"device": "toaster"}, "device; got 'toaster'"),
    ],
)
def test_input_that_cannot_be_recognised_is_refused_in_one_line(
    recognizer: Recognizer, recording: Any, options: dict[str, Any], message: str
) -> None:
    with refused(asr.InputError, message):
        recognizer.transcribe(recording, **options)


def test_a_stream_refuses_samples_that_are_not_a_waveform(recognizer: Recognizer) -> None:
    stream = asr.Stream(recognizer)
    for samples in (np.zeros((800, 2)), np.zeros(800, np.int16), torch.full((800,), torch.inf), [0.0, 0.1]):
        with refused(asr.InputError, "samples ... [-1, 1]"):
            stream.feed(samples)  # type: ignore[arg-type]
    stream.feed(np.zeros(16_000))
    assert stream.finish().final == []


def test_an_absent_device_is_refused_when_the_model_is_loaded(fluent: Path) -> None:
    with refused(asr.InputError, "device", got="cuda:99"):
        asr.load_recognizer(fluent / "run", device="cuda:99")


USE = """import asr
reveal_type(asr.load_recognizer)
reveal_type(asr.load_recognizer("m").transcribe("a.wav"))
reveal_type(asr.load_recognizer("m").transcribe([asr.__version__]))
asr.absent
"""


@pytest.mark.slow
def test_type_checkers_see_the_types_of_the_installed_package(tmp_path: Path) -> None:
    """mypy runs outside the checkout, as for a user with an editable install."""
    (tmp_path / "use.py").write_text(USE)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--cache-dir",
        str(tmp_path / "cache"),
        "--follow-imports=silent",
        "use.py",
    ]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    for line, text in enumerate(
        ["-> asr.core.recognition.recognizer.Recognizer", "Transcript", "list[asr", "no attribute"], 2
    ):
        assert re.search(rf"use.py:{line}: .*{re.escape(text)}", printed), printed


def test_a_decoder_can_be_chosen_by_name(fluent: Path) -> None:
    assert asr.load_recognizer(fluent / "run", decode="beam").decode.max_hypotheses > 1
    with refused(asr.InputError, "decode ... or a mapping"):
        asr.load_recognizer(fluent / "run", decode=3)  # type: ignore[arg-type]


@pytest.mark.apps
def test_the_public_interface_equals_the_committed_snapshot() -> None:
    """After an intended change, run `python -m tests.public_interface > tests/public_interface.txt`.

    Add a line to CHANGELOG.md as well.
    """
    assert public_interface().splitlines() == SNAPSHOT.read_text(encoding="utf-8").splitlines()


@pytest.mark.apps
def test_the_snapshot_has_every_name_of_the_api_and_every_command() -> None:
    lines = public_interface().splitlines()
    assert all(any(re.match(rf"{name}\b", line) for line in lines) for name in dir(asr))
    assert "transcribe --format {txt,json,jsonl,srt,vtt,ctm,textgrid}" in lines
    assert f"format {FORMAT}" in lines
