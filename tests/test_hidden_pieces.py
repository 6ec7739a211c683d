"""Pieces that spell no text or a byte, in tokenizers of published models: texts, words and conversion."""

import io
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from asr.apps.convert.huggingface.tokenizer import give_vocabulary, sentencepiece_of, take_vocabulary
from asr.apps.convert.nemo import tokenizer as nemo_tokenizer
from asr.apps.convert.sentences import SENTENCES, tokens_of
from asr.apps.export.exported_folder import token_files
from asr.base.text.words import spell
from asr.components.decode.fusion.hotwords import compiled, read_phrases
from asr.convert import main
from asr.core.build import build_tokenizer
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.errors import InputError
from asr.interfaces import Tokenizer
from asr.model import main as describe
from tests import parakeet
from tests.nemo import as_nemo_3, nemo_config, nemo_files, tensors, write_tar
from tests.refusals import refused
from tests.test_nemo_transducers import PUBLISHED
from tests.test_parakeet import SUBWORDS, bundle, run_transformers, sound

V3, NEMOTRON = PUBLISHED / "parakeet-tdt-0.6b-v3" / "tokenizer.json", PUBLISHED / "nemotron-3.5-asr-streaming-0.6b"
TAGS = ["<|en|>", "<|nospeech|>", "<en-US>", "<EOU>", "<EOB>", "<pad>"]
DIGITS = list("0123456789")
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="../shared/models/published is missing")


@cache
def model() -> bytes:
    """Return a SentencePiece model with tags, with digits as user-defined pieces, with bytes and with <s> and </s>."""
    output = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(
            ["the quick brown fox jumps over the lazy dog", "pack my box with liquor", "in we sold"]
        ),
        model_writer=output,
        model_type="bpe",
        vocab_size=330,
        hard_vocab_limit=False,
        character_coverage=1.0,
        byte_fallback=True,
        user_defined_symbols=[*TAGS, *DIGITS],
        minloglevel=2,
    )
    return output.getvalue()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle that was converted from a tiny CTC model with this tokenizer."""
    folder = tmp_path_factory.mktemp("tagged")
    processor = sentencepiece.SentencePieceProcessor(model_proto=model())
    pieces = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    files = nemo_files(nemo_config(pieces), tensors(len(pieces))) | {"0123_tokenizer.model": model()}
    archive = write_tar(folder / "tagged.nemo", as_nemo_3(files))
    assert main([str(archive), "-o", str(folder / "ours")]) == 0
    return folder / "ours"


@pytest.fixture(scope="module")
def tokenizer(converted: Path) -> Tokenizer:
    return load_recognizer(converted).model.tokenizer


def ids(tokenizer: Tokenizer, *names: str) -> list[int]:
    """Return the ids of pieces with these names."""
    return [list(tokenizer.names).index(name) for name in names]


@pytest.mark.parametrize("text", ["in 2200 we sold 7", "żółć 你好", "fox 🦊 2"])
def test_digits_and_characters_that_are_bytes_survive(text: str, tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_text_equals_nemos_without_the_hidden_pieces(tokenizer: Tokenizer) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model())
    text = "the quick fox 42 żółć"
    tokens = tokenizer.encode(text)
    tagged = [*ids(tokenizer, "<|en|>", "<s>"), *tokens[:2], *ids(tokenizer, "<EOB>"), *tokens[2:]]
    tagged += ids(tokenizer, "<en-US>", "<EOU>", "</s>", "<pad>")
    assert tokenizer.decode(tagged) == text
    theirs = processor.decode([token - 1 for token in tagged])
    assert re.sub("|".join(map(re.escape, TAGS)), "", theirs).strip() == text != theirs


def test_a_hidden_piece_does_not_end_a_word_and_belongs_to_none(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("the fox")
    [first, second] = spell(tokens, tokenizer.pieces)
    at = second.first + 1
    tagged = [*tokens[:at], *ids(tokenizer, "<|en|>"), *tokens[at:], *ids(tokenizer, "<EOU>")]
    words = spell(tagged, tokenizer.pieces)
    assert [word.text for word in words] == ["the", "fox"]
    assert (words[0].first, words[0].last) == (first.first, first.last)
    assert (words[1].first, words[1].last) == (second.first, second.last + (at <= second.last))


def test_a_character_of_several_bytes_has_the_positions_of_all_of_them(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("你 a")
    [word, _] = spell(tokens, tokenizer.pieces)
    names = [tokenizer.names[token] for token in tokens]
    assert names[word.first : word.last + 1] == [f"<0x{byte:02X}>" for byte in "你".encode()]


def test_hotwords_that_beam_search_cannot_match_are_reported(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("fox\nżółć\nthe <|en|> box\n")
    hotwords = compiled(read_phrases(str(tmp_path / "names.txt")), 1.0, tokenizer, str.strip)
    assert hotwords.phrases == ["fox"]
    assert list(hotwords.impossible) == ["żółć", "the <|en|> box"]


def test_bytes_that_are_no_character_are_shown_as_replaced(tokenizer: Tokenizer) -> None:
    tokens = [*tokenizer.encode("a"), *ids(tokenizer, "<0xE4>"), *tokenizer.encode(" b"), *ids(tokenizer, "<0xBD>")]
    assert tokenizer.decode(tokens) == "a\N{REPLACEMENT CHARACTER} b\N{REPLACEMENT CHARACTER}"


def test_the_command_counts_hidden_pieces_and_names_stay_unique(
    converted: Path, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(converted), "--to", "nemo", "-o", str(tmp_path / "theirs.nemo")]) == 0
    capsys.readouterr()
    assert main([str(tmp_path / "theirs.nemo"), "-o", str(tmp_path / "again")]) == 0
    assert f"{len(TAGS) + 2} hidden pieces" in capsys.readouterr().out  # <s> and </s> are control pieces
    assert read_bundle(tmp_path / "again").files == read_bundle(converted).files
    assert len(set(tokenizer.names)) == tokenizer.vocab_size
    assert "<|en|>" in token_files(tokenizer, [], blank_last=False)["tokens.txt"]
    assert describe([str(converted), "--tokens"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"'<EOU>' \(hidden\)$", printed, re.MULTILINE)


@pytest.mark.parametrize("hidden", [{"1": 2}, [0], [10_000], ["<s>"], [True], [1.5]])
def test_a_damaged_list_of_hidden_pieces_is_refused_in_one_line(hidden: Any, converted: Path, tmp_path: Path) -> None:
    bundle = read_bundle(converted)
    files = bundle.files | {"hidden_pieces.json": json.dumps(hidden).encode()}
    with refused(InputError, "hidden_pieces.json ... from 1 to"):
        build_tokenizer(bundle.config).load(files)


def test_a_blank_never_has_the_name_of_a_piece(tmp_path: Path) -> None:
    """<pad>, the usual name of Parakeet's blank, is a piece of Parakeet-TDT v3."""
    bundle(tmp_path / "ours", *SUBWORDS, "normalizer=as_written")
    stored = read_bundle(tmp_path / "ours")
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(stored.files["tokenizer.model"])
    proto.pieces[2].piece = "<pad>"
    (tmp_path / "ours" / "tokenizer.model").write_bytes(proto.SerializeToString())
    assert main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "theirs")]) == 0
    waveforms = [sound(2.0), sound(1.1, seed=1)]
    _, expected = run_transformers(tmp_path / "theirs", waveforms)
    ours = load_recognizer(tmp_path / "ours").transcribe(waveforms, sample_rate=parakeet.SAMPLE_RATE)
    assert [transcript.text for transcript in ours] == expected


def loaded(config: dict[str, Any], files: dict[str, bytes]) -> Tokenizer:
    tokenizer = build_tokenizer({"tokenizer": config})
    tokenizer.load(files)
    return tokenizer


def random_texts(tokenizer: Tokenizer, count: int) -> list[str]:
    """Return texts of random pieces of a tokenizer, with single spaces."""
    import random

    draw = random.Random(0)
    pieces = [piece for piece in tokenizer.pieces if piece and "⁇" not in piece]
    texts = ("".join(draw.choices(pieces, k=draw.randint(1, 20))) for _ in range(count))
    return [" ".join(text.split()) for text in texts]


@needs_published
def test_parakeet_v3_writes_numbers_and_hides_its_tags() -> None:
    vocabulary = take_vocabulary(V3.read_bytes(), 8193, 8192)
    tokenizer = loaded(vocabulary.config, vocabulary.files)
    covered = [sentence for sentence in SENTENCES if tokens_of(tokenizer, sentence)]
    assert len(covered) > 40
    assert [tokenizer.decode(tokenizer.encode(sentence)) for sentence in covered] == covered
    assert len(vocabulary.hidden) == 263  # 262 between <| and |>, and <pad>
    assert not set(vocabulary.hidden) & set(DIGITS)
    tagged = [*ids(tokenizer, "<|en|>"), *tokenizer.encode("in 2025 we"), *ids(tokenizer, "<|endoftext|>", "<pad>")]
    assert tokenizer.decode(tagged) == "in 2025 we"


@needs_published
def test_texts_of_parakeet_v3_equal_those_of_transformers_without_tags() -> None:
    from transformers import AutoTokenizer

    vocabulary = take_vocabulary(V3.read_bytes(), 8193, 8192)
    tokenizer, theirs = loaded(vocabulary.config, vocabulary.files), AutoTokenizer.from_pretrained(V3.parent)
    for sentence in [sentence for sentence in SENTENCES if tokens_of(tokenizer, sentence)]:
        tokens = [*ids(tokenizer, "<|nospeech|>"), *tokenizer.encode(sentence), *ids(tokenizer, "<|en|>")]
        numbers = [token - 1 for token in tokens]  # the blank is their last piece
        text = theirs.decode(numbers, group_tokens=False)
        assert text.replace("<|nospeech|>", "").replace("<|en|>", "").strip() == tokenizer.decode(tokens) == sentence


@needs_published
def test_parakeet_v3s_tokenizer_becomes_a_sentencepiece_model_with_the_same_tokens() -> None:
    vocabulary = take_vocabulary(V3.read_bytes(), 8193, 8192)
    theirs = loaded(vocabulary.config, vocabulary.files)
    model = sentencepiece_of(vocabulary.config, vocabulary.files["tokenizer.json"])
    again = nemo_tokenizer.take_vocabulary({"tokenizer": {"type": "bpe"}}, {}, {"tokenizer.model": model}, Path("v3"))
    ours = loaded(again.config, again.files)
    assert again.files["hidden_pieces.json"] == vocabulary.files["hidden_pieces.json"]
    assert ours.names[2:] == theirs.names[2:]
    for text in [*SENTENCES, *random_texts(theirs, 1_000)]:
        assert tokens_of(ours, text) == tokens_of(theirs, text), text


@needs_published
def test_nemotrons_tokenizer_becomes_a_tokenizer_of_transformers_with_the_same_tokens() -> None:
    model = (NEMOTRON / "tokenizer.model").read_bytes()
    section = {"tokenizer": {"type": "bpe"}}
    vocabulary = nemo_tokenizer.take_vocabulary(section, {}, {"tokenizer.model": model}, Path("nemotron"))
    assert len(vocabulary.hidden) == 39
    theirs = give_vocabulary(vocabulary.config, vocabulary.files)
    settings = {"name": "huggingface", "vocab_size": 13_088, "blank_piece": theirs.blank_piece}
    ours, others = loaded(vocabulary.config, vocabulary.files), loaded(settings, {"tokenizer.json": theirs.content})
    for text in [*SENTENCES, *random_texts(ours, 1_000)]:
        assert tokens_of(ours, text) == tokens_of(others, text), text


def test_a_tokenizer_that_sentencepiece_cannot_express_is_refused_in_one_line(tmp_path: Path) -> None:
    assert main([str(parakeet.save(tmp_path / "parakeet", intermediate_size=32)), "-o", str(tmp_path / "ours")]) == 0
    path = tmp_path / "ours" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    path.write_text(json.dumps(tokenizer))
    with refused(InputError, "tokenizer.json ... SentencePiece; got Lowercase"):
        main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "theirs.nemo")])


def test_a_model_of_transformers_becomes_an_archive_of_nemo_with_equal_texts(tmp_path: Path) -> None:
    assert main([str(parakeet.save(tmp_path / "parakeet", intermediate_size=32)), "-o", str(tmp_path / "ours")]) == 0
    assert main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "theirs.nemo")]) == 0
    assert main([str(tmp_path / "theirs.nemo"), "-o", str(tmp_path / "again")]) == 0
    waveforms = [sound(2.0), sound(1.1, seed=1)]
    first, second = (
        load_recognizer(tmp_path / name).transcribe(waveforms, sample_rate=parakeet.SAMPLE_RATE)
        for name in ("ours", "again")
    )
    # The unknown piece, which a trained model never recognises, has another text in each library.
    assert [transcript.text.replace(" unk", "") for transcript in first] == [transcript.text for transcript in second]
    assert all(transcript.text for transcript in first)
