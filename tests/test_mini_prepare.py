"""recipes/mini: the plan with default settings, and a small corpus that espeak synthesises."""

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.base.system.lock import alone_in
from asr.core.data.manifest import read_manifest
from asr.errors import InputError
from recipes.mini import prepare as command
from recipes.mini.english import ENGLISH
from recipes.mini.espeak import Espeak
from recipes.mini.german import GERMAN
from recipes.mini.grammar import sentences, vocabulary
from recipes.mini.plan import SPLITS, Line, plan
from recipes.mini.prepare import DEFAULT_HOURS, chunked, main, prepare
from recipes.mini.room import record, resample
from tests.refusals import mentions, refused

REPOSITORY = Path(__file__).parents[1]


def by_split(lines: list[Line]) -> dict[str, list[Line]]:
    return {split: [line for line in lines if line.split == split] for split in SPLITS}


def count_words(lines: list[Line]) -> Counter[str]:
    return Counter(word for line in lines for word in line.text.split())


@pytest.fixture(scope="module")
def default_plan() -> dict[str, list[Line]]:
    return by_split(plan(DEFAULT_HOURS, 0, ENGLISH))


@pytest.fixture(scope="module")
def small_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("mini")
    prepare(output_dir, hours=0.01, seed=0, num_processes=1)
    return output_dir


def test_splits_share_no_voice_no_variant_and_no_sentence(default_plan: dict[str, list[Line]]) -> None:
    for split, other_split in (("train", "valid"), ("train", "test"), ("valid", "test")):
        for trait in (lambda line: line.voice, lambda line: line.voice.split("+")[1], lambda line: line.text):
            assert not {trait(line) for line in default_plan[split]} & {
                trait(line) for line in default_plan[other_split]
            }


def test_no_sentence_is_spoken_twice(default_plan: dict[str, list[Line]]) -> None:
    texts = [line.text for lines in default_plan.values() for line in lines]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("hours", [0.01, 0.2, DEFAULT_HOURS])
def test_every_word_in_valid_and_test_is_in_train(hours: float, seed: int) -> None:
    splits = by_split(plan(hours, seed, ENGLISH))
    assert (
        count_words(splits["valid"]).keys() | count_words(splits["test"]).keys() <= count_words(splits["train"]).keys()
    )


@pytest.mark.parametrize("seed", range(5))
def test_with_the_default_hours_each_of_200_words_is_frequent_in_train(seed: int) -> None:
    counts = count_words(by_split(plan(DEFAULT_HOURS, seed, ENGLISH))["train"])
    assert counts.keys() == vocabulary(ENGLISH.grammar)
    assert len(counts) >= 200
    assert min(counts.values()) >= 8


def test_with_the_default_hours_the_splits_have_the_expected_sizes(default_plan: dict[str, list[Line]]) -> None:
    hours = sum(line.estimated_seconds for line in default_plan["train"]) / 3600
    assert hours == pytest.approx(DEFAULT_HOURS, abs=0.01)
    assert len(default_plan["valid"]) == 100
    assert len(default_plan["test"]) == 200
    assert count_words(default_plan["test"]).total() >= 1000
    assert len({line.voice for line in default_plan["train"]}) >= 60


def test_valid_and_test_do_not_depend_on_the_hours_of_the_training_set(default_plan: dict[str, list[Line]]) -> None:
    more = plan(DEFAULT_HOURS + 0.5, 0, ENGLISH)
    assert len(by_split(more)["train"]) > len(default_plan["train"])
    # A chunk is a group of lines that one process synthesises.
    held_out = [chunk for chunk in chunked(more) if chunk[0].split != "train"]
    assert held_out == chunked(default_plan["valid"] + default_plan["test"])


def test_another_seed_gives_other_sentences(default_plan: dict[str, list[Line]]) -> None:
    other = by_split(plan(DEFAULT_HOURS, 1, ENGLISH))
    shared = {line.text for line in other["test"]} & {line.text for line in default_plan["test"]}
    assert len(shared) < len(other["test"]) / 2


def test_sentences_are_short_and_consist_of_lower_case_words() -> None:
    for text in islice(sentences(ENGLISH, "a seed"), 2000):
        assert re.fullmatch(r"[a-z']+( [a-z']+)*", text), text
        assert 3 <= len(text.split()) <= 12, text


def test_german_sentences_are_spelled_in_german_and_each_word_is_frequent() -> None:
    for text in islice(sentences(GERMAN, "a seed"), 2000):
        assert re.fullmatch(r"[A-Z][a-zäöüß]*( [A-ZÄÖÜa-zäöüßé]+)*", text.replace("Ö", "O", 1)), text
        assert 3 <= len(text.split()) <= 12, text
    splits = by_split(plan(DEFAULT_HOURS, 0, GERMAN))
    counts = count_words(splits["train"])
    assert counts.keys() == vocabulary(GERMAN.grammar)
    assert len(counts) >= 200
    assert min(counts.values()) >= 8
    assert set("äöüßÄÖ") <= set("".join(counts))
    assert {line.voice.partition("+")[0] for lines in splits.values() for line in lines} == {"de"}


@pytest.mark.slow
def test_the_bytes_of_the_corpus_do_not_depend_on_the_number_of_processes(small_corpus: Path, tmp_path: Path) -> None:
    prepare(tmp_path, hours=0.01, seed=0, num_processes=3)
    expected = {path.relative_to(small_corpus): path.read_bytes() for path in small_corpus.rglob("*.*")}
    assert len(expected) > 60  # at least one chunk of each split, so that the processes share work
    assert {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")} == expected


def test_audio_is_audible_and_unclipped_and_has_the_right_format_and_duration(
    small_corpus: Path,
) -> None:
    for split in SPLITS:
        for utterance in read_manifest(small_corpus / f"{split}.jsonl"):
            info = soundfile.info(utterance.audio_filepath)
            assert (info.format, info.subtype, info.samplerate, info.channels) == ("FLAC", "PCM_16", 16_000, 1)
            waveform, _ = soundfile.read(utterance.audio_filepath)
            assert utterance.duration == len(waveform) / 16_000
            # Train has utterances of several sentences.
            assert 1.0 < utterance.duration < (25.0 if split == "train" else 6.0)
            assert np.abs(waveform).max() < 0.91
            assert np.sqrt(np.mean(waveform**2)) > 10 ** (-40 / 20)


def test_only_some_training_utterances_consist_of_several_sentences_with_pauses(
    default_plan: dict[str, list[Line]],
) -> None:
    for split, lines in default_plan.items():
        talks = [line for line in lines if len(line.sentences) > 1]
        assert 0.3 < len(talks) / len(lines) < 0.5 if split == "train" else not talks
        assert all(len(line.pauses) == len(line.sentences) <= 5 for line in lines)
        assert all(max(line.pauses) <= 0.8 for line in talks)


def test_the_manifests_contain_the_plan_with_the_voice_as_speaker(small_corpus: Path) -> None:
    for split, lines in by_split(plan(0.01, 0, ENGLISH)).items():
        utterances = read_manifest(small_corpus / f"{split}.jsonl", ["language"])
        assert all(utterance.labels == {"language": "en"} for utterance in utterances)
        assert [(utterance.id, utterance.text, utterance.speaker) for utterance in utterances] == [
            (line.id, line.text, line.voice) for line in lines
        ]


def test_the_estimated_hours_are_within_5_per_cent_of_the_real_ones(small_corpus: Path) -> None:
    real = sum(utterance.duration for utterance in read_manifest(small_corpus / "train.jsonl"))
    estimated = sum(line.estimated_seconds for line in by_split(plan(0.01, 0, ENGLISH))["train"])
    assert estimated == pytest.approx(real, rel=0.05)


@pytest.mark.slow
def test_a_rerun_removes_audio_left_by_a_longer_run_but_no_other_files(small_corpus: Path, tmp_path: Path) -> None:
    prepare(tmp_path, hours=0.01, seed=1, num_processes=2)
    train = tmp_path / "audio" / "train"
    (train / "train-99999.flac").write_bytes(b"from a longer run")
    (train / "keep.flac").write_bytes(b"not ours")
    prepare(tmp_path, hours=0.01, seed=0, num_processes=2)
    assert not (train / "train-99999.flac").exists()
    assert (train / "keep.flac").read_bytes() == b"not ours"
    assert (tmp_path / "train.jsonl").read_bytes() == (small_corpus / "train.jsonl").read_bytes()


def test_an_interrupted_rerun_does_not_change_the_corpus(
    small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    shutil.copytree(small_corpus, tmp_path / "mini")
    monkeypatch.setattr(command, "_speak_all", interrupt)
    assert main(["--output-dir", str(tmp_path / "mini")]) == 130
    assert capsys.readouterr().err.startswith("interrupted")
    before, after = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
        for folder in (small_corpus, tmp_path / "mini")
    )
    assert after == before


def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    locked = refused(InputError, "one is writing")
    with alone_in(tmp_path), locked:
        prepare(tmp_path, hours=0.01, seed=0, num_processes=1)
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize("name", ["train.jsonl", "test.jsonl", "audio/mine.wav"])
def test_files_not_written_by_the_recipe_are_neither_replaced_nor_removed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    assert main(["--output-dir", str(tmp_path), "--hours", "0.01"]) == 1
    locked = "--output-dir ... recipes.mini.prepare"
    assert mentions(capsys.readouterr().err, locked)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [name]


def test_worker_processes_end_when_the_command_is_killed(tmp_path: Path) -> None:
    """Ctrl-C during training kills a recipe that the training command has started; its workers must end, too."""
    run = subprocess.Popen(
        [sys.executable, "-m", "recipes.mini.prepare", "--output-dir", str(tmp_path), "--num-processes", "2"],
        cwd=REPOSITORY,
        stderr=subprocess.DEVNULL,
    )

    def workers() -> list[int]:
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        started = [Path(task).read_text().split() for task in glob.glob(f"/proc/{run.pid}/task/*/children")]
        return [int(child) for child in {*children, *(child for several in started for child in several)}]

    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("*.flac")) and time.monotonic() < deadline:
        time.sleep(0.05)
    speaking = [pid for pid in workers() if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    run.kill()
    run.wait()
    assert speaking
    while any(Path(f"/proc/{pid}").exists() for pid in speaking) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in speaking if Path(f"/proc/{pid}").exists()]


def test_without_espeak_the_error_gives_the_command_that_installs_it(tmp_path: Path) -> None:
    code = "import sys; sys.modules['espeakng_loader'] = None; from recipes.mini.prepare import main; sys.exit(main())"
    run = subprocess.run(
        [sys.executable, "-c", code, "--output-dir", str(tmp_path / "mini")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "pip install -e '.[mini]'" in run.stderr
    assert not (tmp_path / "mini").exists()


@pytest.mark.parametrize(
    ("blocked", "arguments"),
    [
        ("mini", []),  # a file where the folder should be
        # a folder in the place of a file, so that a worker process cannot write
        ("mini/audio/train/train-00001.flac/a_folder", []),
        (None, ["--hours", "0"]),
        (None, ["--hours", "nan"]),
        (None, ["--num-processes", "0"]),
    ],
)
def test_an_impossible_request_is_reported_in_one_line_with_status_1(
    blocked: str | None, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if blocked:
        (tmp_path / blocked).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / blocked).touch()
    assert main(["--output-dir", str(tmp_path / "mini"), "--hours", "0.01", *arguments]) == 1
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert error.startswith(f"error: {arguments[0] if arguments else '--output-dir'} must be")
    assert not list(tmp_path.rglob("*.jsonl"))


def test_the_command_synthesises_german_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Line] = []

    def speak(planned: list[Line], output_dir: Path, num_processes: int) -> dict[str, float]:
        lines.extend(planned)
        for line in planned:
            (output_dir / line.audio_path).touch()
        return {line.id: 1.0 for line in planned}

    monkeypatch.setattr(command, "_speak_all", speak)
    assert main(["--language", "german", "--output-dir", str(tmp_path), "--hours", "0.01"]) == 0
    assert lines == plan(0.01, 0, GERMAN)
    written = [utterance.text for utterance in read_manifest(tmp_path / "train.jsonl")]
    assert written == [line.text for line in lines if line.split == "train"]


def die(lines: list[Line], output_dir: Path) -> dict[str, float]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def test_a_worker_process_that_dies_causes_an_error_and_not_an_endless_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_speak_chunk", die)
    with refused(InputError, "train-00001 ... process died"):
        prepare(tmp_path, hours=0.01, seed=0, num_processes=1)
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize("voice", ["en-us+nobody", "xx-unknown+f2"])
def test_an_unknown_voice_is_an_error_and_is_not_replaced_by_the_default_voice(voice: str) -> None:
    with refused(InputError, f"have the voice ... '{voice}'"):
        Espeak().speak("hello", voice, words_per_minute=160, pitch=50, pitch_range=50)


def test_resampling_keeps_frequencies_below_7500_hz_and_removes_those_above_8000_hz() -> None:
    time = np.arange(22_050) / 22_050
    for hertz, passes in ((440, True), (7_400, True), (8_100, False), (10_000, False)):
        resampled = resample(np.sin(2 * np.pi * hertz * time), 22_050)
        expected = np.sin(2 * np.pi * hertz * np.arange(16_000) / 16_000) * passes
        np.testing.assert_allclose(resampled, expected, atol=1e-9)  # float64 over whole periods: only rounding errors


def test_speech_is_well_above_the_noise_of_the_room() -> None:
    tone = 10_000 * np.sin(2 * np.pi * 440 * np.arange(22_050) / 22_050)
    for seed in range(20):
        waveform = record([tone], [0.0], (0.0, 0.0), 22_050, np.random.default_rng(seed))
        power = np.abs(np.fft.rfft(waveform)) ** 2
        frequency = np.fft.rfftfreq(len(waveform), 1 / 16_000)
        near = np.abs(frequency - 440) < 40
        # The signal-to-noise ratio is 20 dB or more; the edges of the tone reduce the measured value.
        assert 10 * np.log10(power[near].sum() / power[~near].sum()) > 10


def test_only_some_training_utterances_are_surrounded_by_silence(default_plan: dict[str, list[Line]]) -> None:
    alone = [line for line in default_plan["train"] if len(line.sentences) == 1]
    padded = [line for line in alone if sum(line.silences)]
    assert 0.25 < len(padded) / len(alone) < 0.35
    assert max(max(line.silences) for line in padded) <= 2.0
    others = [line for line in chain(*default_plan.values()) if line.split != "train" or len(line.sentences) > 1]
    assert not any(sum(line.silences) for line in others)


def test_the_silence_around_a_recording_is_digital_or_very_faint() -> None:
    tone = 10_000 * np.sin(2 * np.pi * 440 * np.arange(22_050) / 22_050)
    levels = []
    for seed in range(40):
        bare, padded = (
            record([tone], [0.0], silences, 22_050, np.random.default_rng(seed))
            for silences in ((0.0, 0.0), (1.5, 0.5))
        )
        assert np.array_equal(padded[24_000:-8_000], bare)
        level = np.sqrt(np.mean(padded[:24_000] ** 2))
        levels.append(level)
        assert level < 10 ** (-54 / 20)  # 54 dB below full scale
    assert 0.2 < np.mean(np.array(levels) == 0) < 0.8
