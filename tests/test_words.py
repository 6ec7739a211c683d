"""Words with times: the words are those of the text, and their times agree with the best path and with the sounds."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.base.audio.load import load_waveform
from asr.base.text.normalize import BY_WORDS, NORMALIZERS, as_written
from asr.base.text.words import Spelt, spell
from asr.components.tokenizer.char import Char
from asr.convert import main as convert
from asr.core.build import build_features, build_recognizer, build_tokenizer
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import read_manifest
from asr.core.recognition import alignment
from asr.core.recognition.alignment import MAX_CELLS, Span, frame_deficits, token_spans
from asr.core.recognition.chunks import ChunkBounds
from asr.core.recognition.inference import Inference
from asr.core.recognition.long_form import Segment
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.timing import word_times
from asr.core.recognition.transcript import Word
from asr.interfaces import BLANK_ID, Encoded, Tokenizer
from recipes.librispeech.prepare import main as prepare
from tests.conftest import SHARED, TINY, needs_shared, resolved
from tests.listener import listener
from tests.nemo import MODEL, needs_model
from tests.refusals import mentions
from tests.test_tokenizer import FITTED
from tests.test_train import trained  # noqa: F401
from tests.tones import GAP_SECONDS, LETTER_SECONDS, SAMPLE_RATE, sentences, speak
from tests.torchaudio_absent import forbid_torchaudio

SHORT = sentences(20, seed=12, words=(1, 2))  # at most 1.6 s, so that every search interval contains a pause
TOLERANCE = 0.08  # seconds by which the start of a word may deviate

# ---- the path


def states(tokens: list[int]) -> list[int]:
    """Return the tokens with blanks around them."""
    return [state for token in tokens for state in (BLANK_ID, token)] + [BLANK_ID]


def best_path(log_probs: Tensor, tokens: list[int]) -> tuple[float, list[int]]:
    """Return the log-probability and the states of the best path that spells `tokens`, by Viterbi in loops."""
    wanted = states(tokens)
    scores = [[-math.inf] * len(wanted) for _ in log_probs]
    came_from = [[0] * len(wanted) for _ in log_probs]
    for frame, row in enumerate(log_probs.double().tolist()):
        for state, token in enumerate(wanted):
            if frame == 0:
                scores[0][state] = row[token] if state < 2 else -math.inf
                continue
            before = [state] + [state - 1] * (state >= 1)
            if state >= 2 and token not in (BLANK_ID, wanted[state - 2]):
                before.append(state - 2)
            came_from[frame][state] = max(before, key=lambda candidate: scores[frame - 1][candidate])
            scores[frame][state] = scores[frame - 1][came_from[frame][state]] + row[token]
    state = max(len(wanted) - 2, len(wanted) - 1, key=lambda candidate: scores[-1][candidate])
    best, path = scores[-1][state], [state]
    for frame in range(len(scores) - 1, 0, -1):
        path.append(came_from[frame][path[-1]])
    return best, path[::-1]


def score(log_probs: Tensor, tokens: list[int], spans: list[Span]) -> float:
    """Return the log-probability of the path with these tokens in these frames, and blanks in the other frames."""
    path = [BLANK_ID] * len(log_probs)
    for token, span in zip(tokens, spans, strict=True):
        path[span.start : span.end] = [token] * (span.end - span.start)
    return sum(float(log_probs[frame, token]) for frame, token in enumerate(path))


ALIGNED = st.tuples(st.lists(st.integers(1, 3), max_size=6), st.integers(0, 8), st.integers(0, 10**6))


@pytest.mark.parametrize("max_cells", [MAX_CELLS, 0], ids=["at once", "in parts"])
@settings(deadline=None)
@given(drawn=ALIGNED)
def test_spans_equal_the_best_path_that_spells_the_tokens(max_cells: int, drawn: tuple[list[int], int, int]) -> None:
    tokens, more, seed = drawn
    repeats = sum(token == next_token for token, next_token in itertools.pairwise(tokens))
    num_frames = len(tokens) + repeats + more
    log_probs = 3 * torch.randn(num_frames, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    log_probs = log_probs.log_softmax(dim=-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "MAX_CELLS", max_cells)
        spans = token_spans(log_probs.float(), tokens)
    assert len(spans) == len(tokens)
    assert all(0 <= span.start < span.end <= num_frames for span in spans)
    for (token, before), (next_token, after) in itertools.pairwise(zip(tokens, spans, strict=True)):
        assert before.end + (token == next_token) <= after.start, "a blank separates equal tokens"
    if tokens:
        best, path = best_path(log_probs, tokens)
        assert score(log_probs, tokens, spans) == pytest.approx(best, abs=1e-4)  # the search is in float32
        assert spans == [
            Span(path.index(state), len(path) - path[::-1].index(state)) for state in range(1, 2 * len(tokens), 2)
        ]
        deficits = frame_deficits(log_probs, tokens, spans)
        assert (deficits <= 0).all()
        loss = best - float(log_probs.max(dim=-1).values.sum())
        assert float(deficits.sum()) == pytest.approx(loss, abs=1e-4)


def test_spans_without_torchaudio_equal_those_with_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log_probs = torch.randn(60, 5).log_softmax(dim=-1)
    expected = token_spans(log_probs, [1, 2, 2, 3, 4])
    assert not caplog.records
    forbid_torchaudio(monkeypatch)
    assert token_spans(log_probs, [1, 2, 2, 3, 4]) == expected
    [record] = caplog.records
    assert mentions(record.getMessage(), "torchaudio ... alignments")


def test_the_most_likely_tokens_have_a_deficit_of_0_in_every_frame() -> None:
    log_probs = torch.randn(50, 5).log_softmax(dim=-1)
    tokens = [token for token, _ in itertools.groupby(log_probs.argmax(dim=-1).tolist()) if token != BLANK_ID]
    assert (frame_deficits(log_probs, tokens, token_spans(log_probs, tokens)) == 0).all()


@pytest.mark.parametrize("max_cells", [MAX_CELLS, 0], ids=["at once", "in parts"])
def test_an_impossible_token_is_also_aligned(max_cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MAX_CELLS", max_cells)
    log_probs = torch.zeros(6, 4)
    log_probs[:, 2] = -math.inf
    assert len(token_spans(log_probs, [1, 2, 3])) == 3


def test_a_path_computed_in_many_parts_equals_the_path_found_by_plain_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "MAX_CELLS", 0)
    blocks: list[int] = []
    advance = alignment._advance

    def counted(scores: Tensor, costs: Tensor, labels: Tensor, choices: Tensor | None = None) -> Tensor:
        blocks.append(len(costs))
        return advance(scores, costs, labels, choices)

    monkeypatch.setattr(alignment, "_advance", counted)
    log_probs = (3 * torch.randn(400, 5)).log_softmax(dim=-1)
    tokens = torch.randint(1, 5, (70,)).tolist()
    spans = token_spans(log_probs, tokens)
    _, path = best_path(log_probs, tokens)
    assert spans == [Span(path.index(state), 400 - path[::-1].index(state)) for state in range(1, 140, 2)]
    assert len(blocks) >= 2 * 8, "two passes, each block by block"
    assert sum(blocks) == 2 * 400


# ---- from tokens to words


def odd_characters() -> Char:
    """Make a tokenizer of characters, some of which normalise to nothing, to two words, or into the previous letter."""
    tokenizer = Char()
    marks = "\N{COMBINING ACUTE ACCENT}\N{COMBINING CEDILLA}\N{DEVANAGARI SIGN VIRAMA}"
    quotes = "'\N{RIGHT SINGLE QUOTATION MARK}\N{EM DASH}-.\N{NO-BREAK SPACE}"
    tokenizer.fit([" abeß½ﬁİक" + marks + quotes])
    return tokenizer


TOKENIZERS: dict[str, Tokenizer] = {**FITTED, "odd": odd_characters()}


def written(tokens: list[int], vocab_size: int, repeat: int) -> Tensor:
    """Return log_probs (T', V) whose best path spells the tokens, with blanks around each of them."""
    path = [state for state in states(tokens) for _ in range(repeat)]
    drawn = torch.rand(len(path), vocab_size, generator=torch.Generator().manual_seed(len(path)))
    drawn[torch.arange(len(path)), path] += 3.0
    return drawn.log_softmax(dim=-1)


@pytest.mark.parametrize("normalizer", sorted(normalizer.__name__ for normalizer in BY_WORDS))
@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@settings(deadline=None, max_examples=60)
@given(data=st.data(), repeat=st.integers(1, 2))
def test_the_words_equal_those_of_the_validation_hypothesis(
    name: str, normalizer: str, data: st.DataObject, repeat: int
) -> None:
    recognizer = listener()
    recognizer.model.tokenizer, recognizer.model.normalize = TOKENIZERS[name], NORMALIZERS[normalizer]
    pieces = recognizer.model.tokenizer.pieces
    tokens = data.draw(st.lists(st.integers(1, len(pieces) - 1), max_size=12))
    log_probs = written(tokens, len(pieces), repeat)
    [[best]] = recognizer.hypotheses(Encoded(log_probs[None], torch.tensor([len(log_probs)]), {}))
    hypothesis = recognizer.text(best)
    transcript = recognizer.transcript(100.0, iter([Segment(2.0, log_probs)]))
    assert transcript.text == hypothesis == transcript.alternatives[0].text
    assert transcript.text == " ".join(transcript.text.split())
    spelt = " ".join("".join(pieces[token] for token in tokens).split())
    assert hypothesis == " ".join(filter(None, (recognizer.model.normalize(word) for word in spelt.split())))
    if normalizer == "as_written":
        assert hypothesis == as_written(spelt) == as_written(recognizer.model.tokenizer.decode(tokens))
    times = [time for word in transcript.words for time in (word.start, word.end)]
    assert all(2.0 <= time <= 2.0 + 0.04 * len(log_probs) + 1e-9 for time in times)
    assert all(word.start < word.end for word in transcript.words)
    assert [word.start for word in transcript.words] == sorted(word.start for word in transcript.words)
    assert all(0 <= word.confidence <= 1 for word in transcript.words)


@given(pieces=st.lists(st.text("ab ", max_size=4), min_size=1, max_size=6), data=st.data())
def test_each_word_has_the_positions_of_the_tokens_that_spell_it(pieces: list[str], data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=10))
    written_by = [(character, position) for position, token in enumerate(tokens) for character in pieces[token]]
    expected = []
    for is_space, group in itertools.groupby(written_by, key=lambda pair: pair[0] == " "):
        if not is_space:
            letters = list(group)
            first, last = letters[0][1], letters[-1][1]
            tail = sum(position == last for _, position in letters)
            expected.append(Spelt("".join(letter for letter, _ in letters), first, last, tail))
    assert spell(tokens, pieces) == expected


# ---- times


def spoken(texts: list[str], pauses: list[float], seed: int = 0) -> tuple[Tensor, list[tuple[str, float]]]:
    """Return audio of texts, each after a pause, in noise; and the start of each word in seconds."""
    parts, words, now = [], [], 0.0
    for text, pause in zip(texts, pauses, strict=True):
        parts += [torch.zeros(round(pause * SAMPLE_RATE)), torch.from_numpy(speak(text))]
        begin = now + pause
        for word in text.split():
            words.append((word, begin))
            begin += (len(word) + 1) * (LETTER_SECONDS + GAP_SECONDS)
        now = sum(map(len, parts)) / SAMPLE_RATE
    waveform = torch.cat(parts)
    return waveform + 0.003 * torch.randn(len(waveform), generator=torch.Generator().manual_seed(seed)), words


def share_within(actual: list[float], expected: list[float]) -> float:
    near = [abs(value - target) <= TOLERANCE for value, target in zip(actual, expected, strict=True)]
    return sum(near) / len(near)


CHUNKS = {
    "one pass": Inference(chunks=ChunkBounds(600.0, 0.0)),
    "chunks": Inference(chunks=ChunkBounds(3.0, 0.5)),
    "chunks that do not fit the frames": Inference(chunks=ChunkBounds(2.83, 0.47)),
}


@pytest.mark.parametrize("way", sorted(CHUNKS))
def test_words_have_the_times_of_their_sounds(way: str) -> None:
    texts = SHORT
    waveform, words = spoken(texts, [0.3] * len(texts))
    [transcript] = listener().transcribe([waveform], CHUNKS[way], sample_rate=SAMPLE_RATE)
    assert transcript.text == " ".join(texts)
    assert share_within([word.start for word in transcript.words], [begin for _, begin in words]) == 1.0
    ends = [begin + len(word) * (LETTER_SECONDS + GAP_SECONDS) - GAP_SECONDS for word, begin in words]
    assert share_within([word.end for word in transcript.words], ends) == 1.0
    for word, next_word in itertools.pairwise(transcript.words):
        assert word.start < word.end <= next_word.start < next_word.end <= transcript.duration


@pytest.mark.parametrize("way", sorted(CHUNKS))
@pytest.mark.parametrize("silence", [0.5, 1.0, 3.7])
def test_inserted_silence_shifts_the_words_after_it(way: str, silence: float) -> None:
    texts = SHORT
    pauses = [0.3] * len(texts)
    for place in (0, 10):
        moved = [pause + silence * (number == place) for number, pause in enumerate(pauses)]
        before, _ = spoken(texts, pauses, seed=1)
        after, words = spoken(texts, moved, seed=2)
        [earlier], [later] = (
            listener().transcribe([waveform], CHUNKS[way], sample_rate=SAMPLE_RATE) for waveform in (before, after)
        )
        assert later.text == earlier.text == " ".join(texts)
        assert share_within([word.start for word in later.words], [begin for _, begin in words]) == 1.0
        first = len(" ".join(texts[:place]).split())
        shifts = [moved.start - word.start for word, moved in zip(earlier.words, later.words, strict=True)]
        assert share_within(shifts, [silence * (number >= first) for number in range(len(shifts))]) == 1.0


@given(pieces=st.lists(st.text("ab ", max_size=5), min_size=1, max_size=6), data=st.data())
def test_words_last_as_long_as_their_characters_and_end_before_the_next_word(
    pieces: list[str], data: st.DataObject
) -> None:
    tokens = data.draw(st.lists(st.integers(0, len(pieces) - 1), min_size=1, max_size=10))
    frames, now = [], 0
    for _ in tokens:
        begin = now + data.draw(st.integers(0, 9))
        now = begin + data.draw(st.integers(1, 3))
        frames.append(Span(begin, now))
    words = spell(tokens, pieces)
    times = word_times(words, frames, 0.04, 2.0, 2.0 + 0.04 * now)
    for number, (word, (begin, end)) in enumerate(zip(words, times, strict=True)):
        assert begin == pytest.approx(2.0 + 0.04 * frames[word.first].start)
        expected = 2.0 + 0.04 * frames[word.last].end + 0.05 * (word.tail - 1)
        following = frames[words[number + 1].first].start if number + 1 < len(words) else now
        # words that share a token also share its start
        nearest = 2.0 + 0.04 * max(following, frames[word.first].start + 1)
        assert end == pytest.approx(min(expected, nearest))


def test_words_of_a_character_model_end_with_their_last_character() -> None:
    words = spell([1, 2, 3, 1, 2], ["", " ", "a", "b"])
    spans = [Span(0, 2), Span(3, 4), Span(4, 9), Span(9, 12), Span(12, 13)]
    [first, second] = word_times(words, spans, 0.04, 0.0, 9.9)
    assert first == pytest.approx((0.12, 0.36))
    assert second == pytest.approx((0.48, 0.52))


def ends_by_energy(words: Sequence[Word], waveform: Tensor) -> list[tuple[float, float]]:
    """Return, for words before a pause, the word's end, and when the sound falls to 25 dB below its peak for 0.1 s."""
    hop = SAMPLE_RATE // 100
    frames = waveform[: len(waveform) // hop * hop].reshape(-1, hop).square().mean(dim=1).clamp(min=1e-10)
    quiet = (10 * torch.log10(frames / frames.max())) < -25
    ends = []
    for word, following in itertools.pairwise(words):
        first, last = round(word.start * 100) + 4, round(following.start * 100)
        lasting = [frame for frame in range(first, last - 9) if quiet[frame : frame + 10].all()]
        if lasting and last - first > 30:
            ends.append((word.end, lasting[0] / 100))
    return ends


@needs_model
@needs_shared
@pytest.mark.slow
def test_words_of_a_subword_model_end_where_the_sound_ends(tmp_path: Path) -> None:
    """The speech is dev-mini; the tokens of the English model last one frame each."""
    assert convert([str(MODEL), "-o", str(tmp_path / "english")]) == 0
    assert prepare(["--corpus-dir", str(SHARED / "LibriSpeech"), "--output-dir", str(tmp_path)]) == 0
    recognizer = load_recognizer(tmp_path / "english")
    ends: list[tuple[float, float]] = []
    lengths: list[float] = []
    for utterance, transcript in recognizer.recognize(read_manifest(tmp_path / "dev-mini.jsonl")):
        words = transcript.words
        lengths += [word.end - word.start for word in words]
        assert all(word.end <= next_word.start + 1e-9 for word, next_word in itertools.pairwise(words))
        ends += ends_by_energy(words, load_waveform(utterance.audio_filepath, SAMPLE_RATE))
    errors = sorted(abs(given - measured) for given, measured in ends)
    assert len(errors) > 100
    assert errors[len(errors) // 2] < 0.1
    assert sum(length < 0.041 for length in lengths) / len(lengths) < 0.2


def test_the_last_word_ends_within_the_recording() -> None:
    """The last frame begins before the end of the sound and extends beyond it."""
    waveform = torch.from_numpy(speak("ab"))[: round(0.27 * SAMPLE_RATE)]
    [transcript] = listener().transcribe([waveform], sample_rate=SAMPLE_RATE)
    assert transcript.words[-1].end <= transcript.duration == len(waveform) / SAMPLE_RATE


def reference_starts(recognizer: Recognizer, log_probs: Tensor, tokens: list[int]) -> list[float]:
    """Return the starts of the words of `tokens`, found by best_path in `log_probs`."""
    _, path = best_path(log_probs, tokens)
    firsts = [path.index(2 * position + 1) for position in range(len(tokens))]
    spaced = [" ", *(recognizer.model.tokenizer.pieces[token] for token in tokens)]
    return [
        0.04 * firsts[position]
        for position, (before, piece) in enumerate(itertools.pairwise(spaced))
        if before.isspace() and not piece.isspace()
    ]


def one_pass(recognizer: Recognizer, waveform: Tensor) -> Tensor:
    features = recognizer.model.features(waveform)
    with torch.inference_mode():
        encoded = recognizer.model(features[None], torch.tensor([len(features)]))
    return encoded.out[0]


@pytest.mark.parametrize("way", sorted(CHUNKS))
def test_the_starts_of_words_equal_those_found_by_plain_loops_over_one_pass(way: str) -> None:
    recognizer = listener()
    waveform, _ = spoken(SHORT[:8], [0.3, 0.5, 1.1, 0.2, 0.3, 2.0, 0.4, 0.3], seed=5)
    [transcript] = recognizer.transcribe([waveform], CHUNKS[way], sample_rate=SAMPLE_RATE)
    encoder_out = one_pass(recognizer, waveform)
    [[hypothesis]] = recognizer.hypotheses(Encoded(encoder_out[None], torch.tensor([len(encoder_out)]), {}))
    expected = reference_starts(recognizer, recognizer.log_probs(encoder_out), hypothesis.tokens)
    assert [word.start for word in transcript.words] == pytest.approx(expected, abs=1e-6)


def test_aligning_a_text_with_a_trained_net_agrees_with_plain_loops(trained: Path, tones: Path) -> None:  # noqa: F811
    recognizer = load_recognizer(trained)
    for utterance in read_manifest(tones / "test.jsonl"):
        log_probs = recognizer.log_probs(one_pass(recognizer, load_waveform(utterance.audio_filepath, SAMPLE_RATE)))
        tokens = recognizer.model.tokenizer.encode(utterance.text)
        best, _ = best_path(log_probs, tokens)
        assert score(log_probs, tokens, token_spans(log_probs, tokens)) == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize(
    ("sample_rate", "shift"),
    [(8000, 0.0125), (11_025, 0.01), (16_000, 0.015), (22_050, 0.0125), (44_100, 0.015), (48_000, 0.01)],
)
def test_times_of_frames_are_exact_in_recordings_of_any_length(sample_rate: int, shift: float) -> None:
    """A shift may be a fraction of a sample; inconsistent rounding would make times drift."""
    config = resolved(*TINY, f"features.sample_rate={sample_rate}", f"features.frame_shift_seconds={shift}")
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["ab"])
    recognizer = build_recognizer(config, tokenizer, features)
    num_samples = 600 * sample_rate
    frames = recognizer.model.encoder.output_lengths(features.num_frames(num_samples))
    assert abs(frames * recognizer.model.frame_seconds - 600) < 2 * recognizer.model.frame_seconds
    click = 40 * features.hop + features.window // 2
    waveform = torch.zeros(100 * features.hop)
    waveform[click] = 0.5
    energies = features.energies(waveform).mean(dim=1)
    loud = (energies > energies.min()).nonzero()[:, 0]
    first, last = ((click - features.window) // features.hop + 1, click // features.hop)
    assert first <= int(loud.min()) <= int(loud.max()) <= last
