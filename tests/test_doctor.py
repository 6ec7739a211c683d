"""asr.doctor finds planted faults of every kind, and none in an intact corpus."""

import io
import re
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from asr import shards
from asr.apps.doctor.alignment import alignment_findings
from asr.apps.doctor.examination import Bounds, examine, sampled, splits_of
from asr.apps.doctor.finding import Severity
from asr.apps.doctor.forecast import card_findings, disk, fresh_model, memory_finding
from asr.apps.doctor.learning_rates import HIGHEST, LOWEST, NUM_STEPS, RangeTest, range_test
from asr.apps.doctor.memory import FULL, LORA, batch_bytes
from asr.apps.doctor.sound import MAX_SWAPPED, Sound, measure, speed_findings
from asr.apps.doctor.texts import character_findings
from asr.apps.doctor.trial import PeakMemory, Steps
from asr.base.system.processes import free_memory
from asr.core.data.corpus import read_corpus
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.hub.models import load_recognizer
from asr.doctor import doctor
from asr.errors import InputError, StoreError
from tests.browser import browser, visit, wait_until  # noqa: F401
from tests.conftest import SHARED, TINY, needs_shared, settings_with, tone_corpus
from tests.refusals import mentions, refused
from tests.storing import FaultyProxy
from tests.tones import SAMPLE_RATE, sentences, speak

KINDS = {  # exactly the utterances that the finding of each planted fault must name
    "manifest": [],
    "missing audio": ["missing"],
    "unreadable audio": ["unreadable"],
    "truncated audio": ["truncated-flac", "truncated-wav"],
    "wrong duration": ["wrong-duration"],
    "mixed sample rates": ["rate"],
    "several channels": [],
    "clipping": ["clipped"],
    "DC offset": ["offset"],
    "silence": ["silent"],
    "opposite phase": ["inverted"],
    "byte order": ["big-endian"],
    "band-limited audio": ["telephone"],
    "test audio in train": ["test-leaked"],
    "duplicate audio": ["twin"],
    "letters of another alphabet": ["cyrillic"],
    "marks in texts": ["marked"],
    "HTML entities": ["escaped"],
    "damaged characters": ["latin-1"],
    "digits": ["number"],
    "empty texts": ["empty"],
    "repeated texts": ["repeated"],
    "texts that do not fit": ["crowded", "few-words"],
    "speakers in train and test": ["test-speaker"],
    "sentences in train and test": ["test-sentence"],
    "characters without a token": ["cyrillic", "test-letter"],
    "dropped from training": ["crowded", "endless"],
}


class Corpus:
    """A corpus of tones with noise, to which a test adds utterances."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.noise = folder, np.random.default_rng(0)
        self.splits: dict[str, list[Utterance]] = {"train": [], "valid": [], "test": []}
        for split, count, seed in (("train", 30, 1), ("valid", 4, 2), ("test", 4, 3)):
            for number, text in enumerate(sentences(count, seed, words=(3, 5))):
                self.add(split, f"{split}-{number}", text)

    def sound(self, text: str) -> np.ndarray:
        waveform = speak(text)
        return waveform + 0.01 * self.noise.standard_normal(len(waveform)).astype(np.float32)

    def add(
        self,
        split: str,
        name: str,
        text: str,
        waveform: np.ndarray | None = None,
        rate: int = SAMPLE_RATE,
        suffix: str = "flac",
        **others: object,
    ) -> Path:
        path = self.folder / f"{name}.{suffix}"
        waveform = self.sound(text) if waveform is None else waveform
        soundfile.write(path, waveform, rate)
        utterance = Utterance(str(path), len(waveform) / rate, text, name, speaker=f"{split}-speaker")
        self.splits[split].append(replace(utterance, **others))
        return path

    def write(self) -> list[str]:
        for split, utterances in self.splits.items():
            write_manifest(self.folder / f"{split}.jsonl", utterances)
        return tone_corpus(self.folder)


def plant(corpus: Corpus) -> None:
    """Add utterances with each kind of fault."""
    draw = iter(sentences(20, seed=9, words=(5, 5)))
    corpus.add("train", "missing", next(draw)).unlink()
    corpus.add("train", "unreadable", next(draw)).write_text("not audio, but a page of an error of a server")
    for suffix in ("flac", "wav"):
        path = corpus.add("train", f"truncated-{suffix}", next(draw), suffix=suffix)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    corpus.add("train", "wrong-duration", next(draw), duration=6.0)
    text = next(draw)
    corpus.add("train", "rate", text, corpus.sound(text)[::2], rate=SAMPLE_RATE // 2)
    text = next(draw)
    corpus.add("train", "clipped", text, (3 * corpus.sound(text)).clip(-0.6, 0.6))
    text = next(draw)
    corpus.add("train", "offset", text, corpus.sound(text) + 0.1)
    corpus.add("train", "silent", next(draw), np.zeros(2 * SAMPLE_RATE))
    text = next(draw)
    narrow = np.fft.rfft(corpus.sound(text))
    narrow[len(narrow) * 2 // 5 :] = 0
    corpus.add("train", "telephone", text, np.fft.irfft(narrow))
    learnt = corpus.splits["train"][0]
    corpus.add("test", "test-leaked", "abc", soundfile.read(learnt.audio_filepath)[0])
    twin = corpus.splits["train"][1]
    corpus.add("train", "twin", "fed", soundfile.read(twin.audio_filepath)[0])
    corpus.add("train", "empty", "", corpus.sound("abc"))
    corpus.add("train", "repeated", corpus.splits["train"][-4].text)  # its text repeats that of an earlier utterance
    corpus.add("train", "few-words", "ab", corpus.sound("ab" * 25))
    corpus.add("test", "test-speaker", next(draw), speaker="train-speaker")
    corpus.add("test", "test-sentence", corpus.splits["train"][2].text)
    corpus.add("test", "test-letter", "abz")
    text = next(draw)
    both = np.stack([corpus.sound(text)] * 2, axis=1) * [1, -1]
    corpus.add("train", "inverted", text, both)
    text = next(draw)
    swapped = (corpus.sound(text) * 32767).astype(np.int16).byteswap()
    corpus.add("train", "big-endian", text, swapped)
    corpus.add("valid", "cyrillic", "ab \u0441ab dead")
    corpus.add("train", "marked", "abe <unk> dead [LAUGHTER]", corpus.sound("abe ab dead"))
    corpus.add("train", "escaped", "abe &quot;dead&quot; fad", corpus.sound("abe dead fad"))
    corpus.add("train", "latin-1", "abe \u00c3\u00a9d fad", corpus.sound("abe fd fad"))
    corpus.add("train", "number", "abe 25 fad", corpus.sound("abe fd fad"))
    corpus.add("train", "crowded", next(draw) * 3, corpus.sound("a"))
    corpus.add("train", "endless", "ab cd " * 30)


def findings(printed: str) -> dict[str, tuple[str, list[str]]]:
    """Map the kind of each finding to its severity and utterances."""
    by_kind: dict[str, tuple[str, list[str]]] = {}
    pattern = r"^(error|warning|note): ([^:]+):(.*?)^  -> ."
    for severity, kind, lines in re.findall(pattern, printed, re.MULTILINE | re.DOTALL):
        by_kind.setdefault(kind, (severity, []))[1].extend(re.findall(r"^  \w+: ([\w-]+)", lines, re.MULTILINE))
    return by_kind


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A corpus with all faults, and the doctor's output."""
    corpus = Corpus(tmp_path_factory.mktemp("sick"))
    plant(corpus)
    overrides = corpus.write()
    with (corpus.folder / "train.jsonl").open("a") as manifest:
        manifest.write('{"id": "line", "audio_filepath": "line.flac", "duration": -1, "text": "abc"}\n')
    printed = io.StringIO()
    with refused(InputError, "7 ... findings"), redirect_stdout(printed):
        doctor(settings_with(*TINY, *overrides, f"run_dir={corpus.folder / 'run'}"))
    return corpus.folder, printed.getvalue()


def test_each_planted_fault_is_found_in_its_utterance_and_in_no_other(sick: tuple[Path, str]) -> None:
    actual = {kind: sorted(named) for kind, (_, named) in findings(sick[1]).items()}
    assert actual == KINDS
    errors = {kind for kind, (severity, _) in findings(sick[1]).items() if severity == "error"}
    unusable = {"missing audio", "unreadable audio", "truncated audio", "wrong duration"}  # more than 1 % of the files
    assert errors == unusable | {"manifest", "test audio in train", "characters without a token"}


def test_an_intact_corpus_has_no_findings_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = Corpus(tmp_path).write()
    doctor(settings_with(*TINY, *overrides, f"run_dir={tmp_path / 'run'}", "doctor.learning_rates=true"))
    printed = capsys.readouterr().out
    assert findings(printed) == {}
    assert "0 errors, 0 warnings, 0 notes: training may start" in printed
    for name in ("steps", "learning rate", "an epoch", "the run", "largest batch", "memory", "disk", "learning rates"):
        assert re.search(rf"^{name}: .*\d", printed, re.MULTILINE), name
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["doctor.html"]


def test_a_range_test_trains_with_rates_that_rise_by_a_constant_factor(tones: Path, tmp_path: Path) -> None:
    settings = settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path}", "optimizer.layer_decay=0.5")
    corpus = read_corpus(settings.corpus, str, IndexCache().utterances)
    torch.manual_seed(0)
    model, utterances, _ = fresh_model(settings, corpus, corpus)
    steps: list[float] = []
    test = range_test(settings, utterances, model, steps.append)
    assert len(steps) == len(test.rates) == len(test.losses) > 50
    assert test.rates[0] == LOWEST
    factors = [after / before for before, after in pairwise(test.rates)]
    assert factors == pytest.approx([(HIGHEST / LOWEST) ** (1 / (NUM_STEPS - 1))] * len(factors))
    assert min(test.losses) < 0.8 * test.losses[0]
    assert RangeTest([1.0, 2.0, 3.0], [3.0, 1.0, 2.0]).suggestion == 0.2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"path": "a.wav", "sentence": "one"}', "missing audio_filepath, duration"),
        ('{"audio_filepath": "a.wav", "duration": "2", "text": "one"}', "duration ... of seconds"),
        ("a.wav,one", "line ... JSON"),
    ],
)
def test_a_training_manifest_without_a_valid_line_is_refused_with_its_first_error(
    tmp_path: Path, line: str, message: str
) -> None:
    overrides = Corpus(tmp_path).write()
    (tmp_path / "train.jsonl").write_text(f"{line}\n" * 3)
    with refused(InputError, f"train.jsonl:1 ... {message}"):
        doctor(settings_with(*TINY, *overrides, f"run_dir={tmp_path / 'run'}"))


def test_texts_that_the_model_cannot_spell_leave_no_training_utterances(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "valid", "test"):
        texts = [replace(each, text=f"{each.text} 7") for each in read_manifest(fluent / f"{split}.jsonl")]
        write_manifest(tmp_path / f"{split}.jsonl", texts)
    (tmp_path / "audio").symlink_to(fluent / "audio")
    overrides = ["experiment=finetune", f"init.from={fluent / 'run'}", f"run_dir={tmp_path / 'run'}"]
    with refused(InputError, "2 ... findings above"):
        doctor(settings_with(*tone_corpus(tmp_path), *overrides))
    text = findings_text(capsys.readouterr().out, "training")
    assert mentions(text, "one training utterance ... without a token")


def test_a_model_with_too_few_frames_for_many_texts_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Corpus(tmp_path)
    for number, text in enumerate(sentences(5, seed=4, words=(5, 5))):
        corpus.add("train", f"crowded-{number}", text * 3, corpus.sound("a" * (number + 1)))
    settings = settings_with(*TINY, *corpus.write(), f"run_dir={tmp_path / 'run'}")
    with refused(InputError, "not start"):
        doctor(settings)
    printed = capsys.readouterr().out
    severity, named = findings(printed)["dropped from training"]
    assert (severity, named) == ("error", [f"crowded-{number}" for number in range(5)])
    assert "Training stops above data.max_dropped_fraction=0.1." in printed
    assert "tokenizer=sentencepiece" in printed


def test_the_page_names_the_faults_and_plays_the_worst_utterances(sick: tuple[Path, str], browser: Any) -> None:  # noqa: F811
    seen = visit(browser, sick[0] / "run" / "doctor.html")
    headings = [heading.partition("\n")[0] for heading in seen.page.locator("h3").all_inner_texts()]
    assert [re.sub(r"^(error|warning|note)", "", heading) for heading in headings[:1]] == ["manifest"]
    assert {kind for kind in KINDS if any(kind in heading for heading in headings)} == set(KINDS)
    assert seen.page.locator('[data-figure="errors"]').inner_text() == "7"
    row = seen.page.locator("tr", has_text="nothing above")
    row.locator("button").click()
    row.locator("audio").wait_for()
    wait_until(seen.page, "document.querySelector('audio').duration > 1")
    assert seen.page.locator("tr", has_text="page of an error").count() == 0  # the content of a file is not shown
    assert seen.complaints == []
    assert [address for address in seen.requests if not address.startswith("blob:")] == [seen.page.url]


def test_half_and_double_speed_are_detected_by_speaking_rate_and_the_highest_band() -> None:
    pairs = [
        (Utterance("", 2.0 + 0.1 * (number % 5), "a" * 20, str(number)), Sound(SAMPLE_RATE, bandwidth=7500.0))
        for number in range(30)
    ]
    odd = [
        (Utterance("", 4.4, "a" * 20, "half"), Sound(SAMPLE_RATE, bandwidth=3750.0)),
        (Utterance("", 1.1, "a" * 20, "double"), Sound(32_000, bandwidth=15_000.0)),
        (Utterance("", 4.4, "a" * 20, "slow"), Sound(SAMPLE_RATE, bandwidth=7500.0)),
        (Utterance("", 2.2, "a" * 20, "telephone"), Sound(SAMPLE_RATE, bandwidth=3750.0)),
    ]
    [finding] = speed_findings({"train": [*pairs, *odd]})
    assert {case.utterance.id: case.detail.rpartition(": ")[2] for case in finding.cases} == {
        "half": "half speed",
        "double": "double speed",
    }
    assert speed_findings({"train": pairs}) == []


@needs_shared
def test_audio_in_the_wrong_byte_order_is_distinguished_from_speech_and_noise() -> None:
    for path in sorted((SHARED / "LibriSpeech" / "dev-mini").rglob("*.flac"))[:10]:
        samples, _ = soundfile.read(path, dtype="int16")
        for given, is_swapped in ((samples, False), (samples.byteswap(), True)):
            sound = measure(torch.from_numpy(given.astype(np.float32) / 32768), SAMPLE_RATE)
            assert (sound.swapped > MAX_SWAPPED) == is_swapped
    for given in (tone(0.5), np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE).clip(-1, 1)):
        assert measure(torch.from_numpy(given.astype(np.float32)), SAMPLE_RATE).swapped < MAX_SWAPPED


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("he said \u0441at", "letters of another alphabet"),
        ("\u0391thens", "letters of another alphabet"),
        ("a <unk> b", "marks in texts"),
        ("so [LAUGHTER] well", "marks in texts"),
        ("rock &amp; roll", "HTML entities"),
        ("it&#39;s", "HTML entities"),
        ("a \ufffd b", "damaged characters"),
        ("caf\u00c3\u00a9", "damaged characters"),
        ("in 1984", "digits"),
        ("na\u00efve \u0441\u0430\u0442 and AT&T", None),
        ("d'\u00e9t\u00e9 \u2013 \u201ewei\u00df\u201c \u4e2d\u6587 a < b", None),
    ],
)
def test_characters_that_are_not_spoken_are_named(text: str, kind: str | None) -> None:
    others = [Utterance("", 1.0, "plain words", str(number)) for number in range(3)]
    character_problems = character_findings({"train": [*others, Utterance("", 1.0, text, "odd")]})
    assert {finding.kind: [case.utterance.id for case in finding.cases] for finding in character_problems} == (
        {kind: ["odd"]} if kind else {}
    )


def test_digits_in_most_texts_are_not_a_finding() -> None:
    assert character_findings({"train": [Utterance("", 1.0, "room 25", str(number)) for number in range(3)]}) == []


def test_in_a_large_corpus_an_equal_share_of_the_audio_in_each_split_is_examined(tones: Path) -> None:
    corpus = read_corpus(settings_with(*tone_corpus(tones)).corpus, str, IndexCache().utterances)
    splits = splits_of(corpus)
    hours = sum(utterance.duration for utterances in splits.values() for utterance in utterances) / 3600
    bounds = Bounds(sample_rate=16000, max_bad_fraction=0.0, listen_hours=hours / 2, seed=0)
    done: dict[str, float] = {}
    examination = examine(
        corpus, bounds, lambda activity, total: lambda more: done.update({activity: done.get(activity, 0) + more})
    )
    assert {split: len(pairs) for split, pairs in examination.measured.items()} == {"train": 24, "valid": 4, "test": 4}
    assert ("looked at", "the headers of 64 files, the audio of 32 of 64 utterances") in examination.facts
    listened_seconds = sum(utterance.duration for pairs in examination.measured.values() for utterance, _ in pairs)
    assert done == {"reading headers": 64, "listening": pytest.approx(listened_seconds)}


def test_a_model_finds_swapped_texts(fluent: Path) -> None:
    utterances = read_manifest(fluent / "test.jsonl")[:12]
    swapped = [replace(utterances[0], text=utterances[1].text), replace(utterances[1], text=utterances[0].text)]
    recordings = {"train": [(utterance, Sound(SAMPLE_RATE)) for utterance in (*swapped, *utterances[2:])]}
    seconds: list[float] = []
    (finding,) = alignment_findings(load_recognizer(fluent / "run"), recordings, lambda activity, total: seconds.append)
    assert {case.utterance.id for case in finding.cases} == {utterance.id for utterance in swapped}
    assert sum(seconds) == pytest.approx(sum(utterance.duration for utterance in utterances))
    sound = {"train": recordings["train"][2:]}
    assert alignment_findings(load_recognizer(fluent / "run"), sound, lambda activity, total: seconds.append) == []


def tone(amplitude: float) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * 97.0 * np.arange(SAMPLE_RATE) / SAMPLE_RATE)


def clipped(waveform: np.ndarray) -> float:
    return measure(torch.from_numpy(waveform.astype(np.float32)), SAMPLE_RATE).clipped


def test_clipped_audio_is_reported_but_pure_tones_and_coarse_samples_are_not() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, SAMPLE_RATE)
    assert clipped(tone(0.9)) == clipped(noise) == 0.0
    assert clipped((tone(0.5) * 16).round() / 16) == 0.0
    assert clipped((noise * 16).round() / 16) == 0.0
    beyond = np.abs(tone(1.0)) >= 0.7
    assert clipped(tone(1.0).clip(-0.7, 0.7)) == pytest.approx(beyond.mean(), abs=0.01)
    assert clipped(tone(1.2).clip(-1, 1)) == pytest.approx((np.abs(tone(1.2)) >= 0.999).mean(), abs=0.01)


def test_the_time_of_a_step_is_interpolated_linearly_between_timed_steps() -> None:
    steps = Steps({10.0: 0.5, 30.0: 1.5}, reading=0.0, peak=0.0, available=1.0)
    assert [steps.of(padded) for padded in (10.0, 20.0, 30.0)] == pytest.approx([0.5, 1.0, 1.5])
    assert Steps({20.0: 1.0}, 0.0, 0.0, 1.0).of(10.0) == pytest.approx(0.5)


def test_insufficient_disk_space_is_an_error_and_the_folder_need_not_exist(tmp_path: Path) -> None:
    settings = settings_with(f"run_dir={tmp_path / 'a' / 'b'}", "checkpoint.keep=3")
    free = shutil.disk_usage(tmp_path).free
    assert disk(free / 100, 0.0, settings)[1] == []
    (finding,) = disk(free / 3, 0.0, settings)[1]  # the run needs space for six checkpoints
    assert finding.severity == Severity.ERROR
    assert "up to 6 checkpoints" in finding.message


def test_insufficient_memory_is_an_error_that_names_the_settings_to_lower() -> None:
    finding = memory_finding(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert finding.severity == Severity.ERROR
    assert "data.batch_seconds" in finding.advice
    with pytest.raises(RuntimeError, match="shapes"):
        memory_finding(RuntimeError("shapes do not fit"))


def test_a_model_that_cannot_be_built_is_reported_together_with_faults_of_the_corpus(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    impossible = ["tokenizer=sentencepiece", "tokenizer.vocab_size=5000", "doctor.listen_hours=0.001"]
    with refused(InputError, "1 finding ... training"):
        doctor(settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path / 'run'}", *impossible))
    assert "vocab_size" in findings_text(capsys.readouterr().out, "training")


def findings_text(printed: str, kind: str) -> str:
    (text,) = re.findall(rf"^error: {kind}: (.*)$", printed, re.MULTILINE)
    return str(text)


def test_an_absent_model_is_reported_before_the_corpus_is_examined(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.apps.doctor.examination.examine", lambda *_: pytest.fail("the corpus was examined"))
    with refused(InputError, "model ... .ckpt"):
        doctor(settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path}", "doctor.model=nope"))


@pytest.fixture
def in_shards(tones: Path, tmp_path: Path, s3: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """Store the tones in small shards; train-3 has wrong audio, and train-5 a wrong duration. Return the URL."""
    monkeypatch.setattr(shards, "MIN_MEGABYTES", 0.0)
    files = read_manifest(tones / "train.jsonl")
    (tmp_path / "noise.flac").write_bytes(np.random.default_rng(0).bytes(5_000))
    files[3] = replace(files[3], audio_filepath=str(tmp_path / "noise.flac"))
    files[5] = replace(files[5], duration=files[5].duration + 2)
    write_manifest(tmp_path / "train.jsonl", files)
    shutil.copy(tones / "valid.jsonl", tmp_path)
    (tmp_path / "audio").symlink_to(tones / "audio")
    for split in ("train", "valid"):
        output = f"s3://bucket/examined/{tmp_path.name}/{split}"
        assert shards.main([str(tmp_path / f"{split}.jsonl"), "-o", output, "--shard-megabytes", "0.3"]) == 0
    return f"s3://bucket/examined/{tmp_path.name}"


def of_shards(url: str) -> list[str]:
    splits = ["corpus.train=[train/index.arrow]", "corpus.valid=[valid/index.arrow]", "corpus.test=[]"]
    return [*tone_corpus(Path(url)), f"corpus.dir={url}", *splits]


def test_a_corpus_in_shards_at_a_url_is_examined_and_its_faults_are_named(
    in_shards: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused(InputError, "not start"):
        doctor(settings_with(*TINY, *of_shards(in_shards), f"run_dir={tmp_path / 'run'}"))
    printed = capsys.readouterr().out
    named = {kind: ids for kind, (_, ids) in findings(printed).items()}
    assert named["unreadable audio"] == ["train-3"]
    assert named["wrong duration"] == ["train-5"]
    assert "the headers of 56 files, the audio of 54 of 56 utterances" in printed
    assert "sampled" not in printed


def test_only_a_sample_of_a_corpus_in_shards_is_examined_and_this_is_reported(
    in_shards: str, tmp_path: Path, s3: FaultyProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.requests.clear()
    sample = ["doctor.max_utterances=12", "data.max_bad_fraction=1", "trainer.max_epochs=3"]
    doctor(settings_with(*TINY, *of_shards(in_shards), *sample, f"run_dir={tmp_path / 'run'}"))
    printed = capsys.readouterr().out
    pattern = (
        r"^train, sampled: 12 of 48 utterances, 0\.\d+ h, from [345] of \d shards \(doctor\.max_utterances=12, seed=0\)"
    )
    assert re.search(pattern, printed, re.MULTILINE)
    assert "valid, sampled" not in printed  # valid has 8 utterances, so all of them are examined
    assert "the headers of 20 files" in printed
    # Steps are counted for the whole corpus.
    assert re.search(r"^steps: \d+ optimizer steps per epoch", printed, re.MULTILINE)
    assert len([path for method, path, byte_range in s3.requests if byte_range and "train-" in path]) < 48


def test_a_sample_is_spread_evenly_and_depends_only_on_the_seed(in_shards: str, tones: Path) -> None:
    corpus = read_corpus(settings_with(*of_shards(in_shards)).corpus, str, IndexCache().utterances)
    first, facts = sampled(corpus, 12, seed=0)
    names = list(first.train.ids)
    # One of every four consecutive utterances is drawn.
    assert [int(name.removeprefix("train-")) // 4 for name in names] == list(range(12))
    assert list(sampled(corpus, 12, seed=0)[0].train.ids) == names
    assert list(sampled(corpus, 12, seed=1)[0].train.ids) != names
    assert [name for name, _ in facts] == ["train, sampled"]
    assert sampled(corpus, None, seed=0) == (corpus, [])
    files = read_corpus(settings_with(*tone_corpus(tones)).corpus, str, IndexCache().utterances)
    assert len(sampled(files, 12, seed=0)[0].train) == 48  # all local files are examined


def test_a_failing_store_ends_the_doctor_with_a_one_line_error(in_shards: str, tmp_path: Path, s3: FaultyProxy) -> None:
    s3.faults.extend([""] * 30)
    s3.forever = "expired"
    with refused(StoreError, "s3://bucket/examined/ ... ExpiredToken ... Renew the credentials"):
        doctor(settings_with(*TINY, *of_shards(in_shards), f"run_dir={tmp_path / 'run'}"))


def test_peak_memory_counts_outputs_and_gradients_but_not_existing_tensors() -> None:
    """The expected peak of a linear layer is known; its weight gets a gradient, but its input does not."""
    layer = torch.nn.Linear(300, 200, bias=False)
    x = torch.randn(50, 300)
    with PeakMemory([*layer.parameters(), x]) as memory:
        out = layer(x)
        doubled = out.relu()
        del out
        doubled.sum().backward()
    output, gradient = 50 * 200 * 4, 300 * 200 * 4
    assert 2 * output + gradient <= memory.peak <= 4 * output + gradient + 1000


def test_a_gpu_with_too_little_memory_is_an_error(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*TINY, *tone_corpus(fluent), f"run_dir={tmp_path}", "doctor.card_gigabytes=1e-4"]
    with refused(InputError, "1 finding ... card"):
        doctor(settings_with(*overrides))
    output = capsys.readouterr().out
    sizes = [float(size) for size in re.findall(r"(?:full|encoder\.\*\]|lora) ([\d.]+) GB", output)]
    assert len(sizes) == 3
    assert sizes[0] > max(sizes[1:])
    assert "of tensors; the card has 0.0001 GB" in output


def test_an_adapter_that_does_not_fit_is_advised_to_recompute_activations_which_it_does_not_save() -> None:
    run: Any = SimpleNamespace(components={"adapter": {"name": "lora"}}, doctor=SimpleNamespace(card_gigabytes=24))
    [finding] = card_findings({FULL: 29e9, LORA: 27e9}, run)
    assert "few activations" in finding.message
    assert "gradient_checkpointing=true" in finding.advice
    run.components = {}
    [finding] = card_findings({FULL: 29e9, LORA: 27e9}, run)
    assert "adapter" not in finding.message


@pytest.mark.parametrize("problem", ["card", "memory"])
def test_steps_that_cannot_fit_or_are_planned_for_a_gpu_are_forecast_but_not_tried(
    problem: str, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: Any) -> float:
        raise AssertionError("a step was tried")

    monkeypatch.setattr("asr.apps.doctor.trial.Trial._step", step)
    monkeypatch.setattr("asr.apps.doctor.trial.free_memory", lambda: 1e12 if problem == "card" else 1e6)
    settings = settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path}", "doctor.listen_hours=0.001")
    if problem == "card":
        doctor(replace(settings, doctor=replace(settings.doctor, card_gigabytes=24)))
    else:
        with refused(InputError, "1 finding ... memory"):
            doctor(settings)
    output = capsys.readouterr().out
    assert re.search(r"^tensors: full [\d.]+ GB", output, re.MULTILINE)
    assert re.search("not measured|not tried", output)


def test_the_forecast_is_printed_before_a_step_is_tried(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that takes too much memory may kill the process."""
    printed = []

    def step(*_: Any) -> float:
        printed.append(capsys.readouterr().out)
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr("asr.apps.doctor.trial.Trial._step", step)
    with refused(InputError, "1 finding ... memory"):
        doctor(settings_with(*TINY, *tone_corpus(tones), f"run_dir={tmp_path}", "doctor.listen_hours=0.001"))
    assert re.search(r"^tensors: full [\d.]+ GB", printed[0], re.MULTILINE)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("free", [0, 40, 1e9])
def test_memory_is_measured_up_to_the_free_memory_and_extrapolated_beyond(size: int, free: float) -> None:
    measured = []

    def bytes_of(number: int) -> float:
        return max(20.0, 5.0 + 3 * number)  # gradients of the weights, or activations

    def measure(number: int) -> float:
        measured.append(number)
        return bytes_of(number)

    needed = batch_bytes(measure, size, free)
    assert all(bytes_of(number) <= free for number in measured if number > 2)
    if bytes_of(size) <= free:
        assert needed == bytes_of(size)
    else:
        assert free < needed <= bytes_of(size), "what does not fit is not forecast to fit"


@pytest.mark.parametrize("version", [1, 2])
def test_free_memory_is_that_of_the_machine_or_of_the_container_if_that_is_less(version: int, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  900 kB\nMemAvailable:  500 kB\n")
    group = tmp_path / ("sys/fs/cgroup" if version == 2 else "sys/fs/cgroup/memory")
    group.mkdir(parents=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    cached = "inactive_file" if version == 2 else "total_inactive_file"
    for limit, expected in (("max", 500 * 1024), ("9000000", 500 * 1024), ("100000", 100_000 - 70_000 + 20_000)):
        for name, content in (*zip(names, (limit, "70000"), strict=True), ("memory.stat", f"anon 5\n{cached} 20000\n")):
            (group / name).write_text(content)
        assert free_memory(tmp_path) == expected
