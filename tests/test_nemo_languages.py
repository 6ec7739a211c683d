"""A model of NeMo with a tokenizer for each language: all at once, or one language, which is an ordinary model."""

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from asr.apps.convert.foreign import Choices
from asr.apps.convert.nemo.convert import from_nemo
from asr.apps.convert.nemo.language import ROWS, with_language
from asr.apps.convert.nemo.tokenizer import take_vocabulary
from asr.components.tokenizer.aggregate import Aggregate
from asr.convert import main
from asr.core.build import build_tokenizer
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.batch import Example
from asr.core.data.dataset import Item, SpeechDataset
from asr.core.data.manifest import read_manifest
from asr.core.run.initialization import with_parts
from asr.errors import InputError
from asr.finetune import main as finetune
from asr.train import train
from tests.conftest import SHARED, TINY, settings_with, tone_corpus
from tests.nemo import SAMPLE_RATE, nemo_config, saved, sentencepiece_model, sentencepiece_model_of, tensors, vocabulary
from tests.refusals import refused
from tests.test_convert import assert_equal
from tests.test_nemo_transducers import config, state
from tests.test_parakeet import sound
from tests.tones import write_corpus

OTHER = ["<unk>", "▁", "d", "e", "▁de", "ß"]
SIZES = {"de": len(OTHER), "en": len(vocabulary())}
MODELS = {"de": sentencepiece_model_of(OTHER), "en": sentencepiece_model()}
TOTAL = sum(SIZES.values())
KINDS = ["ctc", "rnnt", "tdt", "hybrid tdt"]


def settings_of(kind: str, size: int, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return NeMo's config for a number of tokens, without lists of tokens."""
    made = nemo_config() if kind == "ctc" else config(kind)
    made = made | {"tokenizer": tokenizer}
    if kind != "ctc":
        made["decoder"]["vocab_size"] = size
        made["joint"] |= {"num_classes": size, "vocabulary": None}
    for section in [made["decoder"]] if kind == "ctc" else [made["aux_ctc"]["decoder"]] if "aux_ctc" in made else []:
        section |= {"num_classes": size, "vocabulary": None}
    return made


def folder_of(folder: Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "model_config.yaml").write_text(yaml.safe_dump(dict(settings), allow_unicode=True))
    (folder / "model_weights.ckpt").write_bytes(saved(dict(weights)))
    for language, model in MODELS.items():
        (folder / f"{language}_tokenizer.model").write_bytes(model)
    return folder


def weights_of(kind: str) -> dict[str, Tensor]:
    return tensors(TOTAL) if kind == "ctc" else state(kind, num_pieces=TOTAL)


def section_of(language: str) -> dict[str, Any]:
    return {"dir": ".", "type": "bpe", "model_path": f"nemo:{language}_tokenizer.model"}


def aggregate(folder: Path, kind: str) -> Path:
    langs = {language: section_of(language) for language in SIZES}
    return folder_of(folder, settings_of(kind, TOTAL, {"type": "agg", "dir": None, "langs": langs}), weights_of(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", SIZES)
def test_one_language_is_the_model_with_the_rows_of_its_tokens(
    language: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = 0 if language == "de" else SIZES["de"]
    rows = [*range(first, first + SIZES[language])]
    own = {
        name: weight[[*rows, *range(TOTAL, len(weight))]] if ROWS.fullmatch(name) else weight
        for name, weight in weights_of(kind).items()
    }
    alone = folder_of(tmp_path / "alone", settings_of(kind, SIZES[language], section_of(language)), own)
    expected = from_nemo(alone).bundle
    folder = aggregate(tmp_path / "both", kind)
    assert main([str(folder), "--language", language, "-o", str(tmp_path / "ours")]) == 0
    assert f"{SIZES[language]} tokens of {language}" in capsys.readouterr().out
    bundle = read_bundle(tmp_path / "ours")
    assert (bundle.config, bundle.files) == (expected.config, expected.files)
    assert_equal(bundle.weights, expected.weights)
    assert main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0


class AggregateTokenizer:
    """NeMo's tokenizer of the same name, with the parts that a model needs."""

    def __init__(self, models: Mapping[str, bytes]) -> None:
        self.parts = {language: SentencePieceProcessor(model_proto=model) for language, model in models.items()}
        self.offsets: dict[str, int] = {}
        self.by_id: dict[int, str] = {}
        for language, part in self.parts.items():
            self.offsets[language] = len(self.by_id)
            for _ in range(part.vocab_size()):
                self.by_id[len(self.by_id)] = language

    def text_to_ids(self, text: str, language: str) -> list[int]:
        return [number + self.offsets[language] for number in self.parts[language].encode_as_ids(text)]

    def ids_to_text(self, ids: list[int]) -> str:
        pieces = [self.parts[self.by_id[each]].id_to_piece(each - self.offsets[self.by_id[each]]) for each in ids]
        return "".join(pieces).replace("▁", " ")


@given(st.data())
def test_tokens_and_texts_of_all_languages_are_those_of_nemos_tokenizer(data: Any) -> None:
    files = {f"{language}_tokenizer.model": model for language, model in MODELS.items()}
    languages = {language: section_of(language) for language in SIZES}
    vocabulary = take_vocabulary({"tokenizer": {"type": "agg"}}, {}, files, Path(), languages)
    ours: Any = build_tokenizer({"tokenizer": vocabulary.config})
    ours.load(vocabulary.files)
    theirs = AggregateTokenizer(MODELS)
    assert ours.vocab_size == TOTAL + 1
    unknown = {0, SIZES["de"]}
    ids = data.draw(st.lists(st.sampled_from(sorted({*range(TOTAL)} - unknown)), max_size=12))
    assert ours.decode([number + 1 for number in ids]) == " ".join(theirs.ids_to_text(ids).split())
    text = " ".join(data.draw(st.lists(st.text("de", min_size=1, max_size=4), min_size=1, max_size=4)))
    for language in SIZES:
        assert ours.encoders[language](text) == [number + 1 for number in theirs.text_to_ids(text, language)]
    assert ours.encode(text) == ours.encoders["de"](text)
    assert ours.decode(ours.encode("ab")) == "ab"  # only the second language has these letters
    assert len({*ours.names}) == len(ours.names)


@pytest.mark.parametrize("kind", KINDS)
def test_all_languages_at_once_are_read_and_written_back(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = aggregate(tmp_path / "both", kind)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    assert "--language de" in capsys.readouterr().out
    bundle = read_bundle(tmp_path / "ours")
    for name, weight in bundle.weights.items():
        if name.endswith(("head.linear.weight", "predictor.embedding.weight")):
            assert len(weight) == TOTAL + 1, name
    waveform = sound(1.5)
    recognizer = load_recognizer(tmp_path / "ours")
    text = recognizer.transcribe(waveform, sample_rate=SAMPLE_RATE).text
    assert main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0
    again = from_nemo(tmp_path / "back.nemo").bundle
    assert (again.config, again.files) == (bundle.config, bundle.files)
    assert_equal(again.weights, bundle.weights)
    with tarfile.open(tmp_path / "back.nemo") as archive:
        files: Any = {Path(each.name).name: archive.extractfile(each) for each in archive.getmembers() if each.isfile()}
        written = {name: file.read() for name, file in files.items()}
    settings = yaml.safe_load(written["model_config.yaml"])["tokenizer"]
    assert (settings["type"], [*settings["langs"]]) == ("agg", [*SIZES])
    for language, section in settings["langs"].items():
        assert written[section["model_path"].removeprefix("nemo:")] == MODELS[language]
    assert text == load_recognizer(tmp_path / "ours").transcribe(waveform, sample_rate=SAMPLE_RATE).text


@pytest.fixture
def bilingual(tmp_path: Path) -> Path:
    """A corpus whose utterances have the key language, by turns de and en."""
    texts = ["de d", "ed de", "e de", "de", "dede e", "d e d", "e", "ede d"]
    write_corpus(tmp_path / "corpus", {"train": texts, "valid": texts[:2], "test": texts[2:4]})
    for path in (tmp_path / "corpus").glob("*.jsonl"):
        lines = [
            json.loads(line) | {"language": [*SIZES][n % 2]} for n, line in enumerate(path.read_text().splitlines())
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "corpus"


def test_each_text_is_trained_on_with_the_tokens_of_its_language(bilingual: Path, tmp_path: Path) -> None:
    assert main([str(aggregate(tmp_path / "both", "hybrid tdt")), "-o", str(tmp_path / "ours")]) == 0
    model, theirs = load_recognizer(tmp_path / "ours").model, AggregateTokenizer(MODELS)
    utterances = read_manifest(bilingual / "train.jsonl", ["language"])
    dataset = SpeechDataset(utterances, model.features, model.reference.for_evaluation())
    for row, utterance in enumerate(utterances):
        example = dataset[Item(0, row, 1.0)]
        assert isinstance(example, Example)
        expected = theirs.text_to_ids(utterance.text, utterance.labels["language"])
        assert example.tokens.tolist() == [number + 1 for number in expected]
    short = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment", "checkpoint"))]
    options = [*short, *tone_corpus(bilingual), f"init.from={tmp_path / 'ours'}", "trainer.max_steps=2"]
    options += [f"run_dir={tmp_path / 'run'}", "optimizer.lr=1e-3"]
    with refused(InputError, "language ... de, en; got none", cure="corpus.labels=[language]"):
        train(with_parts(settings_with(*options), options))
    options += ["corpus.labels=[language]", f"run_dir={tmp_path / 'run2'}"]
    train(with_parts(settings_with(*options), options))
    trained = read_bundle(tmp_path / "run2" / "bundle")
    assert trained.config["tokenizer"] == read_bundle(tmp_path / "ours").config["tokenizer"]
    with refused(InputError, "MODEL ... de, en", cure="--language"):
        finetune(
            [
                str(tmp_path / "ours"),
                str(bilingual / "train.jsonl"),
                "--test",
                str(bilingual / "test.jsonl"),
                "--output",
                str(tmp_path / "fine"),
            ]
        )
    assert load_recognizer(tmp_path / "run2").model.reference.tokens("de", "en") == [
        number + 1 for number in theirs.text_to_ids("de", "en")
    ]


def test_a_tokenizer_of_several_languages_is_neither_fitted_nor_extended() -> None:
    tokenizer = Aggregate(languages=["de", "en"])
    with refused(InputError, "tokenizer ... aggregate"):
        tokenizer.fit(["de"])
    with refused(InputError, "pieces ... --language"):
        tokenizer.extend(["ä"])
    with refused(InputError, "tokenizer.languages; got 'de'"):
        Aggregate(languages=["de", "de"])
    with refused(InputError, "tokenizer.model ... damaged"):
        tokenizer.load({"de.tokenizer.model": b"x", "en.tokenizer.model": MODELS["en"]})


def test_the_language_must_be_one_of_the_models(tmp_path: Path) -> None:
    folder = aggregate(tmp_path / "both", "ctc")
    with refused(InputError, "--language ... de, en ... got 'fr'"):
        main([str(folder), "--language", "fr", "-o", str(tmp_path / "ours")])
    plain = folder_of(tmp_path / "plain", nemo_config() | {"tokenizer": section_of("en")}, tensors())
    with refused(InputError, "--language; got 'en'"):
        from_nemo(plain, Choices(language="en"))


def test_a_head_without_rows_for_all_languages_is_refused(tmp_path: Path) -> None:
    langs = {language: section_of(language) for language in SIZES}
    settings = settings_of("ctc", TOTAL, {"type": "agg", "langs": langs})
    folder = folder_of(tmp_path / "both", settings, tensors(TOTAL - 1))
    with refused(InputError, f"decoder.decoder_layers.0 ... {TOTAL} ... {TOTAL}"):
        main([str(folder), "--language", "de", "-o", str(tmp_path / "ours")])


def test_the_tokens_of_a_published_config_are_those_of_its_languages(tmp_path: Path) -> None:
    path = SHARED.parent / "models" / "published_2" / "nemo" / "fc_hybrid_agg.small.yaml"
    if not path.is_file():
        pytest.skip("needs ../shared/models/published_2")
    published = yaml.safe_load(path.read_text())
    total = published["joint"]["num_classes"]
    langs = published["tokenizer"]["langs"]
    sizes = dict(zip(langs, (400, 500, total - 900), strict=True))
    files = {
        each["model_path"].removeprefix("nemo:"): sentencepiece_model_of(["<unk>", *(f"▁{n}" for n in range(1, size))])
        for each, size in zip(langs.values(), sizes.values(), strict=True)
    }
    cut = with_language(published, {}, files, tmp_path, "en")
    assert cut.config["tokenizer"] == langs["en"]
    assert cut.config["decoder"]["vocab_size"] == cut.config["joint"]["num_classes"] == sizes["en"]
    assert cut.config["aux_ctc"]["decoder"]["num_classes"] == sizes["en"]
