"""Beam search compared with greedy decoding, enumeration of all paths, and torchaudio's decoder."""

import math
import random
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.base.text.normalize import as_written, basic
from asr.components.decode.beam import Beam
from asr.components.decode.greedy import Greedy
from asr.core.build import component
from asr.errors import InputError
from asr.interfaces import BLANK_ID, Encoded, Hypothesis
from tests.fusion import (
    PHRASES,
    SOME_WORDS,
    UNREADABLE,
    WIDE,
    Pieces,
    Trigrams,
    assert_unusable,
    beam,
    drawn_fusion,
    search_config,
    search_settings,
    write_lines,
)
from tests.identity import IDENTITY, decoded
from tests.refusals import mentions, refused

needs_flashlight = pytest.mark.skipif(
    find_spec("flashlight") is None, reason="torchaudio's decoder needs flashlight-text, which is not installed"
)
needs_kenlm = pytest.mark.skipif(find_spec("kenlm") is None, reason="camel-kenlm is not installed")

LETTERS = ["", " ", "a", "b", "c"]
SUBWORDS = ["", " a", "b", " ba", " ", "ab"]


def random_log_probs(*shape: int, scale: float = 2.0) -> Tensor:
    return (scale * torch.randn(*shape)).log_softmax(dim=-1)


def decode_one(search: Any, log_probs: Tensor) -> list[Hypothesis]:
    [hypotheses] = decoded(search, log_probs[None], torch.tensor([len(log_probs)]))
    return hypotheses


def text(pieces: list[str], tokens: list[int]) -> str:
    return " ".join("".join(pieces[token] for token in tokens).split())


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(0, 30), min_size=1, max_size=4),
    st.sampled_from([LETTERS, SUBWORDS, ["", "a"], ["", *map(chr, range(97, 160))]]),
    st.integers(1, 70),
)
def test_a_beam_of_one_without_a_language_model_equals_greedy_decoding(
    seed: int, lengths: list[int], pieces: list[str], tokens_per_frame: int
) -> None:
    torch.manual_seed(seed)
    log_probs, given = random_log_probs(len(lengths), max(lengths), len(pieces)), torch.tensor(lengths)
    hypotheses = decoded(beam(pieces, beam_size=1, tokens_per_frame=tokens_per_frame), log_probs, given)
    expected = decoded(Greedy(IDENTITY, Pieces(pieces), as_written), log_probs, given)  # type: ignore[arg-type]
    assert [hypothesis.tokens for [hypothesis] in hypotheses] == [hypothesis.tokens for [hypothesis] in expected]
    expected_scores = [hypothesis.score for [hypothesis] in expected]
    assert [hypothesis.score for [hypothesis] in hypotheses] == pytest.approx(expected_scores, abs=1e-4)  # float32


@needs_kenlm
@pytest.mark.parametrize("hotwords", [False, True], ids=["plain", "hotwords"])
@pytest.mark.parametrize("lexicon", [False, True], ids=["any words", "lexicon"])
@pytest.mark.parametrize("lm_unit", [None, "word", "token", "spelled"])
@pytest.mark.parametrize("pieces", [LETTERS, SUBWORDS], ids=["letters", "subwords"])
def test_a_wide_beam_finds_the_result_of_enumerating_all_paths(
    tmp_path: Path, pieces: list[str], lm_unit: str | None, lexicon: bool, hotwords: bool
) -> None:
    for seed in range(4):
        draw = random.Random(f"{pieces} {lm_unit} {lexicon} {hotwords} {seed}")
        plain = drawn_fusion(draw, pieces, lm_unit, lexicon, hotwords)
        search = beam(pieces, **WIDE | plain.settings(tmp_path))
        torch.manual_seed(seed)
        log_probs = random_log_probs(5 if len(pieces) < 6 else 4, len(pieces))
        actual, expected = decode_one(search, log_probs), plain.rank(log_probs)
        scores = {tuple(hypothesis.tokens): hypothesis.score for hypothesis in actual}
        assert scores == pytest.approx(expected, abs=1e-4)  # KenLM: float32
        assert [hypothesis.score for hypothesis in actual] == sorted(
            (hypothesis.score for hypothesis in actual), reverse=True
        )


@needs_kenlm
def test_a_word_gets_the_unknown_score_at_the_first_letter_that_fits_no_known_word(tmp_path: Path) -> None:
    """Otherwise an unfinished unknown word would displace known words from the beam."""
    lm = Trigrams(["ab", "abba"], random.Random(0)).write(tmp_path / "lm.arpa")
    hotwords = write_lines(tmp_path / "hotwords.txt", ["cc"])
    numbers = {"lm_weight": 0.0, "word_insertion_bonus": 0.0, "unknown_score": -7.0, "hotword_score": 0.0}
    fusion = beam(LETTERS, lm=lm, hotwords=hotwords, **numbers).fusion
    for word, gains in {
        "abbac ": [0, 0, 0, 0, -7, 0],
        "ba ": [-7, 0, 0],
        "abb ab c": [0, 0, 0, -7, 0, 0, 0, 0],
        "cca": [0, 0, -7],
    }.items():
        context, actual_gains = fusion.start(), []
        for character in word:
            context, gain = fusion.extend(context, LETTERS.index(character)) or pytest.fail("no lexicon forbids it")
            actual_gains.append(gain)
        assert actual_gains == gains
        assert fusion.finish(context) == (-7.0 if word.endswith(" c") else 0.0)


@needs_kenlm
def test_a_character_of_two_tokens_that_are_bytes_has_the_score_of_one_token(tmp_path: Path) -> None:
    lm = Trigrams(["aä", "ab"], random.Random(0)).write(tmp_path / "lm.arpa")
    numbers = {"lm_weight": 0.7, "word_insertion_bonus": 0.3, "unknown_score": -7.0, "hotword_score": 0.0}
    scores = []
    for pieces in (["", " ", "a", "b", "ä"], ["", " ", "a", "b", "\udcc3", "\udca4"]):
        fusion = beam(pieces, lm=lm, **numbers).fusion
        for text in ("aä ab", "ab aä", "ä", "aäa", "bä a"):
            context, score = fusion.start(), 0.0
            for unit in text if "ä" in pieces else text.replace("ä", "\udcc3\udca4"):
                context, gain = fusion.extend(context, pieces.index(unit)) or pytest.fail("no lexicon forbids it")
                score += gain
            scores.append(score + (fusion.finish(context) or 0.0))
    half = len(scores) // 2
    assert scores[:half] == pytest.approx(scores[half:])


def forced_space(log_probs: Tensor) -> Tensor:
    """Append a frame that can only be a space."""
    last = torch.full_like(log_probs[:1], -1e4)
    last[0, LETTERS.index(" ")] = 0.0
    return torch.cat([log_probs, last])


@needs_flashlight
@pytest.mark.parametrize("seed", range(6))
def test_words_and_scores_equal_those_of_torchaudios_decoder_with_a_lexicon(tmp_path: Path, seed: int) -> None:
    """torchaudio requires a space after the last word, so a space is appended.

    torchaudio's LM weight multiplies log10 probabilities; ours multiplies natural logarithms.
    """
    decoder = pytest.importorskip("torchaudio.models.decoder")
    draw = random.Random(seed)
    words = draw.sample(SOME_WORDS, 8)
    lm = Trigrams(words[:6], draw).write(tmp_path / "lm.arpa")
    lexicon = write_lines(tmp_path / "lexicon.txt", [f"{word} {' '.join(word)} |" for word in words])
    weight, score = draw.uniform(0.2, 2), draw.uniform(-1, 2)
    search = beam(
        LETTERS, **WIDE | {"beam_size": 2000}, lm=lm, lexicon=lexicon, lm_weight=weight, word_insertion_bonus=score
    )
    other = decoder.ctc_decoder(
        lexicon=lexicon,
        tokens=["-", "|", "a", "b", "c"],
        lm=lm,
        beam_size=2000,
        beam_threshold=1e6,
        lm_weight=weight * math.log(10),
        word_score=score,
    )
    for frames in (1, 6, 12):
        log_probs = forced_space(random_log_probs(frames, len(LETTERS)))
        [[expected]] = other(log_probs[None])
        best = decode_one(search, log_probs)[0]
        assert text(LETTERS, best.tokens).split() == expected.words
        assert best.score == pytest.approx(expected.score, abs=1e-3)  # float32 sums


@needs_flashlight
@pytest.mark.parametrize("seed", range(6))
def test_tokens_and_scores_equal_those_of_torchaudios_decoder_without_a_lexicon(tmp_path: Path, seed: int) -> None:
    """torchaudio's silence token is made impossible, because torchaudio's LM does not score it in the first frame.

    torchaudio gets the LM's dictionary in the order of the tokens, because the file of the LM has another order.
    """
    decoder = pytest.importorskip("torchaudio.models.decoder")
    draw = random.Random(seed)
    names = ["\N{LOWER ONE EIGHTH BLOCK}", "a", "b", "c"]
    lm = Trigrams(names[:3] if seed % 2 else names, draw).write(tmp_path / "lm.arpa")
    weight = draw.uniform(0.2, 2)
    search = beam(
        LETTERS, **WIDE | {"beam_size": 2000}, lm=lm, lm_unit="token", lm_weight=weight, word_insertion_bonus=0.0
    )
    tokens = ["-", *names, "|"]
    other = decoder.ctc_decoder(
        lexicon=None,
        tokens=tokens,
        lm=lm,
        lm_dict=write_lines(tmp_path / "tokens.txt", tokens),
        beam_size=2000,
        beam_threshold=1e5,
        lm_weight=weight * math.log(10),
    )
    for frames in (1, 5, 9):
        log_probs = random_log_probs(frames, len(LETTERS))
        [[expected]] = other(torch.nn.functional.pad(log_probs, (0, 1), value=-1e6)[None])
        best = decode_one(search, log_probs)[0]
        assert best.tokens == [token for token in expected.tokens.tolist() if token != len(LETTERS)]
        assert best.score == pytest.approx(expected.score, abs=1e-3)  # float32 sums


FRAME = torch.tensor([[0.05, 0.5, 0.3, 0.1, 0.05]]).log()


@pytest.mark.parametrize(
    ("setting", "value", "tried"),
    [
        ("tokens_per_frame", 1, [1]),
        ("tokens_per_frame", 3, [1, 2, 3]),
        ("tokens_per_frame", 99, [1, 2, 3, 4]),
        ("token_threshold", math.log(0.2), [1, 2]),
        ("token_threshold", 0.0, [1]),
    ],
)
def test_a_frame_extends_prefixes_by_its_most_likely_tokens_and_the_blank(
    setting: str, value: float, tried: list[int]
) -> None:
    hypotheses = decode_one(beam(LETTERS, **WIDE | {setting: value}), FRAME)
    assert sorted(hypothesis.tokens for hypothesis in hypotheses) == [[], *([token] for token in tried)]


def test_beam_size_and_beam_threshold_limit_the_kept_hypotheses() -> None:
    log_probs = random_log_probs(8, len(LETTERS))
    everything = decode_one(beam(LETTERS, **WIDE), log_probs)
    assert len(everything) > 1000
    assert len(decode_one(beam(LETTERS, **WIDE | {"beam_size": 7}), log_probs)) == 7
    near = decode_one(beam(LETTERS, **WIDE | {"beam_threshold": 3.0}), log_probs)
    assert 1 < len(near) < 1000
    assert near[-1].score >= near[0].score - 3.0
    assert near == everything[: len(near)]  # without fusion, pruning removes only hypotheses below the threshold
    [only] = decode_one(beam(LETTERS, **WIDE | {"beam_threshold": 0.0}), log_probs)
    assert only == everything[0]


Tokens = tuple[int, ...]


def extend_by_everything(search: Beam, log_probs: Tensor) -> dict[Tokens, float]:
    """Extend all prefixes in the beam by all tokens, frame by frame, and add the gains of the search's `fusion`."""
    grown: dict[Tokens, tuple[Any, float]] = {(): (search.fusion.start(), 0.0)}
    paths: dict[tuple[Tokens, int], float] = {((), BLANK_ID): 0.0}
    scores: dict[Tokens, float] = {(): 0.0}
    for frame in log_probs.tolist():
        after: dict[tuple[Tokens, int], float] = {}
        for ((tokens, last), path), (token, log_prob) in product(paths.items(), enumerate(frame)):
            longer = tokens if token in (BLANK_ID, last) else (*tokens, token)
            if longer not in grown:
                context, gain = search.fusion.extend(grown[tokens][0], token) or (None, -math.inf)
                grown[longer] = context, grown[tokens][1] + gain
            after[longer, token] = max(after.get((longer, token), -math.inf), path + log_prob)
        ends = sorted(((path + grown[tokens][1], tokens) for (tokens, _), path in after.items()), reverse=True)
        scores = {}
        for score, tokens in ends:
            if tokens not in scores and len(scores) < search.beam_size and score >= ends[0][0] - search.beam_threshold:
                scores[tokens] = score
        paths = {(tokens, last): path for (tokens, last), path in after.items() if tokens in scores}
    gains = {tokens: search.fusion.finish(grown[tokens][0]) for tokens in scores}
    return {tokens: scores[tokens] + gain for tokens, gain in gains.items() if gain is not None}


@needs_kenlm
@pytest.mark.parametrize("lexicon", [False, True], ids=["any words", "lexicon"])
@pytest.mark.parametrize("pieces", [LETTERS, SUBWORDS], ids=["letters", "subwords"])
@pytest.mark.parametrize(("beam_size", "beam_threshold"), [(1, 9.0), (5, math.inf), (20, 5.0)])
def test_beam_search_equals_a_plain_search_that_tries_every_extension(
    tmp_path: Path, pieces: list[str], lexicon: bool, beam_size: int, beam_threshold: float
) -> None:
    for seed in range(8):
        draw = random.Random(seed)
        numbers = {"lm_weight": draw.uniform(0, 1), "word_insertion_bonus": draw.uniform(-1, 6), "hotword_score": 4.0}
        search = beam(
            pieces,
            **WIDE | {"beam_size": beam_size, "beam_threshold": beam_threshold} | numbers,
            unknown_score=draw.uniform(-2, 6),
            lm=Trigrams(draw.sample(SOME_WORDS, 5), draw).write(tmp_path / "lm.arpa"),
            spelling=Trigrams("ab", draw).write(tmp_path / "spelling.arpa") if seed % 3 == 0 else None,
            lexicon=write_lines(tmp_path / "lexicon.txt", SOME_WORDS) if lexicon else None,
            hotwords=write_lines(tmp_path / "hotwords.txt", draw.sample(PHRASES, 3)) if seed % 2 else None,
        )
        torch.manual_seed(seed)
        log_probs = random_log_probs(12, len(pieces))
        actual = {tuple(hypothesis.tokens): hypothesis.score for hypothesis in decode_one(search, log_probs)}
        assert actual == pytest.approx(extend_by_everything(search, log_probs), abs=1e-9)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e9])
def test_frames_after_the_end_of_an_utterance_are_never_read(junk: float) -> None:
    log_probs, lengths = random_log_probs(4, 9, len(LETTERS)), torch.tensor([9, 0, 5, 1])
    search = beam(LETTERS)
    expected = [decode_one(search, row[:length]) for row, length in zip(log_probs, lengths.tolist(), strict=True)]
    for row, length in zip(log_probs, lengths.tolist(), strict=True):
        row[length:] = junk
    assert decoded(search, log_probs, lengths) == expected
    assert expected[1] == [Hypothesis([], 0.0)]


@needs_kenlm
def test_an_utterance_without_frames_has_an_empty_text_and_the_lm_score_of_an_empty_sentence(tmp_path: Path) -> None:
    model = Trigrams(["a"], random.Random(0))
    search = beam(LETTERS, lm=model.write(tmp_path / "lm.arpa"), lm_weight=0.7)
    [[empty]] = decoded(search, torch.zeros(1, 0, len(LETTERS)), torch.tensor([0]))
    assert empty.tokens == []
    assert empty.score == pytest.approx(0.7 * model.sentence([]), abs=1e-5)
    assert decoded(search, torch.zeros(0, 3, len(LETTERS)), torch.zeros(0, dtype=torch.int64)) == []


def test_impossible_tokens_never_occur_in_a_hypothesis() -> None:
    log_probs = random_log_probs(6, len(LETTERS))
    log_probs[:, 2] = -math.inf
    log_probs[3, 1:] = -math.inf
    hypotheses = decode_one(beam(LETTERS, **WIDE), log_probs)
    assert all(2 not in hypothesis.tokens and hypothesis.score > -math.inf for hypothesis in hypotheses)


def test_if_every_hypothesis_ends_within_a_word_the_complete_words_of_the_best_are_returned(tmp_path: Path) -> None:
    lexicon = write_lines(tmp_path / "lexicon.txt", ["ab", "abbb"])
    hotwords = write_lines(tmp_path / "hotwords.txt", ["ab abbb"])
    best = [2, 3, 1, 2]  # "ab a"
    log_probs = torch.full((4, len(LETTERS)), -50.0)
    log_probs[range(4), best] = 0.0
    [hypothesis] = decode_one(beam(LETTERS, lexicon=lexicon, hotwords=hotwords, hotword_score=9.0), log_probs)
    assert text(LETTERS, hypothesis.tokens) == "ab"
    assert hypothesis.score == 0.0  # an incomplete phrase gets no bonus


def test_words_are_separated_by_any_white_space(tmp_path: Path) -> None:
    lexicon = write_lines(tmp_path / "lexicon.txt", ["a", "b"])
    pieces = ["", "\N{NO-BREAK SPACE}", "a", "b"]
    log_probs = torch.full((3, len(pieces)), -5.0)
    log_probs[range(3), [2, 1, 3]] = 0.0
    assert decode_one(beam(pieces, lexicon=lexicon), log_probs)[0].tokens == [2, 1, 3]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("ab\nba b a\n\n  c  \nab\n", {"ab", "ba", "c"}),
        ("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\t<unk>\n-1\tab\n\n\\end\\\n", {"ab"}),
    ],
    ids=["list", "ARPA"],
)
def test_a_lexicon_is_a_word_list_or_an_arpa_model(tmp_path: Path, content: str, words: set[str]) -> None:
    path = tmp_path / "lexicon"
    path.write_text(content)
    spelled = {text(LETTERS, list(tokens)) for n in range(4) for tokens in product(range(1, 5), repeat=n)}
    search = beam(LETTERS, **WIDE, lexicon=str(path))
    assert all((word in search.fusion.lexicon) == (word in words) for word in spelled)  # type: ignore[operator]
    hypotheses = decode_one(search, random_log_probs(3, len(LETTERS)))
    assert {word for hypothesis in hypotheses for word in text(LETTERS, hypothesis.tokens).split()} == words


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *UNREADABLE,
        (b"", "words ... none"),
        (b"\n  \n", "words ... none"),
        (b"\\data\\\nngram 1=1\n\n\\1-grams:\n-1\t<unk>\n\n\\end\\\n", "words ... none"),
    ],
)
def test_an_unusable_lexicon_is_reported_in_one_line(tmp_path: Path, content: bytes | None, reason: str) -> None:
    assert_unusable(tmp_path / "lexicon.txt", content, lambda path: beam(LETTERS, lexicon=path), "lexicon", reason)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("decode.beam_size", 0),
        ("decode.tokens_per_frame", 0),
        ("decode.beam_threshold", -1.0),
        ("decode.beam_size", 2.5),
        ("decode.beam_size", "x"),
        ("decode.beam_threshold", math.nan),
        ("decode.fusion.lm_weight", "x"),
        ("decode.fusion.lm_weight", -0.5),
        ("decode.fusion.word_insertion_bonus", math.nan),
        ("decode.fusion.hotword_score", -0.1),
        ("decode.fusion.lm_unit", "phoneme"),
    ],
)
def test_an_invalid_setting_is_reported_by_name(setting: str, value: Any) -> None:
    with refused(InputError, setting, got=value):
        component("decode", search_config("beam", **{setting.rpartition(".")[2]: value}))


NAMES = ["", " ", *"abcdefghijklmnopqrstuvwxyz"]
SAID = ["we met nguyen today", "the new guy went home", "no one knew them then", "again and again", "ten men", ""]


def speak(sentence: str) -> Tensor:
    """Return log_probs of a sentence: two frames per letter, then a blank; the g of "ng" is often missed."""
    rows = []
    for number, character in enumerate(sentence):
        probabilities = torch.rand(len(NAMES)) * 0.01
        probability = 0.12 if sentence[max(number - 1, 0) : number + 1] == "ng" else 0.8
        probabilities[NAMES.index(character)] = probability
        probabilities[BLANK_ID] = 1 - probability
        silent = torch.rand(len(NAMES)) * 0.01
        silent[BLANK_ID] = 1.0
        rows += [probabilities, probabilities, silent]
    return (torch.stack(rows) if rows else torch.zeros(0, len(NAMES))).log().log_softmax(dim=-1)


def test_a_hotword_corrects_a_rare_name_and_nothing_else(tmp_path: Path) -> None:
    def recognised(search: Any) -> list[str]:
        torch.manual_seed(0)
        return [text(NAMES, decode_one(search, speak(sentence))[0].tokens) for sentence in SAID]

    phrases = write_lines(tmp_path / "hotwords.txt", ["nguyen", "agnes", "new york", "thenardier"])
    without, boosted = recognised(beam(NAMES)), recognised(beam(NAMES, hotwords=phrases))
    assert without == ["we met nuyen today", *SAID[1:]]
    assert boosted == SAID


# ---- language models and lexicons with words or tokens that the recogniser never outputs


def arpa(path: Path, words: list[str]) -> str:
    unigrams = [f"-1.0\t{word}\t0.0" for word in ["<unk>", "<s>", *words]] + ["-1.0\t</s>"]
    lines = ["\\data\\", f"ngram 1={len(unigrams)}", "ngram 2=1", "", "\\1-grams:", *unigrams]
    return write_lines(path, [*lines, "", "\\2-grams:", f"-0.5\t<s> {words[0]}", "", "\\end\\"])


def in_lower_case(**settings: Any) -> Beam:
    return Beam(IDENTITY, Pieces(NAMES), basic, **search_settings("beam", **settings))  # type: ignore[arg-type]


def test_an_upper_case_language_model_is_an_error(tmp_path: Path) -> None:
    with refused(InputError, "as the normaliser ... 0 of its 2 entries"):
        in_lower_case(lm=arpa(tmp_path / "lm.arpa", ["NEW", "GUY"]))
    in_lower_case(lm=arpa(tmp_path / "lm.arpa", ["new", "guy", "'tis"]))


def test_a_language_model_of_the_wrong_unit_is_an_error(tmp_path: Path) -> None:
    tokens, words = arpa(tmp_path / "tokens.arpa", ["\u2581", "a", "b"]), arpa(tmp_path / "words.arpa", ["new", "guy"])
    with refused(InputError, "0 of its 3 entries", cure="--lm-unit"):
        in_lower_case(lm=tokens)
    message = "0 of its 2 entries ... --lm-unit"
    with refused(InputError, message):
        in_lower_case(lm=words, lm_unit="token")
    in_lower_case(lm=tokens, lm_unit="token")


def test_a_lexicon_is_normalised_and_words_that_cannot_be_spelled_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = in_lower_case(lexicon=write_lines(tmp_path / "words.txt", ["NEW n u", "Zürich", "guy"]))
    lexicon = search.fusion.lexicon
    assert lexicon is not None
    assert [word in lexicon for word in ("new", "guy", "NEW", "zürich")] == [True, True, False, False]
    assert mentions(caplog.text, "1 of the words: Zürich")
    message = "lexicon ... 0 of 1"
    with refused(InputError, message):
        in_lower_case(lexicon=write_lines(tmp_path / "none.txt", ["Zürich"]))


@needs_kenlm
def test_weights_passed_to_a_search_act_like_the_same_settings_of_the_decoder(tmp_path: Path) -> None:
    lm = Trigrams(SOME_WORDS[:4], random.Random(0)).write(tmp_path / "lm.arpa")
    values = {"lm_weight": 0.9, "word_insertion_bonus": 2.0, "unknown_score": -1.5}
    plain, other = beam(LETTERS, **WIDE, lm=lm), beam(LETTERS, **WIDE, lm=lm, **values)
    assert list(plain.tunable) == list(values)
    log_probs, lengths = random_log_probs(1, 7, len(LETTERS)), torch.tensor([7])
    hypotheses = plain.search(plain.evidence(Encoded(log_probs, lengths, {})), **values)
    assert hypotheses == other.search(other.evidence(Encoded(log_probs, lengths, {})))
    assert hypotheses != plain.search(plain.evidence(Encoded(log_probs, lengths, {})))
    tokens = beam(LETTERS, **WIDE, lexicon=write_lines(tmp_path / "lexicon.txt", SOME_WORDS), lm=lm)
    assert list(tokens.tunable) == ["lm_weight", "word_insertion_bonus"], "the model knows every word"
    spelled = beam(LETTERS, **WIDE, lm=lm, spelling=Trigrams("ab", random.Random(1)).write(tmp_path / "spelling.arpa"))
    assert list(spelled.tunable) == ["lm_weight", "word_insertion_bonus"], "unknown words have probabilities"
