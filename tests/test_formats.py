"""Formats of transcripts: another library or tool reads each format, and gets the content of the transcript."""

import html
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import accumulate, combinations, pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
import srt
import webvtt
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from parselmouth.praat import call
from praatio import textgrid

from asr.core.recognition.formats import FORMATS
from asr.core.recognition.subtitles import Grouping
from asr.core.recognition.transcript import Alternative, Transcript, Word

ROUNDING = 0.0005 + 1e-9  # seconds; times are rounded to milliseconds

# There is no deadline, because cores may be shared.
read_back = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

Span = tuple[str, float, float]  # a text, and its start and end in seconds

# Words that the normalizer as_written may produce: any characters except white space, control characters and
# lone surrogates.
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=60) | (
    st.sampled_from(
        rf"""
        the don't überdrüssig हिन्दी 日本語 😀 {"long" * 15}
        --> a-->b &amp; & <b> </i> " "" \ \n \al 1 00:00 ;; {{ xmin WEBVTT NOTE STYLE
        """.split()
    )
)
CONFIDENCES = st.floats(0, 1)


@st.composite
def ordinary_transcripts(draw: st.DrawFn) -> Transcript:
    """Draw words that do not overlap, but may touch, and whose durations are not 0."""
    words, now = [], 0.0
    for text in draw(st.lists(TEXTS, max_size=30)):
        start = now + draw(st.sampled_from([0.0, 0.04, 0.4, 2.0]) | st.floats(0.002, 5000))
        now = start + draw(st.sampled_from([0.04, 0.3]) | st.floats(0.002, 12))
        words.append(Word(text, start, now, draw(CONFIDENCES)))
    return Transcript(tuple(words), (), now + draw(st.sampled_from([0.0, -0.01, 3.0])) if words else 0.0)


@st.composite
def rough_transcripts(draw: st.DrawFn) -> Transcript:
    """Draw any transcript that a decoder may produce: starts are in order, and no word ends before it starts."""
    words, start = [], 0.0
    for text in draw(st.lists(TEXTS, max_size=60)):
        start += draw(st.sampled_from([0.0, 0.0, 0.0, 0.0003, 0.04]) | st.floats(0, 3))
        end = start + draw(st.sampled_from([0.0, 0.0003, 0.08]) | st.floats(0, 10))
        words.append(Word(text, start, end, draw(CONFIDENCES)))
    return Transcript(tuple(words), (), draw(st.floats(0, 100)))


TRANSCRIPTS = ordinary_transcripts() | rough_transcripts()

CROWDED = Transcript(tuple(Word("crowd" * 9, 1.0, 1.0, 0.5) for _ in range(9)), (), 1.0)
EMPTY = Transcript((), (), 0.0)


def spoken(*words: Span, duration: float = 0.0) -> Transcript:
    return Transcript(tuple(Word(text, start, end, 0.5) for text, start, end in words), (), duration)


def talk(num_words: int, seed: int = 0) -> Transcript:
    """Return the transcript of a long talk with hesitations."""
    chance, words, now = random.Random(seed), [], 0.0
    for _ in range(num_words):
        start = now + chance.choice([0.0, 0.04, 0.12, 0.12, 0.2, 1.0])
        now = start + chance.uniform(0.04, 0.6)
        words.append(Word("".join(chance.choices("abcdefghij'", k=chance.randint(1, 14))), start, now, chance.random()))
    return Transcript(tuple(words), (Alternative("a", -1.5),), now + 0.3)


def file_of(name: str, transcript: Transcript, recording: str = "talk.wav") -> str:
    return FORMATS[name].write(recording, transcript)


def stream_of(name: str, *transcripts: tuple[str, Transcript]) -> str:
    return "".join(FORMATS[name].stream(transcripts))


# ---------------------------------------------------------------------------------------------- text and JSON


def test_a_text_has_only_words_but_each_line_of_a_stream_starts_with_the_recordings_name() -> None:
    transcript = spoken(("good", 0.1, 0.3), ("morning", 0.3, 0.9))
    assert file_of("txt", transcript) == "good morning\n"
    assert stream_of("txt", ("a b.wav", transcript), ("c.wav", EMPTY)) == "a b.wav\tgood morning\nc.wav\t\n"


@read_back
@given(TRANSCRIPTS)
def test_json_contains_the_transcript_and_the_name_of_the_recording(
    transcript: Transcript,
) -> None:
    expected = {"id": "a/ü.wav", **transcript.as_dict()}
    written = file_of("json", transcript, "a/ü.wav")
    assert json.loads(written) == expected
    assert list(json.loads(written)) == list(expected)  # the name of the recording is the first key
    assert "ü" in written  # non-ASCII letters are not escaped as \u00fc
    assert json.loads(file_of("jsonl", transcript, "a/ü.wav")) == expected


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_stream_of_json_is_one_list_and_a_stream_of_jsonl_has_one_line_per_recording(count: int) -> None:
    transcripts = [(f"{number}.wav", talk(number)) for number in range(count)]
    expected = [{"id": recording, **transcript.as_dict()} for recording, transcript in transcripts]
    assert json.loads(stream_of("json", *transcripts)) == expected
    assert [json.loads(line) for line in stream_of("jsonl", *transcripts).splitlines()] == expected


def test_a_stream_yields_a_recording_before_it_requests_the_next() -> None:
    requested = []

    def transcripts() -> Iterator[tuple[str, Transcript]]:
        for recording in ("a.wav", "b.wav"):
            requested.append(recording)
            yield recording, EMPTY

    stream = FORMATS["json"].stream(transcripts())
    assert [next(stream), next(stream)][0] == "["
    assert requested == ["a.wav"]


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_file_name_that_is_not_utf_8_is_written_as_its_bytes_and_json_stays_valid(name: str) -> None:
    recording = os.fsdecode(b"caf\xe9.wav")
    entry = FORMATS[name].entry(recording, talk(2))
    encoded = entry.encode("utf-8", errors="surrogateescape")
    if name in ("json", "jsonl"):
        assert os.fsencode(json.loads(encoded)["id"]) == b"caf\xe9.wav"
    elif name in ("txt", "ctm"):
        assert encoded.startswith(b"caf\xe9")


# -------------------------------------------------------------------------------------------------- subtitles


Cue = tuple[float, float, str]  # start, end, displayed text


def seconds(time: webvtt.models.Timestamp) -> float:
    return ((time.hours * 60 + time.minutes) * 60 + time.seconds) + time.milliseconds / 1000


def by_webvtt(captions: webvtt.WebVTT) -> list[Cue]:
    return [(seconds(caption.start_time), seconds(caption.end_time), caption.raw_text) for caption in captions]


def read_vtt(document: str) -> list[Cue]:
    return [
        (start, end, html.unescape(text)) for start, end, text in by_webvtt(webvtt.from_string(document, strict=True))
    ]


def read_srt(document: str) -> list[Cue]:
    cues = list(srt.parse(document))
    assert [cue.index for cue in cues] == list(range(1, len(cues) + 1))
    return [(cue.start.total_seconds(), cue.end.total_seconds(), cue.content) for cue in cues]


def read_srt_by_webvtt(document: str) -> list[Cue]:
    return by_webvtt(webvtt.from_buffer(io.StringIO(document), format="srt")) if document else []


READERS: dict[str, tuple[str, Callable[[str], list[Cue]]]] = {
    "vtt": ("vtt", read_vtt),
    "srt": ("srt", read_srt),
    "srt, another reader": ("srt", read_srt_by_webvtt),
}


def shown(name: str, word: str) -> str:
    return word.replace("-->", "→") if name == "srt" else word


@pytest.mark.parametrize("reader", list(READERS))
@read_back
@given(transcript=TRANSCRIPTS)
@example(transcript=CROWDED)
@example(transcript=EMPTY)
def test_subtitles_show_every_word_once_in_order_and_one_cue_at_a_time(reader: str, transcript: Transcript) -> None:
    name, read = READERS[reader]
    cues = read(file_of(name, transcript))
    words = [word for _, _, text in cues for word in text.split()]
    assert words == [shown(name, word.text) for word in transcript.words]
    assert all(start < end for start, end, _ in cues)
    assert all(end <= next_start for (_, end, _), (next_start, _, _) in pairwise(cues))


@pytest.mark.parametrize("reader", list(READERS))
@pytest.mark.parametrize("seed", range(3))
def test_cues_of_a_long_talk_are_readable(reader: str, seed: int) -> None:
    transcript = talk(4000, seed)
    name, read = READERS[reader]
    words = iter(transcript.words)
    cues = read(file_of(name, transcript))
    for number, (start, end, text) in enumerate(cues):
        lines = text.split("\n")
        assert len(lines) <= 2
        assert all(len(line) <= 42 for line in lines)
        assert end - start <= 7 + 1e-9
        room = cues[number + 1][0] if number + 1 < len(cues) else transcript.duration
        assert end - start >= min(1, room - start) - 0.001

        shown_words = [next(words) for _ in text.split()]
        assert abs(start - shown_words[0].start) <= ROUNDING
        assert end >= shown_words[-1].end - ROUNDING
        reading = max(1, len(text) / 17)
        assert end <= max(shown_words[-1].end, start + reading) + 2 * ROUNDING
        assert end - start >= min(reading, room - start, 7) - 2 * ROUNDING
        assert all(after.start - before.end <= 0.8 + 2 * ROUNDING for before, after in pairwise(shown_words))
    assert next(words, None) is None


@given(
    spans=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 1200), st.integers(1, 3000)), min_size=1, max_size=8)
)
@settings(max_examples=60, deadline=None)
def test_the_cues_cost_as_little_as_the_best_of_all_groupings(spans: list[tuple[int, int, int]]) -> None:
    words, now = [], 0.0
    for length, pause, duration in spans:
        words.append(Word("x" * length, now + pause / 1000, now + (pause + duration) / 1000, 1.0))
        now = words[-1].end
    transcript = Transcript(tuple(words), (), now + 2)
    grouping, count = Grouping(transcript), len(words)

    def total(bounds: list[int]) -> float:
        return sum(grouping.cost(first, after) for first, after in pairwise(bounds))

    def allowed(first: int, after: int) -> bool:
        """Whether the words may be one cue, by the rules alone."""
        gaps = (later.start - before.end for before, later in pairwise(words[first:after]))
        seconds = words[after - 1].end - words[first].start
        lines = wrap([word.text for word in words[first:after]])
        return after == first + 1 or (max(gaps) <= 0.8005 and seconds <= 7.0005 and len(lines) <= 2)

    every = [
        [0, *inner, count]
        for size in range(count)
        for inner in combinations(range(1, count), size)
        if all(allowed(*pair) for pair in pairwise([0, *inner, count]))
    ]
    ends = list(accumulate(len(cue.words) for cue in grouping.cues()))
    assert [0, *ends] in every
    assert total([0, *ends]) == pytest.approx(min(map(total, every)))


def test_a_cue_ends_where_the_voice_pauses_or_a_sentence_ends() -> None:
    words, now = [], 0.0
    for number in range(40):
        now += 0.5 if number % 8 == 0 else 0.02
        words.append((f"word{number}", now, now + 0.5))
        now += 0.5
    starts = [text.split()[0] for _, _, text in read_srt(file_of("srt", spoken(*words, duration=now)))]
    assert starts == ["word0", "word8", "word16", "word24", "word32"]
    written = [(f"{word}{'.' if number % 8 == 7 else ''}", *times) for number, (word, *times) in enumerate(words)]
    level = [(word, 0.5 * number, 0.5 * number + 0.5) for number, (word, *_) in enumerate(written)]
    starts = [text.split()[0] for _, _, text in read_srt(file_of("srt", spoken(*level, duration=30)))]
    assert starts == ["word0", "word8", "word16", "word24", "word32"]


def wrap(words: list[str]) -> list[str]:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > 43:
            lines.append("")
        lines[-1] += " " + word
    return lines


X, Y = "x" * 42, "y" * 42


@pytest.mark.parametrize(
    ("words", "duration", "expected"),
    [
        ([("a", 0, 0.1)], 9.0, [(0, 1, "a")]),  # the cue is extended, so that it can be read
        ([("a", 0, 0.1)], 0.5, [(0, 0.5, "a")]),  # the cue is not extended beyond the end of the recording
        ([("a", 0, 0.1)], 0.05, [(0, 0.1, "a")]),  # rounding may move the end of the cue beyond that of the recording
        # the cue is not extended beyond the start of the next cue
        ([("a", 0, 0.1), ("b", 0.901, 2)], 9.0, [(0, 0.901, "a"), (0.901, 2, "b")]),
        ([("a", 0, 0.1), ("b", 0.9, 2)], 9.0, [(0, 2, "a b")]),
        ([("a", 0, 3), ("b", 3, 6), ("c", 6, 7)], 9.0, [(0, 7, "a b c")]),
        ([("a", 0, 3), ("b", 3, 6), ("c", 6, 7.001)], 9.0, [(0, 6, "a b"), (6, 7.001, "c")]),
        ([("a", 0, 10), ("b", 10, 11)], 11.0, [(0, 7, "a"), (10, 11, "b")]),  # the cue of a long word is shortened
        # the cue remains until its 42 characters can be read, 17 a second
        ([("x" * 20, 0, 1), ("y" * 21, 1, 2)], 9.0, [(0, 2.471, "x" * 20 + " " + "y" * 21)]),
        ([("x" * 20, 0, 1), ("y" * 22, 1, 2)], 9.0, [(0, 2.529, "x" * 20 + "\n" + "y" * 22)]),
        # the second cue can remain after the speech, so it has more of the words
        ([(X, 0, 1), (Y, 1, 2), ("z", 2, 3)], 9.0, [(0, 1, X), (1, 3.588, f"{Y}\nz")]),
        ([("x" * 50, 0, 1), ("y", 1, 2)], 9.0, [(0, 3.059, "x" * 50 + "\ny")]),  # words are not split
        ([("a", 1, 2), ("b", 1.5, 2)], 9.0, [(1, 2, "a b")]),
        ([(X, 1, 1.9), (Y, 1, 1.9), ("z", 1, 1.9)], 9.0, [(1, 1.3, X), (1.3, 3.888, f"{Y}\nz")]),
    ],
)
def test_the_words_of_each_example_are_divided_into_exactly_the_expected_cues(
    words: list[Span], duration: float, expected: list[Cue]
) -> None:
    transcript = spoken(*words, duration=duration)
    for name, read in READERS.values():
        assert read(file_of(name, transcript)) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0004, "00:00:00.000"),
        (59.9994, "00:00:59.999"),
        (59.9996, "00:01:00.000"),
        (3599.9996, "01:00:00.000"),
        (359999.9996, "100:00:00.000"),
        (4444444.123, "1234:34:04.123"),
    ],
)
def test_times_of_subtitles_are_rounded_before_they_are_split_into_hours_minutes_and_seconds(
    seconds: float, expected: str
) -> None:
    transcript = spoken(("a", seconds, seconds + 2))
    assert file_of("vtt", transcript).splitlines()[2].split(" --> ")[0] == expected
    assert file_of("srt", transcript).splitlines()[1].split(" --> ")[0] == expected.replace(".", ",")
    [cue] = srt.parse(file_of("srt", transcript))
    assert abs(cue.start - timedelta(seconds=seconds)) <= timedelta(seconds=ROUNDING)


def test_subtitles_of_example_transcripts_are_exactly_as_expected() -> None:
    transcript = spoken(("cats", 0.52, 0.8), ("&", 0.8, 1), ("<dogs>", 1, 1.6), ("a-->b", 3, 4.5), duration=5)
    assert file_of("srt", transcript) == (
        "1\n00:00:00,520 --> 00:00:01,600\ncats & <dogs>\n\n2\n00:00:03,000 --> 00:00:04,500\na→b\n"
    )
    assert file_of("vtt", transcript) == (
        "WEBVTT\n\n00:00:00.520 --> 00:00:01.600\ncats &amp; &lt;dogs&gt;\n\n00:00:03.000 --> 00:00:04.500\na--&gt;b\n"
    )
    assert file_of("srt", EMPTY) == ""
    assert file_of("vtt", EMPTY) == "WEBVTT\n"


@read_back
@given(TRANSCRIPTS)
def test_webvtt_has_arrows_only_between_times_and_escapes_markup(transcript: Transcript) -> None:
    for line in file_of("vtt", transcript).split("\n"):
        if not re.fullmatch(r"\d{2,}:\d\d:\d\d\.\d{3} --> \d{2,}:\d\d:\d\d\.\d{3}", line):
            assert not re.search(r"[<>]|&(?!(amp|lt|gt);)", line)


# ------------------------------------------------------------------------------------------------ sclite's CTM


CtmLine = tuple[str, str, float, float, str, float]


def read_ctm(document: str) -> list[CtmLine]:
    """Read a CTM by the rules of SCTK's infmts.htm; fail if the file violates them."""
    lines = []
    for line in document.split("\n"):
        if not line or line.startswith(";;"):
            continue
        waveform, channel, start, duration, word, confidence = line.split()
        lines.append((waveform, channel, float(start), float(duration), word, float(confidence)))
    keys = [(line[0].encode("utf-8", "surrogateescape"), line[1].encode(), line[2]) for line in lines]
    assert keys == sorted(keys)
    return lines


@read_back
@given(ordinary_transcripts())
def test_ctm_contains_every_word_with_its_time_and_confidence(transcript: Transcript) -> None:
    lines = read_ctm(file_of("ctm", transcript, "calls/4521.final.wav"))
    assert [line[4] for line in lines] == [word.text for word in transcript.words]
    for (waveform, channel, start, duration, _, confidence), word in zip(lines, transcript.words, strict=True):
        assert (waveform, channel) == ("4521.final", "1")
        assert abs(start - word.start) <= ROUNDING
        assert abs(start + duration - word.end) <= ROUNDING
        assert abs(confidence - word.confidence) <= 0.00005 + 1e-9


@read_back
@given(TRANSCRIPTS)
@example(CROWDED)
def test_ctm_is_in_chronological_order_and_no_word_has_duration_0(transcript: Transcript) -> None:
    lines = read_ctm(file_of("ctm", transcript))
    assert [line[4] for line in lines] == [word.text for word in transcript.words]
    assert all(duration > 0 for _, _, _, duration, _, _ in lines)
    assert all(a[2] + a[3] <= b[2] + 1e-9 for a, b in pairwise(lines))


@pytest.mark.parametrize(
    ("recording", "expected"),
    [
        ("a/b.wav", "b"),
        ("my talk\t(1).final.flac", "my_talk_(1).final"),
        ("a\u00a0b.wav", "a_b"),
        (";;comment.wav", "_;comment"),
        (".wav", ".wav"),
    ],
)
def test_ctm_names_a_recording_by_its_file_name_without_an_extension_or_spaces(recording: str, expected: str) -> None:
    [line] = read_ctm(file_of("ctm", talk(1), recording))
    assert line[0] == expected
    key = FORMATS["ctm"].key
    assert key is not None
    assert key(recording) == expected


@pytest.fixture(scope="module")
def sctk() -> Path:
    for folder in [Path("/usr/lib/sctk/bin"), Path(shutil.which("sclite") or "sclite").parent]:
        if (folder / "sclite").exists() and (folder / "ctmValidator.pl").exists():
            return folder
    pytest.skip("NIST's sclite and ctmValidator.pl are not installed (Debian: apt-get install sctk)")


def test_sclite_finds_no_error_in_a_stream_of_ctm(sctk: Path, tmp_path: Path) -> None:
    key = FORMATS["ctm"].key
    assert key is not None
    recordings = sorted(["Z.wav", "two words.wav", "a.wav", "b/a-1.wav", "B.wav", "nothing.wav"], key=key)
    transcripts = {recording: talk(60, seed) for seed, recording in enumerate(recordings)} | {"nothing.wav": EMPTY}
    ctm, stm = tmp_path / "hypothesis.ctm", tmp_path / "reference.stm"
    ctm.write_text(stream_of("ctm", *transcripts.items()))
    stm.write_text(
        "".join(
            f"{key(recording)} 1 speaker 0 {transcript.duration + 1:.2f} {transcript.text}\n"
            for recording, transcript in transcripts.items()
        )
    )

    validated = subprocess.run(["perl", sctk / "ctmValidator.pl", "-i", ctm], capture_output=True, text=True)
    assert validated.returncode == 0, validated.stdout
    arguments = ["-r", stm.name, "stm", "-h", ctm.name, "ctm", "-o", "sum", "stdout"]  # long paths widen the table
    scored = subprocess.run([sctk / "sclite", *arguments], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "rror:" not in scored.stdout + scored.stderr
    [total] = re.findall(r"Sum/Avg \|\s*(\d+)\s+(\d+) \|\s*([\d.]+)\s.*?([\d.]+)\s+[\d.]+ \|", scored.stdout)
    assert total == ("6", "300", "100.0", "0.0")  # segments, words, % correct, % errors


# ------------------------------------------------------------------------------------------- Praat's TextGrid


def read_by_praat(document: str) -> list[tuple[float, float, str]]:
    with NamedTemporaryFile("w", suffix=".TextGrid", encoding="utf-8") as file:
        file.write(document)
        file.flush()
        [grid] = call("Read from file...", file.name)
    assert [call(grid, "Get number of tiers"), call(grid, "Get tier name", 1)] == [1, "words"]
    assert call(grid, "Is interval tier", 1)
    intervals = [
        (
            call(grid, "Get start time of interval", 1, number),
            call(grid, "Get end time of interval", 1, number),
            call(grid, "Get label of interval", 1, number),
        )
        for number in range(1, call(grid, "Get number of intervals", 1) + 1)
    ]
    assert (grid.xmin, grid.xmax) == (intervals[0][0], intervals[-1][1])
    return intervals


def read_by_praatio(document: str) -> list[tuple[float, float, str]]:
    with NamedTemporaryFile("w", suffix=".TextGrid", encoding="utf-8") as file:
        file.write(document)
        file.flush()
        grid = textgrid.openTextgrid(file.name, includeEmptyIntervals=True, reportingMode="error")
    assert grid.tierNames == ("words",)
    intervals = [(interval.start, interval.end, interval.label) for interval in grid.getTier("words").entries]
    assert (grid.minTimestamp, grid.maxTimestamp) == (intervals[0][0], intervals[-1][1])
    return intervals


@pytest.mark.parametrize("read", [read_by_praat, read_by_praatio])
@read_back
@given(transcript=TRANSCRIPTS)
@example(transcript=CROWDED)
@example(transcript=EMPTY)
@example(transcript=Transcript((), (), 2.5))
def test_a_textgrid_covers_the_whole_time_and_contains_every_word_once_in_order(
    read: Callable[[str], list[tuple[float, float, str]]], transcript: Transcript
) -> None:
    intervals = read(file_of("textgrid", transcript))
    assert [text for _, _, text in intervals if text] == [word.text for word in transcript.words]
    assert intervals[0][0] == 0
    assert all(start < end for start, end, _ in intervals)
    assert all(before[1] == after[0] for before, after in pairwise(intervals))
    assert not any(before[2] == after[2] == "" for before, after in pairwise(intervals))
    last = max([transcript.duration, *[word.end for word in transcript.words[-1:]]])
    assert intervals[-1][1] >= last - ROUNDING
    longest = max([transcript.duration, *[word.end for word in transcript.words]])
    pushed = 0.001 * max(1, len(transcript.words))  # at most a millisecond per word, so that each has a duration
    assert intervals[-1][1] <= longest + pushed + ROUNDING


@read_back
@given(ordinary_transcripts())
def test_a_textgrid_gives_praat_the_times_of_words(transcript: Transcript) -> None:
    intervals = [interval for interval in read_by_praat(file_of("textgrid", transcript)) if interval[2]]
    for (start, end, _), word in zip(intervals, transcript.words, strict=True):
        assert abs(start - word.start) <= ROUNDING
        assert abs(end - word.end) <= ROUNDING


@pytest.mark.parametrize(
    ("words", "duration", "expected"),
    [
        ([("a", 0, 1)], 2.0, [(0, 1, "a"), (1, 2, "")]),
        ([("a", 0.5, 2.001)], 2.0, [(0, 0.5, ""), (0.5, 2.001, "a")]),  # the word ends after the end of the recording
        ([("a", 0, 2), ("b", 1, 3)], 3.0, [(0, 1, "a"), (1, 3, "b")]),  # the words overlap
        # two words have equal times
        ([("a", 0, 1), ("b", 0, 1), ("c", 1, 2)], 2.0, [(0, 0.5, "a"), (0.5, 1, "b"), (1, 2, "c")]),
        ([("a", 0, 0), ("b", 0, 1)], 1.0, [(0, 0.5, "a"), (0.5, 1, "b")]),
        ([("a", 1, 1), ("b", 1, 1)], 2.0, [(0, 1, ""), (1, 1.001, "a"), (1.001, 1.002, "b"), (1.002, 2, "")]),
        ([("a", 0, 0), ("b", 0, 0), ("c", 0.001, 1)], 1.0, [(0, 0.001, "a"), (0.001, 0.002, "b"), (0.002, 1, "c")]),
        ([], 0.0, [(0, 0.001, "")]),
    ],
)
def test_words_with_equal_times_are_written_one_after_another(
    words: list[Span], duration: float, expected: list[tuple[float, float, str]]
) -> None:
    assert read_by_praat(file_of("textgrid", spoken(*words, duration=duration))) == expected


# ---------------------------------------------------------------------------------------------- all formats


@read_back
@given(recording=st.text(min_size=1), transcript=TRANSCRIPTS)
def test_every_file_ends_with_a_line_break_and_can_be_encoded(recording: str, transcript: Transcript) -> None:
    for name in FORMATS:
        written = file_of(name, transcript, recording)
        assert not written or written.endswith("\n")
        if not re.search("[\ud800-\udc7f\udd00-\udfff]", recording):  # file names cannot contain these characters
            written.encode("utf-8", errors="surrogateescape")


def test_formats_do_not_import_torch() -> None:
    code = "import sys, asr.core.recognition.formats; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
