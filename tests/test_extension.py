"""Extended tokenizers: old texts, ids and weights remain; the weights of new pieces are means of old ones."""

import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr import finetune, load_recognizer
from asr.apps.convert.huggingface.tokenizer import give_vocabulary as give_json
from asr.apps.convert.nemo import tokenizer as nemo
from asr.apps.doctor.forecast import fresh_model
from asr.base.settings.read import as_mapping
from asr.components.tokenizer.huggingface import HuggingFace
from asr.core.build import build_features, build_labels, build_model, build_tokenizer
from asr.core.data.corpus import read_corpus
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import read_manifest, write_manifest
from asr.core.data.tokenizer_extension import checked_pieces, pieces_for
from asr.core.run.initialization import start_of, with_parts
from asr.core.run.settings import RunSettings
from asr.errors import InputError
from asr.interfaces import Tokenizer
from asr.merge import main as merge_main
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.processes import bundle, finish, resumptions, start
from tests.refusals import mentions, refused
from tests.test_average import save
from tests.test_resume import die_after_the_first_checkpoint
from tests.test_tokenizer import fitted
from tests.tones import sentences, write_corpus

SHORT = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment", "checkpoint"))]
OLD = ["abc gfed", "h h abba", "bade a cab 77 fade", "é'ß"]
NEW = "Abc, B.C (d) “ab” - AbcB Ü aÜb"
CHARACTERS = set(NEW) - set(" abcd")


def unigram_json() -> Tokenizer:
    """A `tokenizer.json` whose model is a table of pieces and scores, without its blank."""
    given = fitted("sentencepiece")
    written = give_json({"name": "sentencepiece", "algorithm": "unigram", "vocab_size": 40}, given.files())
    tokenizer = HuggingFace(vocab_size=40, blank_piece=written.blank_piece)
    tokenizer.load({"tokenizer.json": written.content})
    return tokenizer


TOKENIZERS = {
    "char": lambda: fitted("char"),
    "unigram": lambda: fitted("sentencepiece"),
    "bpe": lambda: fitted("sentencepiece", algorithm="bpe"),
    "json bpe": lambda: fitted("huggingface"),
    "json unigram": unigram_json,
}
EVERY = pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())


@EVERY
def test_old_texts_keep_their_tokens_and_new_pieces_follow_the_old_ones(make: Any) -> None:
    tokenizer: Tokenizer = make()
    before, names = [tokenizer.encode(text) for text in OLD], list(tokenizer.names)
    pieces = pieces_for([NEW, *OLD], tokenizer)
    assert {piece for piece in pieces if len(piece) == 1} == CHARACTERS
    initials = {" A", " B", " (", " “", " -", " Ü"} if any(len(name) > 1 for name in names) else set()
    assert {piece for piece in pieces if len(piece) > 1} >= initials
    assert all(set(piece) & CHARACTERS for piece in pieces)
    tokenizer.extend(pieces)
    assert list(tokenizer.names) == [*names, *pieces]
    assert tokenizer.vocab_size == len(names) + len(pieces)
    assert [tokenizer.encode(text) for text in OLD] == before
    tokens = tokenizer.encode(NEW)
    assert tokenizer.decode(tokens) == NEW
    assert initials <= {tokenizer.names[token] for token in tokens}


@EVERY
def test_an_extended_tokenizer_is_stored_like_any_other_and_can_be_extended_again(make: Any) -> None:
    tokenizer: Tokenizer = make()
    tokenizer.extend(["Ü"])
    tokenizer.extend(["Ö"])
    again: Tokenizer = make()
    again.extend(["Ü", "Ö"])
    assert again.files() == tokenizer.files()
    loaded = make()
    if hasattr(loaded, "blank_piece") or hasattr(loaded, "algorithm"):
        loaded.vocab_size += 2
    loaded.load(tokenizer.files())
    assert loaded.encode("aÜ Öb") == tokenizer.encode("aÜ Öb")
    assert loaded.decode(loaded.encode("aÜ Öb")) == "aÜ Öb"


@pytest.mark.parametrize("make", [TOKENIZERS[name] for name in ("unigram", "bpe", "json unigram")])
def test_a_word_with_new_capitals_is_cut_as_in_lower_case(make: Any) -> None:
    words = ["Abba", "BADE", "(Abc-Cab)", "gfeD"]
    tokenizer: Tokenizer = make()
    lower = {part: tokenizer.encode(part.lower()) for word in words for part in re.findall(r"\w+", word)}
    lengths = {part: [len(tokenizer.names[token].strip()) for token in tokens] for part, tokens in lower.items()}
    tokenizer.extend(pieces_for(words, tokenizer))
    for part, expected in lengths.items():
        names = [tokenizer.names[token] for token in tokenizer.encode(part)]
        assert [len(name.strip()) for name in names if name.strip()] == [length for length in expected if length]
        assert "".join(names).strip() == part


@EVERY
def test_nothing_is_appended_for_texts_that_the_tokenizer_spells(make: Any) -> None:
    assert pieces_for(OLD, make()) == []


@pytest.mark.parametrize(
    ("pieces", "named"),
    [
        ([""], "pieces"),
        (["Ä b"], "pieces ... Ä b"),
        ([" Ä"], "pieces"),
        (["▁"], "pieces"),
        (["Ä▁"], "pieces ... Ä▁"),
        (["Ä" * 101], "pieces ... 100"),
        (["Ä", "Ö", "Ä"], "once ... Ä"),
        (["a"], "cannot spell ... a"),
        (["ab"], "cannot spell ... ab"),
    ],
)
@EVERY
def test_pieces_without_a_new_character_or_with_a_space_are_refused(pieces: list[str], named: str, make: Any) -> None:
    with refused(InputError, f"init.extend_tokenizer ... {named}"):
        checked_pieces(pieces, make(), "init.extend_tokenizer")


@pytest.mark.parametrize("make", [TOKENIZERS[name] for name in ("unigram", "bpe", "json unigram")])
def test_a_piece_may_be_a_word(make: Any) -> None:
    tokenizer: Tokenizer = make()
    tokenizer.extend(checked_pieces(["▁Äh", "ÖÖ"], tokenizer, "init.extend_tokenizer"))
    assert [tokenizer.names[token] for token in tokenizer.encode("Äh aÖÖ")][0::2] == [" Äh", "ÖÖ"]


@pytest.mark.parametrize(("name", "pieces"), [("char", ["Äh"]), ("json bpe", ["Äh"]), ("json bpe", ["▁Ä"])])
def test_a_tokenizer_that_cannot_have_a_piece_refuses_it(name: str, pieces: list[str]) -> None:
    tokenizer = TOKENIZERS[name]()
    with refused(InputError, pieces[0]):
        tokenizer.extend(checked_pieces(pieces, tokenizer, "init.extend_tokenizer"))


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_an_extended_subword_model_is_written_for_nemo_and_transformers(algorithm: str) -> None:
    tokenizer = fitted("sentencepiece", algorithm=algorithm)
    tokenizer.extend(pieces_for([NEW], tokenizer))
    stored = {"name": "sentencepiece", "algorithm": algorithm, "vocab_size": tokenizer.vocab_size}
    names, section, files = nemo.give_vocabulary(stored, tokenizer.files(), tokenizer.pieces)
    back = nemo.take_vocabulary({"tokenizer": section}, {"vocabulary": names}, dict(files), Path("model.nemo"))
    again = build_tokenizer({"tokenizer": back.config})
    again.load(dict(back.files))
    json = give_json(stored, tokenizer.files())
    other = HuggingFace(vocab_size=tokenizer.vocab_size, blank_piece=json.blank_piece)
    other.load({"tokenizer.json": json.content})
    for reader in (again, other):
        assert list(reader.names[2:]) == list(tokenizer.names[2:])
        assert reader.encode(NEW) == tokenizer.encode(NEW)


def extending(model: Path, *overrides: str) -> RunSettings:
    given = [*SHORT, f"init.from={model}", *overrides]
    return with_parts(settings_with(*given), given)


def mean(rows: list[Tensor]) -> Tensor:
    """The plain mean of rows, in float64."""
    return torch.stack(rows).double().mean(dim=0).float()


SPELT = {"A": "a", " A": "a", "Ü": "u", " Ü": "u", "ẞ": "ss", " ẞ": "ss", "!": "", " !": "", "C": "c", " C": "c"}
SPELT_WORD = {" Ab": "ab"}  # of a tokenizer that takes words
TEXTS = ["abc cab abacus", "sub success bass", "a bus", "us", "class curb", "scuba cubs", "bus", "cars rub"] * 8
HEADS = {
    "ctc": ["head=ctc"],
    "intermediate": ["head=ctc_intermediate", "head.num_intermediate=1"],
    "self-conditioned": ["head=ctc_self_conditioned", "head.num_intermediate=1"],
    "consistency": ["head=ctc_consistency"],
    "attention": ["head=ctc_attention", "head.num_heads=2", "head.num_layers=1"],
    "transducer": ["head=transducer", "head.ctc_weight=0.3"],
    "transducer, stateless": ["head=transducer", "head/predictor=stateless"],
    "transducer, stateless with convolution": ["head=transducer", "head/predictor=stateless_conv"],
    "tdt": ["head=tdt"],
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
@pytest.mark.parametrize("tokenizer", ["char", "sentencepiece", "huggingface"])
def test_old_rows_remain_bit_for_bit_and_new_rows_are_means_of_the_rows_that_spell_them(
    tokenizer: str, head: list[str], tmp_path: Path
) -> None:
    sizes = [] if tokenizer == "char" else ["tokenizer.vocab_size=19"]
    path = save(tmp_path / "old.ckpt", f"tokenizer={tokenizer}", *sizes, *head, texts=TEXTS, weights=1)
    settings = extending(path, "normalizer=as_written", "init.extend_tokenizer=texts")
    initial = start_of(settings.init)
    assert initial is not None
    new = build_tokenizer(settings.components)
    initial.extend_tokenizer(new, settings, ["A Abc !", "Ü aÜ", "ẞ sẞ", "C aC"])
    old = initial.tokenizer()
    spelt = SPELT | (SPELT_WORD if old.takes_words else {})
    assert {*new.names[old.vocab_size :]} == {name for name in spelt if tokenizer != "char" or len(name) == 1}
    model = build_model(settings.components, new, build_features(settings.components), build_labels({}))
    initial.load(model)
    num_old, num_new, changed = old.vocab_size, new.vocab_size, set()

    def check_rows(loaded: Tensor, given: Tensor) -> None:
        assert torch.equal(loaded[:num_old], given[:num_old])
        names = list(old.names)
        for row, name in zip(loaded[num_old:num_new], new.names[num_old:], strict=True):
            text = spelt[name]
            exact = name.replace(name.strip(), text)  # with the space of the name
            ids = [names.index(exact)] if text and exact in names else old.encode(text)
            torch.testing.assert_close(row, mean([given[token] for token in ids or range(num_old)]))

    for name, loaded in model.state_dict().items():
        given = initial.bundle.weights[name]
        if loaded.shape == given.shape:
            assert torch.equal(loaded, given), name
            continue
        changed.add(name)
        by_row = loaded.shape[1:] == given.shape[1:]
        loaded, given = (loaded, given) if by_row else (loaded.T, given.T)
        durations = len(given) - num_old  # a joiner's last rows
        check_rows(loaded[: len(loaded) - durations], given[:num_old])
        assert torch.equal(loaded[num_new:], given[num_old:])
    assert changed, "the output layer has new rows"
    if "head=ctc_self_conditioned" in head:
        assert "head.condition.weight" in changed


def written(text: str) -> str:
    """The text with a capital and a mark, which the model in `fluent` lacks."""
    return f"{text.capitalize()}!"


@pytest.fixture(scope="module")
def cased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cased")
    splits = {"train": sentences(24, seed=4), "valid": sentences(4, seed=5), "test": sentences(4, seed=6)}
    write_corpus(folder, splits)
    for name in splits:
        lines = [replace(each, text=written(each.text)) for each in read_manifest(folder / f"{name}.jsonl")]
        write_manifest(folder / f"{name}.jsonl", lines)
    return folder


def few_steps(model: Path, corpus: Path, run_dir: Path, *more: str) -> RunSettings:
    """Settings of four steps from a model on cased texts."""
    steps = ["trainer.max_epochs=-1", "trainer.max_steps=4", "checkpoint.every_steps=1", "num_threads=1"]
    given = [f"run_dir={run_dir}", *steps, "normalizer=as_written", "init.extend_tokenizer=texts", *more]
    return extending(model, *tone_corpus(corpus), *given)


def test_before_the_first_step_the_model_writes_what_it_wrote(fluent: Path, cased: Path, tmp_path: Path) -> None:
    """The rows of a letter and its capital are equal, and the old one wins."""
    train(few_steps(fluent / "run", cased, tmp_path / "run", "optimizer.lr=0.0", "init.frozen=[encoder.*]"))
    old, new = load_recognizer(fluent / "run"), load_recognizer(tmp_path / "run")
    assert new.model.tokenizer.vocab_size > old.model.tokenizer.vocab_size
    for each in read_manifest(fluent / "test.jsonl")[:8]:
        assert new.transcribe(each.audio_filepath).text == old.transcribe(each.audio_filepath).text


@pytest.fixture(scope="module")
def subwords(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer whose size is a setting."""
    run_dir = tmp_path_factory.mktemp("subwords") / "run"
    size = ["tokenizer=sentencepiece", "tokenizer.vocab_size=20", "head=tdt"]
    train(
        settings_with(
            *TINY, *tone_corpus(tones), f"run_dir={run_dir}", "trainer.max_steps=2", "normalizer=as_written", *size
        )
    )
    return run_dir


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_killed_and_resumed_run_is_bit_identical_and_its_bundle_is_of_the_larger_tokenizer(
    world_size: int, subwords: Path, cased: Path, tmp_path: Path
) -> None:
    processes = [] if world_size == 1 else ["trainer.strategy=ddp", "trainer.devices=2"]

    def begin(name: str, **before: Any) -> int:
        given = as_mapping(few_steps(subwords, cased, tmp_path / name, *processes))
        return finish(start(given, tmp_path / "log", world_size=world_size, **before))

    assert begin("whole") == 0, (tmp_path / "log").read_text()
    assert begin("parts", before=die_after_the_first_checkpoint) == -signal.SIGKILL
    assert begin("parts") == 0, (tmp_path / "log").read_text()
    assert [step for step, _ in resumptions(tmp_path / "parts")] == [1]
    assert bundle(tmp_path / "parts") == bundle(tmp_path / "whole")
    tokenizer = load_recognizer(tmp_path / "parts").model.tokenizer
    text = read_manifest(cased / "train.jsonl")[0].text
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size > 20


def test_an_adapter_has_the_larger_head_and_is_merged(fluent: Path, cased: Path, tmp_path: Path) -> None:
    adapter = ["adapter=lora", "adapter.trained=[head.*]", "optimizer.lr=0.01"]
    train(few_steps(fluent / "run", cased, tmp_path / "run", *adapter))
    arguments = [str(tmp_path / "run"), "--base", str(fluent / "run"), "-o", str(tmp_path / "merged")]
    merge_main(arguments)
    merged = load_recognizer(tmp_path / "merged")
    assert merged.model.tokenizer.encode("A!")
    sound = read_manifest(cased / "test.jsonl")[0].audio_filepath
    assert (
        merged.transcribe(sound).text == load_recognizer(tmp_path / "run", base=fluent / "run").transcribe(sound).text
    )


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["init.extend_tokenizer=[]"], "init.extend_tokenizer"),
        (["init.extend_tokenizer=text"], "init.extend_tokenizer ... texts"),
        (["init.extend_tokenizer=[1]"], "init.extend_tokenizer"),
        (["init.extend_tokenizer=texts", "init.from=null"], "init.extend_tokenizer ... init.from"),
    ],
)
def test_invalid_settings_are_refused(overrides: list[str], named: str) -> None:
    with refused(InputError, named):
        settings_with("init.from=model", *overrides)


def test_only_the_tokenizer_of_the_model_is_extended(fluent: Path, cased: Path, tmp_path: Path) -> None:
    with refused(InputError, "init.extend_tokenizer ... init.from", cure="tokenizer=..."):
        train(few_steps(fluent / "run", cased, tmp_path / "run", "tokenizer=sentencepiece", "tokenizer.vocab_size=20"))


def test_texts_that_the_model_cannot_spell_are_refused_with_the_setting(
    fluent: Path, cased: Path, tmp_path: Path
) -> None:
    with refused(InputError, "train ... '!'", cure="init.extend_tokenizer=texts"):
        train(few_steps(fluent / "run", cased, tmp_path / "run", "init.extend_tokenizer=null"))


@pytest.mark.parametrize(
    ("overrides", "num_findings"),
    [
        (["init.extend_tokenizer=texts"], 0),
        (["init.extend_tokenizer=null", "tokenizer=char"], 1),
        (["init.extend_tokenizer=null", "tokenizer=char", "init.parts=[encoder]"], 0),
    ],
)
def test_the_doctor_reports_a_tokenizer_that_throws_weights_away(
    overrides: list[str], num_findings: int, subwords: Path, cased: Path, tmp_path: Path
) -> None:
    settings = few_steps(subwords, cased, tmp_path / "run", *overrides)
    corpus = read_corpus(settings.corpus, str, IndexCache().utterances)
    found = [each for each in fresh_model(settings, corpus, corpus).findings if each.kind == "tokenizer"]
    assert len(found) == num_findings
    assert all("init.extend_tokenizer=texts" in each.advice for each in found)


def test_one_command_extends_the_tokenizer(fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_corpus(tmp_path, {"mine": sentences(60, seed=3)})
    lines = [replace(each, text=written(each.text)) for each in read_manifest(tmp_path / "mine.jsonl")]
    write_manifest(tmp_path / "mine.jsonl", lines)
    given = [str(fluent / "run"), str(tmp_path / "mine.jsonl"), "--output", str(tmp_path / "mine"), "--dry-run"]
    few = ["trainer.max_epochs=-1", "trainer.max_steps=3", "data.batch_seconds=10", "normalizer=as_written"]
    finetune.main([*given, "--extend", "--set", *few])
    printed = capsys.readouterr().out
    assert all(each.text.endswith("!") for each in read_manifest(tmp_path / "mine/data/train.jsonl"))
    assert mentions(printed, "asr.train ... init.extend_tokenizer=texts ... adapter.trained=[head.*]")
