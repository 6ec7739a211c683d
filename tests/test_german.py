"""A language with other letters: German texts with umlauts pass through all steps from the corpus to the report."""

import json
import unicodedata
from pathlib import Path

import pytest

from asr.align import main as align
from asr.base.text.normalize import NORMALIZERS
from asr.components.decode.fusion.hotwords import compiled, read_phrases
from asr.components.decode.fusion.lexicon import read_lexicon, writable
from asr.core.build import build_tokenizer
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.corpus import prepare_if_absent, read_corpus
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.data.settings import CorpusSettings
from asr.evaluate import main as evaluate
from asr.interfaces import Tokenizer
from asr.ngram import main as ngram
from asr.train import train
from asr.transcribe import main as transcribe
from recipes.mini.german import GERMAN
from recipes.mini.plan import plan
from recipes.mini.prepare import _speak_chunk
from tests.bundles.make import SMALLEST
from tests.conftest import TINY, resolved, settings_with

LETTERS = set("äöüß")
TEXTS = [line.text for line in plan(0.5, 0, GERMAN)]


def fitted(name: str) -> Tokenizer:
    """Return a tokenizer that is fitted on the German sentences as written."""
    sizes = {"char": [], "sentencepiece": ["tokenizer.vocab_size=200"]}
    tokenizer = build_tokenizer(resolved(f"tokenizer={name}", *sizes[name]))
    tokenizer.fit(TEXTS)
    return tokenizer


@pytest.fixture(scope="module")
def german(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few German utterances, and with a short training run on them in `run`."""
    folder = tmp_path_factory.mktemp("german")
    lines = [line for line in plan(0.01, 0, GERMAN) if len(line.sentences) == 1][:12]
    (folder / "audio" / "train").mkdir(parents=True)
    durations = _speak_chunk(lines, folder)
    utterances = [Utterance(str(folder / line.audio_path), durations[line.id], line.text, line.id) for line in lines]
    for split in ("train", "valid", "test"):
        write_manifest(folder / f"{split}.jsonl", utterances)
    corpus = ["corpus=mini_german", f"corpus.dir={folder}"]
    train(settings_with(*TINY, *SMALLEST, *corpus, f"run_dir={folder / 'run'}"))  # SMALLEST sets normalizer=as_written
    return folder


@pytest.mark.parametrize("name", ["char", "sentencepiece"])
def test_tokenizers_preserve_umlauts(name: str) -> None:
    tokenizer = fitted(name)
    again = build_tokenizer(resolved(f"tokenizer={name}", *(["tokenizer.vocab_size=200"] * (name != "char"))))
    again.load(tokenizer.files())
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert again.encode(text) == tokenizer.encode(text)
    assert set("".join(tokenizer.pieces)) >= LETTERS


@pytest.mark.parametrize("normalizer", ["as_written", "basic"])
def test_the_unicode_form_of_umlauts_in_a_manifest_makes_no_difference(normalizer: str, tmp_path: Path) -> None:
    texts = {}
    for form in ("NFC", "NFD"):
        utterances = [
            Utterance("a.flac", 1.0, unicodedata.normalize(form, text), str(number))
            for number, text in enumerate(TEXTS)
        ]
        write_manifest(tmp_path / f"{form}.jsonl", utterances)
        manifests = {split: [f"{form}.jsonl"] for split in ("train", "valid", "test")}
        settings = CorpusSettings("german", str(tmp_path), **manifests, also_test=[], prepare=None)
        corpus = read_corpus(settings, NORMALIZERS[normalizer], IndexCache().utterances)
        texts[form] = [utterance.text for utterance in corpus.train]
    assert texts["NFC"] == texts["NFD"]
    assert texts["NFC"] == (TEXTS if normalizer == "as_written" else [text.lower() for text in TEXTS])
    assert set("".join(texts["NFC"])) >= LETTERS


def test_hotwords_and_a_lexicon_may_spell_umlauts_in_either_unicode_form(tmp_path: Path) -> None:
    tokenizer, normalize = fitted("char"), NORMALIZERS["as_written"]
    for form in ("NFC", "NFD"):
        path = tmp_path / form
        path.write_text(unicodedata.normalize(form, "Käthe\nGrünstraße\n"), encoding="utf-8")
        assert compiled(read_phrases(str(path)), 1.0, tokenizer, normalize).phrases == ["Käthe", "Grünstraße"]
        assert writable(str(path), tokenizer, normalize) == ["Käthe", "Grünstraße"]


def test_a_language_model_of_german_texts_keeps_words_as_written(german: Path, tmp_path: Path) -> None:
    output = tmp_path / "lm.arpa"
    assert ngram([str(german / "train.jsonl"), "-o", str(output), "--normalizer", "as_written"]) == 0
    spoken = {word for utterance in read_manifest(german / "train.jsonl") for word in utterance.text.split()}
    assert set(read_lexicon(output)) == spoken
    assert set("".join(spoken)) >= LETTERS


def test_a_german_bundle_transcribes_aligns_and_reports(
    german: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load_recognizer(german / "run").model.tokenizer
    utterances = read_manifest(german / "test.jsonl")
    assert [tokenizer.decode(tokenizer.encode(utterance.text)) for utterance in utterances] == [
        utterance.text for utterance in utterances
    ]
    manifest, report = str(german / "test.jsonl"), tmp_path / "report.html"
    assert evaluate([str(german / "run"), manifest, "--output-dir", str(tmp_path), "--report", str(report)]) == 0
    assert {"wer", "raw_wer"} <= json.loads((tmp_path / "test.wer.json").read_text()).keys()
    assert all(
        utterance.text.lower() in (tmp_path / "test.utterances.jsonl").read_text("utf-8") for utterance in utterances
    )
    assert utterances[0].text.lower().split()[-1] in report.read_text("utf-8")
    assert transcribe([str(german / "run"), utterances[0].audio_filepath]) == 0
    capsys.readouterr()
    assert align([str(german / "run"), manifest, "--worst", "0"]) == 0
    aligned = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert aligned == [utterance.text for utterance in utterances]
    assert set("".join(aligned)) >= LETTERS


def test_the_corpus_is_generated_on_first_use_in_its_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    class Done:
        returncode = 0

    def run(command: list[str], **options: object) -> Done:
        commands.append(command)
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.jsonl").touch()
        return Done()

    monkeypatch.setattr("asr.core.data.corpus.subprocess.run", run)
    prepare_if_absent(settings_with("corpus=mini_german", f"corpus.dir={tmp_path}").corpus)
    [[_, *command]] = commands
    assert command == ["-m", "recipes.mini.prepare", "--language", "german", "--output-dir", str(tmp_path)]
