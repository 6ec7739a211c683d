"""Tokenizers: properties of each tokenizer in conf/tokenizer/, and options that SentencePiece needs."""

import json
import re
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asr.base.text.normalize import basic
from asr.components.tokenizer.char import Char
from asr.components.tokenizer.huggingface import HuggingFace
from asr.components.tokenizer.sentencepiece import SentencePiece
from asr.core.build import build_tokenizer, component
from asr.errors import InputError
from asr.interfaces import BLANK_ID, Tokenizer
from tests.conftest import CONF, resolved
from tests.refusals import mentions, refused

ALPHABET = "abcdefgh'éß7йक"
NAMES = sorted({path.stem for path in (CONF / "tokenizer").glob("*.yaml")} - {"aggregate"})  # which cannot be fitted
SMALL = {"vocab_size": 40}  # for tokenizers with this setting; the default suits hours of speech

WORDS = st.text(alphabet=ALPHABET, min_size=1, max_size=8)
TEXTS = st.lists(WORDS, max_size=6).map(lambda words: basic(" ".join(words)))


def training_texts() -> list[str]:
    """Return two hundred sentences of different artificial words, with every character of the alphabet."""
    draw = np.random.default_rng(0)
    words = ["".join(draw.choice(list(ALPHABET), draw.integers(1, 6))) for _ in range(200)]
    return [basic(" ".join(draw.choice(words, 5))) for _ in range(200)] + [ALPHABET]


def unfitted(name: str, **settings: Any) -> Tokenizer:
    """Make the tokenizer of conf/tokenizer/<name>.yaml with a small vocabulary."""
    config = resolved(f"tokenizer={name}")["tokenizer"]
    return build_tokenizer({"tokenizer": config | {key: SMALL[key] for key in SMALL if key in config} | settings})


def fitted(name: str, **settings: Any) -> Tokenizer:
    tokenizer = unfitted(name, **settings)
    tokenizer.fit(training_texts())
    return tokenizer


FITTED = {
    **{name: fitted(name) for name in NAMES},
    "sentencepiece-bpe": fitted("sentencepiece", algorithm="bpe"),
}
EVERY = pytest.mark.parametrize("tokenizer", FITTED.values(), ids=FITTED.keys())


@EVERY
@settings(deadline=None)
@given(text=TEXTS)
def test_texts_survive_encoding_and_no_token_is_the_blank(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert all(BLANK_ID < token < tokenizer.vocab_size for token in tokens)


@EVERY
@settings(deadline=None)
@given(data=st.data())
def test_any_tokens_decode_to_words_separated_by_single_spaces(tokenizer: Tokenizer, data: Any) -> None:
    tokens = data.draw(st.lists(st.integers(BLANK_ID + 1, tokenizer.vocab_size - 1)))
    text = tokenizer.decode(tokens)
    assert text == " ".join(text.split())


@EVERY
@pytest.mark.parametrize(
    ("text", "character"),
    [
        ("zab", "z"),  # at the start of a text
        ("ab zab", "z"),  # at the start of a word
        ("ab azb c", "z"),  # within a word
        ("ab cz", "z"),  # at the end of a word
        ("ab z", "z"),
        ("ab zyz", "z"),  # the first of several unknown characters
        ("abe\u0323", "\u0323"),  # a combining mark on a letter that is known
        ("ab 😀 c", "😀"),  # a code point above 16 bits
        ("a😀b", "😀"),
        ("AB", "A"),  # the training text has only lower case
    ],
)
def test_a_character_absent_from_the_training_text_is_an_error_that_names_it(
    tokenizer: Tokenizer, text: str, character: str
) -> None:
    with pytest.raises(InputError) as error:  # without a stop, because callers name the utterance after it
        tokenizer.encode(text)
    assert mentions(str(error.value), f"{character!r} ... training text")


@EVERY
def test_a_fitted_tokenizer_is_saved_and_loaded(tokenizer: Tokenizer) -> None:
    name = type(tokenizer).__name__.lower()
    fresh = unfitted(name)
    fresh.load(tokenizer.files())
    text = "abc d'éf ßйक 77"
    assert fresh.encode(text) == tokenizer.encode(text)
    assert fresh.decode(fresh.encode(text)) == text
    assert fresh.files() == tokenizer.files()
    assert fresh.vocab_size == tokenizer.vocab_size


def test_characters_are_numbered_by_code_point_after_the_blank() -> None:
    tokenizer = Char()
    tokenizer.fit(iter(["b a", "cab"]))
    assert tokenizer.vocab_size == 5
    assert tokenizer.encode(" abc") == [1, 2, 3, 4]


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_training_on_equal_texts_gives_byte_identical_subwords(algorithm: str) -> None:
    first, second = (SentencePiece(algorithm=algorithm, vocab_size=50) for _ in range(2))
    first.fit(training_texts())
    second.fit(iter(training_texts()))
    assert first.files() == second.files()


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_the_requested_number_of_subwords_is_made_and_some_have_several_characters(algorithm: str) -> None:
    tokenizer = SentencePiece(algorithm=algorithm, vocab_size=60)
    tokenizer.fit(training_texts())
    (model,) = tokenizer.files().values()
    assert sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size() == 60
    for text in training_texts():
        assert len(tokenizer.encode(text)) < len(text)


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@pytest.mark.parametrize(("vocab_size", "reason"), [(5000, "too high"), (5, "smaller than required_chars")])
def test_a_vocab_size_that_is_too_large_or_too_small_for_the_text_is_a_clear_error(
    algorithm: str, vocab_size: int, reason: str
) -> None:
    tokenizer = SentencePiece(algorithm=algorithm, vocab_size=vocab_size)
    with refused(InputError, f"tokenizer.vocab_size; got {vocab_size}"):
        tokenizer.fit(training_texts())
    with refused(InputError, reason):
        tokenizer.fit(training_texts())


def test_an_empty_text_is_an_error() -> None:
    with pytest.raises(InputError):
        SentencePiece(algorithm="unigram", vocab_size=50).fit([])


def test_an_unknown_algorithm_is_an_error() -> None:
    with refused(InputError, "tokenizer.algorithm", got="word"):
        component("tokenizer", {"name": "sentencepiece", "algorithm": "word", "vocab_size": 50})


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_a_very_long_line_is_not_dropped(algorithm: str) -> None:
    """By default SentencePiece silently drops lines of more than 4192 bytes."""
    long_line = " ".join(["abc dab"] * 2500 + ["q"])
    tokenizer = SentencePiece(algorithm=algorithm, vocab_size=40)
    tokenizer.fit([*training_texts(), long_line])
    assert tokenizer.decode(tokenizer.encode("aqa")) == "aqa"


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_a_rare_character_is_covered(algorithm: str) -> None:
    """By default SentencePiece leaves the rarest 0.05 % of characters uncovered."""
    tokenizer = SentencePiece(algorithm=algorithm, vocab_size=40)
    tokenizer.fit([*training_texts() * 20, "q"])
    assert tokenizer.decode(tokenizer.encode("aqa")) == "aqa"


def test_subwords_do_not_change_the_text() -> None:
    """asr.base.text.normalize normalises; SentencePiece's own normalisation would turn ﬁ into fi."""
    tokenizer = SentencePiece(algorithm="unigram", vocab_size=42)
    tokenizer.fit([*training_texts(), "ﬁ ² Å"])
    assert tokenizer.decode(tokenizer.encode("ﬁ ² Å")) == "ﬁ ² Å"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reserved", ["<unk>", "<blank>", "<s>", "</s>", "<pad>", "▁", "a▁b", "▅", "⁇"])
def test_a_text_with_the_name_of_a_special_token_is_trained_or_refused_by_this_name(name: str, reserved: str) -> None:
    tokenizer, text = unfitted(name, **({"vocab_size": 60} if name != "char" else {})), f"a {reserved} b"
    problem = ""
    try:
        tokenizer.fit([*training_texts(), text, text])
    except InputError as error:
        problem = str(error)
    if problem:
        names = "|".join(map(re.escape, (reserved, "▁")))
        assert re.search(rf"must not contain '({names})'.*: 2\).*tokenizer=char", problem)
    else:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_trained_tokenizer_names_the_reserved_piece_of_a_text() -> None:
    pytest.importorskip("tokenizers")
    with refused(InputError, "'<unk>' ... 'ab <unk>'"):
        FITTED["huggingface"].encode("ab <unk>")


def byte_level(alphabet: list[str] | None = None, **options: Any) -> tuple[HuggingFace, Any]:
    """Train a byte-level BPE as the tokenizers library does; also return the library's own tokenizer."""
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, **options)
    theirs.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|blank|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet() if alphabet is None else alphabet,
        show_progress=False,
    )
    theirs.train_from_iterator([*training_texts(), "größe wir müssen 日本語 " * 9], trainer)
    ours = HuggingFace(vocab_size=theirs.get_vocab_size(), blank_piece="<|blank|>")
    ours.load({"tokenizer.json": theirs.to_str().encode()})
    return ours, theirs


BYTE_LEVEL = byte_level()


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_byte_level_bpe_spells_every_text(text: str) -> None:
    ours, theirs = BYTE_LEVEL
    assume("<|blank|>" not in text)
    tokens = ours.encode(text)
    assert tokens == theirs.encode(text, add_special_tokens=False).ids
    assert ours.decode(tokens) == " ".join(text.split())


@settings(deadline=None)
@given(tokens=st.lists(st.integers(1, 399)))
def test_any_tokens_of_a_byte_level_bpe_decode_as_in_the_library(tokens: list[int]) -> None:
    ours, theirs = BYTE_LEVEL
    assert ours.decode(tokens) == " ".join(theirs.decode(tokens, skip_special_tokens=False).split())


def test_the_names_of_a_byte_level_bpe_are_unique_and_texts_where_these_are_whole() -> None:
    tokenizer, _ = BYTE_LEVEL
    assert len({*tokenizer.names}) == tokenizer.vocab_size == len(tokenizer.pieces)
    assert {"a", " ", "<0xC3>", "<0xFF>", "ß"} <= {*tokenizer.names}


def test_a_byte_without_a_piece_is_an_error_that_names_the_character() -> None:
    """The library itself leaves it out of the text."""
    tokenizer, _ = byte_level(alphabet=[])
    with refused(InputError, "character", got="z"):
        tokenizer.encode("a z")


def test_a_byte_level_bpe_is_not_extended() -> None:
    tokenizer, _ = byte_level(alphabet=[])
    with refused(InputError, "tokenizer.json", got="z"):
        tokenizer.extend(["z"])


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a+)+b"}, "behavior": "Isolated", "invert": False}),
        ("decoder", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}),
        ("pre_tokenizer", None),
    ],
)
def test_a_byte_level_bpe_with_a_part_that_asr_does_not_run_is_refused(part: str, value: Any) -> None:
    tokenizer, theirs = BYTE_LEVEL
    content = json.loads(theirs.to_str()) | {part: value}
    with refused(InputError, part):
        tokenizer.load({"tokenizer.json": json.dumps(content).encode()})
