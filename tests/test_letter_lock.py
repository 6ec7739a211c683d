"""A lock on letters: no decoder writes a masked token, and nothing else changes."""

# ruff: noqa: RUF001  letters that look alike are tested here

import math
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import soundfile
import torch
from torch import Tensor

from asr import Stream
from asr.apps.check.decoders import with_rare_blanks
from asr.apps.check.network import LETTERS, NUM_MEL_BINS, SMALL, model_of, overridden
from asr.apps.convert.huggingface.tokenizer import take_vocabulary
from asr.base.kernels.token_mask import TokenMask
from asr.base.settings.conf import default_settings
from asr.base.text.alphabets import find_alphabet, letters_of
from asr.base.text.words import piece_of
from asr.components.decode.fusion.shallow_fusion import NEVER
from asr.components.head.ctc import CTC
from asr.core.build import build_decoder, build_features, build_model, build_tokenizer, component
from asr.core.checkpoint.bundle import Bundle, replace_bundle
from asr.core.checkpoint.load import model_config
from asr.core.hub.models import load_recognizer as load
from asr.core.recognition.confidence import UNCALIBRATED
from asr.core.recognition.letter_lock import allowed_tokens, lock
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.export import main as export
from asr.interfaces import BLANK_ID, Encoded
from asr.transcribe import main as transcribe
from asr.tune import main as tune
from tests.conftest import TINY, resolved
from tests.refusals import refused
from tests.test_heads_with_decoders import ALONE, DECODERS, HEADS, chosen, small
from tests.test_hidden_pieces import V3, needs_published
from tests.test_streaming import TRANSDUCERS, final_text, speech, streamed, streaming_recognizer, transducer, whole
from tests.tones import SAMPLE_RATE, speak

TRIALS = 10_000
SLOW = ("transducer_beam", "monotonic_beam", "joint_beam", "attention_rescoring")  # decoders that have fewer trials
FEW = 60
V = len(LETTERS) + 1


def with_tokens(head: Any, allowed: list[bool]) -> Any:
    """Return a copy of a head that writes only the allowed tokens, (V,)."""
    restricted = deepcopy(head)
    restricted.restrict(torch.tensor(allowed))
    return restricted


def needs(decode: dict[str, Any]) -> set[str]:
    """Return the parts of a head that a decoder needs."""
    return {*component("decode", decode).func.needs}  # type: ignore[attr-defined]


@cache
def model(head: str) -> tuple[dict[str, Any], Model]:
    """Make a model with random weights whose blanks are rare; return it with the config of its head."""
    config = small(resolved(*chosen(head)))["head"]
    config = overridden(config, SMALL | {"num_intermediate": 1})
    torch.manual_seed(1)
    made = model_of(overridden(default_settings("encoder", "conformer_xs"), SMALL), config)
    with torch.no_grad():
        for parameter in made.head.parameters():  # type: ignore[attr-defined]
            parameter.mul_(3.0)  # so that the tokens differ
    with_rare_blanks(made)
    return config, made.eval()


def pairs() -> list[tuple[str, str]]:
    """List the heads with the decoders whose needs they meet."""
    return [
        (head, decode)
        for head in [*HEADS, *ALONE]
        for decode in DECODERS
        if all(
            getattr(model(head)[1].head, need, None) is not None for need in needs(default_settings("decode", decode))
        )
    ]


PAIRS = pairs()


def recognizer(head: str, decode: str, allowed: list[bool] | None = None) -> Recognizer:
    """Make a recogniser with a decoder that considers all tokens; None: all tokens are allowed, without a lock."""
    config, made = model(head)
    own = Model(made.normalize, made.tokenizer, made.features, made.encoder, made.head)
    if allowed is not None:
        own.head = with_tokens(made.head, allowed)
    search = overridden(default_settings("decode", decode), {"beam_size": 4, "max_symbols": 2})
    return Recognizer(own.eval(), build_decoder({"decode": search, "head": config}, own), UNCALIBRATED)


def frames(number: int, dim: int) -> Encoded:
    """Draw the output of an encoder for utterances of 1 to 5 frames."""
    lengths = torch.randint(1, 6, (number,))
    return Encoded(3 * torch.randn(number, 5, dim), lengths, {})


@pytest.mark.parametrize(("head", "decode"), PAIRS)
def test_no_hypothesis_of_random_trials_has_a_masked_token(head: str, decode: str) -> None:
    """10,000 trials over all pairs of head and decoder; each is an utterance, with one mask for each batch."""
    free = recognizer(head, decode)
    number, batch = FEW if decode in SLOW else TRIALS // sum(name not in SLOW for _, name in PAIRS) + 1, 20
    num_masked = 0
    for seed in range(math.ceil(number / batch)):
        torch.manual_seed(seed)
        allowed = [True, *(torch.rand(V - 1) < 0.6).tolist()]
        encoded = frames(batch, free.model.encoder.output_dim)
        for nbest in recognizer(head, decode, allowed).hypotheses(encoded):
            assert nbest
            for hypothesis in nbest:
                assert hypothesis.score > NEVER
                assert all(allowed[token] for token in hypothesis.tokens)
        num_masked += sum(not allowed[token] for [best, *_] in free.hypotheses(encoded) for token in best.tokens)
    assert num_masked > number / 2, "without the lock, the masked tokens are written"


@pytest.mark.parametrize(("head", "decode"), PAIRS)
def test_a_mask_that_allows_all_tokens_changes_no_bit(head: str, decode: str) -> None:
    encoded = frames(8, recognizer(head, decode).model.encoder.output_dim)
    assert recognizer(head, decode, [True] * V).hypotheses(encoded) == recognizer(head, decode).hypotheses(encoded)


@pytest.mark.parametrize("head", HEADS)
def test_the_encoder_and_the_losses_see_all_tokens(head: str) -> None:
    """A self-conditioned head feeds its own log_probs to the encoder."""
    made, own = model(head)[1], recognizer(head, "greedy", [True, False, *[True] * (V - 2)]).model
    features, lengths = torch.randn(2, 60, NUM_MEL_BINS), torch.tensor([60, 45])
    targets = {"tokens": torch.tensor([[1, 2], [3, 1]]), "token_lengths": torch.tensor([2, 2])}
    with torch.no_grad():
        expected, actual = made(features, lengths), own(features, lengths)
        assert torch.equal(expected.out, actual.out)
        for name, loss in made.head.losses(expected, targets).items():
            assert torch.equal(loss, own.head.losses(actual, targets)[name]), name
        assert own.head.losses(actual, targets)["loss"].isfinite().all()
    assert own.head.min_frames([1, 1]) == made.head.min_frames([1, 1])
    assert own.head.cells(9, 4) == made.head.cells(9, 4)


ALLOWED = [True, True, False, True, False, False, True]
REMAINING = [token for token in range(V) if ALLOWED[token]]


def expected_of(log_probs: Tensor) -> Tensor:
    """Return the log_probs (..., V) of the remaining tokens, given that none of the others is written."""
    expected = torch.full_like(log_probs, NEVER)
    probs = log_probs[..., REMAINING].exp()
    expected[..., REMAINING] = (probs / probs.sum(dim=-1, keepdim=True)).log()
    return expected


@torch.no_grad()
def test_the_log_probs_of_each_part_are_those_given_that_no_masked_token_is_written() -> None:
    made = model("ctc_attention")[1]
    free: Any = made.head
    own: Any = with_tokens(free, ALLOWED)
    out = torch.randn(2, 7, made.encoder.output_dim)
    torch.testing.assert_close(own.frame_head.log_probs(out), expected_of(free.frame_head.log_probs(out)))
    memory, cache = own.token_decoder.remember(out, torch.tensor([7, 5])), own.token_decoder.start(2)
    tokens, lengths = torch.tensor([[1, 3], [6, 1]]), torch.tensor([2, 2])
    expected, _ = free.token_decoder(tokens, memory, cache)
    torch.testing.assert_close(own.token_decoder(tokens, memory, cache)[0], expected_of(expected))
    expected = free.token_decoder.force(tokens, lengths, memory).log_probs
    torch.testing.assert_close(own.token_decoder.force(tokens, lengths, memory).log_probs, expected_of(expected))


@torch.no_grad()
def test_a_joiner_masks_tokens_and_no_durations() -> None:
    made = model("tdt")[1]
    free: Any = made.head
    own: Any = with_tokens(free, ALLOWED)
    before, out = torch.randn(3, 1, free.predictor.output_dim), torch.randn(3, 5, made.encoder.output_dim)
    inputs = free.joiner.of_frames(out), free.joiner.of_tokens(before)
    expected = free.joiner(*inputs)
    expected[..., [token for token in range(V) if not ALLOWED[token]]] = NEVER
    assert torch.equal(own.joiner(*inputs), expected)


def test_a_confidence_is_high_only_where_a_remaining_token_stands_out() -> None:
    """A masked token that the model is sure of makes no other token certain."""
    made = recognizer("ctc", "greedy", ALLOWED)
    linear = model("ctc")[1].head.linear  # type: ignore[attr-defined]
    bias = torch.tensor([0.0, 1.0, 20.0, 1.0, 0.0, 0.0, 1.0])  # token 2 is masked; 1, 3 and 6 are equally likely
    out = torch.linalg.lstsq(linear.weight.detach(), (bias - linear.bias.detach())[:, None]).solution[:, 0]
    [[best]] = made.decoded([out[None]])  # type: ignore[misc]
    assert best.tokens[0] in (1, 3, 6)
    assert best.confidences is not None
    assert best.confidences[0] < 0.5


# ---- tokens


def tokens_that_pass(characters: str, pieces: list[str], names: list[str] | None = None) -> list[str]:
    """Return the pieces, or else the names, of the allowed tokens, without the blank."""
    names = names or pieces
    tokenizer: Any = SimpleNamespace(pieces=["", *pieces], names=["", *names])
    [blank, *others] = allowed_tokens(tokenizer, find_alphabet(characters))
    assert blank
    return [piece or name for piece, name, allowed in zip(pieces, names, others, strict=True) if allowed]


def test_digits_punctuation_spaces_and_marks_pass_and_a_token_with_any_other_letter_does_not() -> None:
    pieces = ["das", " Fuß", "ÜBER", "A\N{COMBINING DIAERESIS}", " é", "x7", "7", " ", ".", "€", "’", "Ⅷ"]
    marks = ["\N{COMBINING DIAERESIS}", "\N{DEVANAGARI VOWEL SIGN I}"]
    foreign = ["я", " да", "dа", "α", "ł", "e\N{COMBINING CARON}", "日"]
    assert tokens_that_pass("de", pieces + marks + foreign) == pieces + marks


def test_a_byte_of_a_longer_character_does_not_pass_and_a_byte_of_ascii_is_a_character() -> None:
    assert tokens_that_pass("de", [piece_of(bytes([byte])) for byte in (0x41, 0x37, 0xC3, 0xA4)]) == ["A", "7"]


def test_of_the_hidden_pieces_only_the_language_tags_of_transcripts_pass() -> None:
    names = ["a", "<|en|>", "<|nospeech|>", "<EOU>", "<en-US>", "<ru-RU>"]
    assert tokens_that_pass("latin", ["a", "", "", "", "", ""], names) == ["a", "<en-US>", "<ru-RU>"]


OF_V3 = {
    *("bg", "cs", "da", "de", "el", "en", "es", "et", "fi", "fr", "hr", "hu", "it", "lt", "lv", "mt", "nl", "pl", "pt"),
    *("ro", "ru", "sk", "sl", "sv", "uk"),
}


@needs_published
def test_each_of_parakeet_v3s_pieces_with_letters_passes_for_its_script_alone() -> None:
    vocabulary = take_vocabulary(V3.read_bytes(), 8193, 8192)
    tokenizer = build_tokenizer({"tokenizer": vocabulary.config})
    tokenizer.load(vocabulary.files)
    unknown = tokenizer.pieces.index("<unk>")
    passing = {}
    for name in ("latin", "cyrillic", "greek", "de", "ru"):
        allowed = allowed_tokens(tokenizer, find_alphabet(name))
        assert not any(allowed[token] for token in range(1, 8193) if not tokenizer.pieces[token])
        passing[name] = {token for token in range(1, 8193) if allowed[token]} - {unknown}
    letterless = {
        token for token in range(1, 8193) if tokenizer.pieces[token] and not letters_of(tokenizer.pieces[token])
    }
    scripts = [passing[name] - letterless for name in ("latin", "cyrillic", "greek")]
    assert list(map(len, scripts)) == [6175, 1161, 559]
    assert all(letterless < tokens for tokens in passing.values())
    assert len(set.union(*scripts)) == sum(map(len, scripts))
    assert letterless < passing["ru"] < passing["cyrillic"]
    for name in ("de", "ru"):
        alphabet = find_alphabet(name)
        assert all(alphabet.has(letter) for token in passing[name] for letter in letters_of(tokenizer.pieces[token]))
    head = deepcopy(model("ctc")[1].head)
    for language in [
        "bg",
        "hr",
        "cs",
        "da",
        "nl",
        "en",
        "et",
        "fi",
        "fr",
        "de",
        "el",
        "hu",
        "it",
        "lv",
        "lt",
        "mt",
        "pl",
        "pt",
        "ro",
        "ru",
        "sk",
        "sl",
        "es",
        "sv",
        "uk",
    ]:  # v3's own
        lock(head, tokenizer, language)
    for language in ("ja", "hi", "ka", "ar"):
        with refused(InputError, f"characters ... half ... {language}"):
            lock(head, tokenizer, language)


# ---- whole models

LATIN, GREEK = "abcdefghijklmnopqrstuvwxyz", "αβγδεζηθικλμνξοπρσςτυφχψω"


def mixed(folder: Path, *overrides: str) -> Path:
    """Write a bundle with random weights whose texts mix Latin and Greek letters and digits."""
    config = resolved(*TINY, "features/normalize=utterance_cmvn", "normalizer=as_written", *overrides)
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit([f"{LATIN} {GREEK} 0123"])
    torch.manual_seed(0)
    made: Any = build_model(config, tokenizer, features).eval()
    output = made.head.joiner.output if hasattr(made.head, "joiner") else made.head.linear
    with torch.no_grad():
        output.weight.mul_(20.0)
        output.bias[BLANK_ID] -= 3.0
    replace_bundle(folder, Bundle(model_config(config), tokenizer.files(), made.state_dict(), card=""))
    return folder


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed(tmp_path_factory.mktemp("mixed") / "bundle", "head=ctc")


def text_of(recognizer: Recognizer) -> str:
    text = recognizer.transcribe(RECORDING, sample_rate=SAMPLE_RATE).text
    assert len(text) > 10
    return text


RECORDING = torch.from_numpy(speak("abba cab fed abba cab"))


@pytest.mark.parametrize("decode", ["greedy", "beam"])
@pytest.mark.parametrize(("characters", "letters"), [("latin", LATIN), ("en", LATIN), ("greek", GREEK), ("el", GREEK)])
def test_a_model_writes_only_the_letters_of_the_lock(characters: str, letters: str, decode: str, bundle: Path) -> None:
    without_lock = {*text_of(load(bundle, decode=decode))}
    assert without_lock & {*LATIN}
    assert without_lock & {*GREEK}
    assert {*text_of(load(bundle, decode=decode, characters=characters))} - {*" 0123"} <= {*letters}


@pytest.mark.parametrize("characters", ["cyrillic", "ru", "hangul", "ja", "vi"])
def test_a_lock_with_which_a_model_writes_fewer_than_half_of_the_letters_is_refused(
    characters: str, bundle: Path
) -> None:
    with refused(InputError, f"characters ... half ... {characters}"):
        load(bundle, characters=characters)


def test_a_lock_with_which_a_model_writes_half_of_the_letters_is_accepted() -> None:
    def lock_with(letters: str) -> None:
        tokenizer: Any = SimpleNamespace(pieces=["", *letters, "я"], names=["", *letters, "я"])
        lock(head, tokenizer, "en")

    head: Any = deepcopy(model("ctc")[1].head)
    lock_with(LATIN[:13].upper())
    assert head.mask.masked.tolist() == [*[False] * 14, True]
    with refused(InputError, "characters ... half ... 26 ... 12"):
        lock_with(LATIN[:12])


def test_a_head_that_cannot_be_restricted_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CTC, "restrict", None, raising=False)
    monkeypatch.setattr(TokenMask, "restrict", None)
    with refused(InputError, "characters ... CTC", cure="characters"):
        load(bundle, characters="greek")


@pytest.mark.parametrize("head", HEADS)
def test_a_restriction_is_in_no_checkpoint_and_ends_with_the_next_one(head: str) -> None:
    free, out = model(head)[1].head, torch.randn(2, 7, model(head)[1].encoder.output_dim)
    own = with_tokens(free, ALLOWED)
    assert own.state_dict().keys() == free.state_dict().keys()  # type: ignore[attr-defined]
    masks = [name for name, _ in own.named_buffers() if name.endswith("masked")]
    assert masks, "the mask moves to a device with the head"
    if free.frame_head is not None:
        assert not torch.equal(own.frame_head.log_probs(out), free.frame_head.log_probs(out))
    own.restrict(torch.tensor([True] * V))
    if free.frame_head is not None:
        assert torch.equal(own.frame_head.log_probs(out), free.frame_head.log_probs(out))
    assert not [*own.named_buffers()]
    with refused(InputError, "blank", cure="0"):
        own.restrict(torch.tensor([False, *[True] * (V - 1)]))


def test_the_option_of_a_command_is_the_argument_of_python(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soundfile.write(tmp_path / "a.wav", RECORDING.numpy(), SAMPLE_RATE)
    assert transcribe([str(bundle), str(tmp_path / "a.wav"), "--characters", "greek"]) == 0
    printed = capsys.readouterr().out.partition("\t")[2].strip()
    assert printed == load(bundle, characters="greek").transcribe(tmp_path / "a.wav").text != ""
    with refused(InputError, "--characters ... greek", got="klingon", cure='print(*languages())"'):
        transcribe([str(bundle), str(tmp_path / "a.wav"), "--characters", "klingon"])
    with refused(InputError, "characters ... half ... hebrew"):
        tune([str(bundle), str(tmp_path / "dev.jsonl"), "--characters", "hebrew"])


@pytest.mark.slow
@pytest.mark.parametrize("head", ["ctc", "transducer", "tdt"])
def test_an_exported_model_writes_the_texts_of_its_bundle(head: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    folders = mixed(tmp_path / "bundle", f"head={head}"), tmp_path / "exported"
    assert export([str(folders[0]), "-o", str(folders[1])]) == 0
    assert {*text_of(load(folders[1]))} & {*LATIN}
    ours, theirs = (load(folder, characters="greek") for folder in folders)
    assert theirs.model.is_program
    assert text_of(theirs) == text_of(ours)
    assert not {*text_of(theirs)} & {*LATIN}


@pytest.mark.parametrize("name", ["greedy", "beam", *TRANSDUCERS])
def test_a_stream_writes_no_masked_token_and_the_words_of_one_pass(name: str) -> None:
    free = transducer(name) if name in TRANSDUCERS else streaming_recognizer()
    config = resolved(*TRANSDUCERS[name]) if name in TRANSDUCERS else resolved("head=ctc_self_conditioned")
    search = default_settings("decode", name) if name not in TRANSDUCERS else config["decode"]
    pieces = free.model.tokenizer.pieces
    waveform = speech(3.0, seed=5)
    written = sorted({*whole(free, waveform)} - {" "})
    masked = {*written[::2]}
    assert masked
    free.model.head = with_tokens(free.model.head, [piece not in masked for piece in pieces])
    search = overridden(search, {"beam_size": 4})
    decode = build_decoder({"decode": search, "head": config["head"]}, free.model)
    own = Recognizer(free.model, decode, UNCALIBRATED)
    text = final_text(streamed(Stream(own, endpoint_seconds=None, settled_seconds=None), waveform, seed=5))
    assert text == whole(own, waveform)
    assert text
    assert not masked & {*text}
