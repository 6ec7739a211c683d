"""Hotwords of single utterances, requests and streams: each result is that of the same list alone."""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor

from asr import Stream
from asr.apps.serve.hotwords import MAX_BYTES, MAX_PHRASES
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import read_manifest
from asr.core.recognition.captions import Captions
from asr.core.recognition.recognizer import NUM_CACHED, Recognizer
from asr.core.recognition.streaming import LookBackStream, look_back_together
from asr.errors import InputError
from asr.interfaces import NO_BIASING, Biasing, Encoded
from asr.serve import main as serve
from asr.transcribe import main as transcribe
from tests.conftest import PATIENCE
from tests.fusion import PHRASES, Trigrams, beam, search_config, write_lines
from tests.live import END, Live, events, live, pcm
from tests.refusals import mentions, refused
from tests.serving import Server, serving
from tests.test_serve_bad_input import encoded
from tests.test_streaming import speech, streaming_recognizer, transducer
from tests.tones import speak

LETTERS = ["", " ", *"abc"]
NAMES = ["abe", "bad", "cafe", "fade", "feed", "deaf", "bed", "dab face"]


def random_log_probs(count: int, frames: int = 12) -> Tensor:
    torch.manual_seed(0)
    return (2 * torch.randn(count, frames, len(LETTERS))).log_softmax(dim=-1)


def lists(count: int, seed: int = 0) -> list[list[str]]:
    draw = random.Random(seed)
    return [draw.sample(PHRASES, draw.randrange(4)) for _ in range(count)]


# ---- searches


def test_each_utterance_of_a_batch_has_its_own_list() -> None:
    search, log_probs = beam(LETTERS, beam_size=5, hotword_score=2.0), random_log_probs(32)
    encoded_frames = Encoded(log_probs, torch.full((32,), 12), {})
    biasings = [search.compile_hotwords(phrases) for phrases in lists(32)]
    together = search.search(search.evidence(encoded_frames), biasings)
    assert together != search.search(search.evidence(encoded_frames)), "the lists change results"
    for number, biasing in enumerate(biasings):
        alone = Encoded(log_probs[number : number + 1], torch.tensor([12]), {})
        assert search.search(search.evidence(alone), [biasing]) == [together[number]]


@pytest.mark.parametrize("knowing", ["nothing", "words", "model"])
def test_a_list_of_an_utterance_equals_a_list_in_the_settings(tmp_path: Path, knowing: str) -> None:
    """The words of a list are known to the lexicon and to the language model."""
    options: dict[str, Any] = {}
    if knowing == "words":
        options = {"lexicon": write_lines(tmp_path / "words.txt", ["ab", "ca"])}
    elif knowing == "model":
        pytest.importorskip("kenlm")
        options = {"lm": Trigrams(["ab", "ca"], random.Random(0)).write(tmp_path / "lm.arpa"), "unknown_score": -3.0}
    log_probs = random_log_probs(1)
    encoded_frames = Encoded(log_probs, torch.tensor([12]), {})
    for phrases in filter(None, lists(20, seed=1)):
        (tmp_path / "names.txt").write_text("\n".join(phrases))
        fixed = beam(LETTERS, hotwords=str(tmp_path / "names.txt"), hotword_score=2.0, **options)
        free = beam(LETTERS, hotword_score=0.5, **options)
        expected = fixed.search(fixed.evidence(encoded_frames))
        assert free.search(free.evidence(encoded_frames), [free.compile_hotwords(phrases, 2.0)]) == expected


def test_the_list_of_an_utterance_adds_to_the_list_of_the_settings(tmp_path: Path) -> None:
    log_probs = random_log_probs(1)
    encoded_frames = Encoded(log_probs, torch.tensor([12]), {})
    for own, further in zip(filter(None, lists(20, seed=2)), lists(20, seed=3), strict=False):
        (tmp_path / "own.txt").write_text("\n".join(own))
        (tmp_path / "both.txt").write_text("\n".join([*own, *further]))
        both = beam(LETTERS, hotwords=str(tmp_path / "both.txt"))
        first = beam(LETTERS, hotwords=str(tmp_path / "own.txt"))
        found = first.search(first.evidence(encoded_frames), [first.compile_hotwords(further)])
        for hypothesis, expected in zip(found[0], both.search(both.evidence(encoded_frames))[0], strict=True):
            assert hypothesis.tokens == expected.tokens
            assert hypothesis.score == pytest.approx(expected.score, abs=1e-9)


# ---- recognisers


@pytest.fixture(scope="module", params=["ctc", "tdt"])
def recognizer(request: pytest.FixtureRequest) -> Recognizer:
    """A streaming recogniser whose random weights emit many tokens: CTC with a beam search, a greedy transducer."""
    if request.param == "ctc":
        return streaming_recognizer(search_config("beam", beam_size=4), torch.float32)
    recognizer = transducer("tdt alone")
    recognizer.model.float()
    return recognizer


def texts_alone(recognizer: Recognizer, waveforms: Sequence[Tensor], hotwords: Sequence[Sequence[str]]) -> list[str]:
    pairs = zip(waveforms, hotwords, strict=True)
    return [recognizer.transcribe(wave, sample_rate=16000, hotwords=words).text for wave, words in pairs]


def test_transcribe_prefers_hotwords_and_refuses_what_it_cannot_use(recognizer: Recognizer) -> None:
    wave = speech(3.0, 1, torch.float32)
    plain = recognizer.transcribe(wave, sample_rate=16000).text
    preferred = recognizer.transcribe(wave, sample_rate=16000, hotwords=["hgfe"], hotword_score=40).text
    assert preferred.split().count("hgfe") > plain.split().count("hgfe")
    assert recognizer.transcribe(wave, sample_rate=16000, hotwords=["hgfe"], hotword_score=0).text == plain
    for wrong, named in (("hgfe", "hotwords ... 'hgfe'"), ([3], "hotwords ... 3")):
        with refused(InputError, named):
            recognizer.transcribe(wave, sample_rate=16000, hotwords=wrong)  # type: ignore[arg-type]
    with refused(InputError, "hotword_score ... -1"):
        recognizer.transcribe(wave, sample_rate=16000, hotwords=["a"], hotword_score=-1)
    with refused(InputError, "hotwords ... greedy ... decode ... beam"):
        streaming_recognizer(dtype=torch.float32).transcribe(wave, sample_rate=16000, hotwords=["a"])


def test_phrases_that_the_model_cannot_spell_are_logged(
    recognizer: Recognizer, caplog: pytest.LogCaptureFixture
) -> None:
    assert recognizer.biasing(["abe", "Zoë"]).phrases == ["abe"]
    assert "Zoë" in caplog.text


def test_compiled_lists_are_shared_and_their_number_is_bounded(recognizer: Recognizer) -> None:
    first = recognizer.biasing(["abe", "bad"])
    assert recognizer.biasing(["abe", "bad"]) is first
    assert recognizer.biasing(["abe", "bad"], 5.0) is not first
    for number in range(NUM_CACHED):
        recognizer.biasing(["abe"], number + 6.0)
    assert recognizer.biasing(["abe", "bad"]) is not first


def test_the_key_hotwords_of_a_manifest_applies_to_its_line(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = [json.loads(line) for line in (fluent / "test.jsonl").read_text().splitlines()][:3]
    for line in test:
        line["audio_filepath"] = str(fluent / line["audio_filepath"])
    [first, second, third] = test
    first["hotwords"], second["hotwords"] = ["feed", " dab  face"], "feed\ndab face"
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in test))
    utterances = read_manifest(tmp_path / "calls.jsonl", ["hotwords"])
    assert [dict(line.labels) for line in utterances] == [{"hotwords": "feed\ndab face"}] * 2 + [{}]
    arguments = [str(fluent / "run"), str(tmp_path / "calls.jsonl"), "--beam", "4", "--hotword-score", "300"]
    assert transcribe([*arguments, "--format", "jsonl"]) == 0
    by_id = {line["id"]: line["text"] for line in map(json.loads, capsys.readouterr().out.splitlines())}
    expected = {}
    recognizer = load_recognizer(fluent / "run", decode={"name": "beam", "beam_size": 4})
    for line in test:
        words = ["feed", "dab face"] if "hotwords" in line else []
        transcript = recognizer.transcribe(line["audio_filepath"], hotwords=words, hotword_score=300)
        expected[line["id"]] = transcript.text
    assert by_id == expected
    plain = [recognizer.transcribe(line["audio_filepath"]).text for line in test]
    changed = [by_id[line["id"]] != text for line, text in zip(test, plain, strict=True)]
    assert any(changed[:2])
    assert not changed[2]
    third["hotwords"] = []
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in test))
    assert read_manifest(tmp_path / "calls.jsonl", ["hotwords"])[2].labels == {}
    third["hotwords"] = [3]
    (tmp_path / "calls.jsonl").write_text("".join(json.dumps(line) + "\n" for line in test))
    with refused(InputError, "calls.jsonl:3 ... hotwords ... 3"):
        read_manifest(tmp_path / "calls.jsonl", ["hotwords"])


# ---- streams


def captions(stream: Stream, wave: Tensor, chunk: int = 4000) -> list[Captions]:
    return [*(stream.feed(part) for part in wave.split(chunk)), stream.finish()]


def final(given: Sequence[Captions]) -> list[tuple[str, float, float]]:
    return [(word.text, word.start, word.end) for each in given for word in each.final]


def test_a_stream_has_the_words_of_the_whole_recording_with_the_same_list_at_its_times(recognizer: Recognizer) -> None:
    endless: dict[str, Any] = {"endpoint_seconds": None, "settled_seconds": None}
    for seed in range(4):
        wave = speech(4.0, seed, torch.float32)
        options: dict[str, Any] = {"hotwords": NAMES, "hotword_score": 8.0}
        whole = recognizer.transcribe(wave, sample_rate=16000, **options)
        assert whole.text != recognizer.transcribe(wave, sample_rate=16000).text
        streamed = final(captions(Stream(recognizer, **endless, **options), wave))
        assert [text for text, _, _ in streamed] == whole.text.split()
        times = [second for _, start, end in streamed for second in (start, end)]
        # With a beam, a word can be final before the frames that would move it by a frame or two.
        assert times == pytest.approx([second for word in whole.words for second in (word.start, word.end)], abs=0.09)


def test_streams_of_one_batch_have_the_words_of_their_own_lists(recognizer: Recognizer) -> None:
    waves = [speech(3.0, seed, torch.float32) for seed in range(16)]
    own = [NAMES[: seed % 5] for seed in range(16)]
    alone = [
        final(captions(Stream(recognizer, hotwords=names, hotword_score=8.0), wave))
        for names, wave in zip(own, waves, strict=True)
    ]
    assert alone != [final(captions(Stream(recognizer), wave)) for wave in waves]
    streams = [Stream(recognizer, hotwords=names, hotword_score=8.0) for names in own]
    words: list[list[tuple[str, float, float]]] = [[] for _ in streams]
    for parts in [*zip(*(wave.split(4000) for wave in waves), strict=True), None]:
        for number, stream in enumerate(streams):
            stream.ears.hear(torch.zeros(0) if parts is None else parts[number], at_end=parts is None)
        for number, caption in enumerate(streams[0].advance([stream.ears for stream in streams])):
            words[number] += final([caption])
    assert words == alone


def test_a_new_list_applies_from_the_next_word_on(recognizer: Recognizer) -> None:
    """Before the replacement, the words are those of the first list; afterwards, the second list is preferred."""
    wave = speech(8.0, 5, torch.float32)
    parts = wave.split(4000)

    def words(second: Sequence[str], first: Sequence[str] = ("abe",)) -> list[list[tuple[str, float, float]]]:
        stream = Stream(recognizer, hotwords=first, hotword_score=40.0)
        before = [stream.feed(part) for part in parts[:16]]
        stream.replace_hotwords(second, 40.0)
        return [final(before), final([*(stream.feed(part) for part in parts[16:]), stream.finish()])]

    unchanged, changed, emptied = words(["abe"]), words(["hgfe"]), words([])
    assert unchanged[0] == changed[0] == emptied[0]
    counts = [[text for text, _, _ in later].count("hgfe") for _, later in (unchanged, changed, emptied)]
    assert counts[1] > max(counts[0], counts[2])
    assert [text for text, _, _ in changed[1]].count("abe") <= [text for text, _, _ in unchanged[1]].count("abe")


def test_a_stream_that_looks_back_follows_its_list() -> None:
    recognizer = streaming_recognizer(search_config("beam", beam_size=4), torch.float32)
    own = [[], ["hgfe"], ["abe"]]
    waves = [speech(2.0, seed, torch.float32) for seed in range(3)]
    streams = []
    for names, wave in zip(own, waves, strict=True):
        streams.append(LookBackStream(recognizer, 0.96, 8.0, biasing=recognizer.biasing(names, 40.0)))
        streams[-1].hear(wave, at_end=True)
    texts = [" ".join(word.text for word in caption.final) for caption in look_back_together(streams)]
    whole = [
        recognizer.transcribe(wave, sample_rate=16000, hotwords=names, hotword_score=40.0).text
        for names, wave in zip(own, waves, strict=True)
    ]
    assert texts == whole


# ---- the server


@pytest.fixture(scope="module")
def lists_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lists") / "names.txt"
    path.write_text("\n".join(NAMES))
    return path


@pytest.fixture(scope="module")
def server(fluent: Path, lists_file: Path) -> Iterator[Server]:
    options = ("--beam", "4", "--hotword-score", "300", "--hotwords-list", f"names={lists_file}", "--prompt-hotwords")
    with serving(fluent / "run", *options) as running:
        yield running


SPOKEN = [encoded(speak(text)) for text in ("abcd fade", "cafe deab", "bad efab", "dab fac", "edaf", "fabe")]


def answer(server: Server, number: int, fields: list[tuple[str, Any]], openai: bool = False) -> httpx.Response:
    path, own = ("/v1/audio/transcriptions", [("model", (None, "run"))]) if openai else ("/transcribe", [])
    parts = [("file", ("said.wav", SPOKEN[number])), *own, *((name, (None, value)) for name, value in fields)]
    return httpx.post(server.address + path, files=parts, timeout=PATIENCE)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["text"]
    return text


def test_requests_at_once_get_the_words_of_their_own_lists(server: Server, fluent: Path) -> None:
    recognizer = load_recognizer(fluent / "run", decode={"name": "beam", "beam_size": 4})
    own = [NAMES[number % 7 : number % 7 + number % 3] for number in range(32)]
    with ThreadPoolExecutor(32) as pool:
        jobs = [
            pool.submit(answer, server, number % 6, [("hotwords", name) for name in names], number % 2 == 0)
            for number, names in enumerate(own)
        ]
    found = [text_of(job.result()) for job in jobs]
    alone = []
    for number, names in enumerate(own):
        Path(fluent / "said.wav").write_bytes(SPOKEN[number % 6])
        alone.append(recognizer.transcribe(fluent / "said.wav", hotwords=names, hotword_score=300).text)
    assert found == alone
    assert len(set(found)) > 6, "the lists change results"


@pytest.mark.parametrize(
    "fields",
    [
        [("hotwords", "bad\nfeed")],
        [("hotwords", "bad"), ("hotwords", "feed")],
        [("keywords[]", "bad"), ("hotwords", "feed")],
        [("prompt", "bad, feed")],
    ],
)
def test_fields_that_name_the_same_hotwords_are_equal(server: Server, fields: list[tuple[str, Any]]) -> None:
    expected = text_of(answer(server, 5, [("keywords[]", "bad"), ("keywords[]", "feed")], openai=True))
    assert text_of(answer(server, 5, fields, openai=True)) == expected
    assert expected != text_of(answer(server, 5, [], openai=True))


def test_a_request_chooses_a_list_of_the_server_by_name(server: Server) -> None:
    expected = text_of(answer(server, 5, [("hotwords", "\n".join(NAMES))]))
    assert text_of(answer(server, 5, [("hotwords_list", "names")])) == expected
    assert text_of(answer(server, 5, [("hotwords_list", "names"), ("hotwords", "bad")])) == expected


def test_an_answer_counts_the_hotwords_that_the_model_cannot_spell(server: Server) -> None:
    response = answer(server, 0, [("hotwords", "Zoë\nbad\n42")])
    assert response.headers["x-hotwords-unused"] == "2"
    assert "x-hotwords-unused" not in answer(server, 0, [("hotwords", "bad")]).headers
    assert "Zo" not in server.log.read_text(), "the server does not log the names of its clients"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ([("hotwords", "a\n" * (MAX_PHRASES + 1))], f"hotwords ... {MAX_PHRASES + 1:,} ... --hotwords-list"),
        ([("hotwords", "a" * 9_000), ("keywords[]", "b" * 9_000)], f"hotwords ... {MAX_BYTES:,} ... 18,000"),
        ([("hotwords_list", "others")], "hotwords_list ... names ... 'others'"),
        ([("hotwords", "a"), ("hotword_score", "loud")], "hotword_score ... 'loud'"),
        ([("hotwords", "a"), ("hotword_score", "-1")], "hotword_score ... '-1'"),
        ([("hotword_score", "3")], "hotword_score ... hotwords"),
        ([("boost", "3")], "hotwords ... 'boost'"),
    ],
)
def test_hotwords_that_cannot_be_used_are_refused_in_one_line(
    server: Server, fields: list[tuple[str, Any]], named: str
) -> None:
    response = answer(server, 0, fields)
    assert response.status_code == 422
    [*parts] = named.split(" ... ")
    assert all(mentions(response.json()["detail"], part) for part in parts)


def test_lists_of_the_server_need_a_beam_search_and_different_names(fluent: Path, lists_file: Path) -> None:
    given = [str(fluent / "run"), "--port", "0", "--hotwords-list"]
    with refused(InputError, "--hotwords-list ... beam ... --beam"):
        serve([*given, f"names={lists_file}"])
    with refused(InputError, "--prompt-hotwords ... beam"):
        serve([*given[:-1], "--prompt-hotwords"])
    with refused(InputError, f"--hotwords-list ... {lists_file}"):
        serve([*given, str(lists_file), "--beam", "4"])
    with refused(InputError, "--hotwords-list ... names=b"):
        serve([*given, f"names={lists_file}", "--hotwords-list", "names=b", "--beam", "4"])


def live_words(
    recognizer: Recognizer, wave: Tensor, first: dict[str, Any], later: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Send a waveform as a client; `later` is sent after half of it, once its words have arrived."""

    async def of(server: Live) -> list[dict[str, Any]]:
        async with server.connect() as connection:
            await connection.send(json.dumps({"sample_rate": 16000, **first}))
            for part in pcm(wave[: len(wave) // 2]), later, pcm(wave[len(wave) // 2 :]):
                if isinstance(part, bytes):
                    await connection.send(part)
                elif part is not None:
                    await connection.send(json.dumps(part))
            await connection.send(END)
            return await events(connection)

    async def run() -> list[dict[str, Any]]:
        async with live(recognizer) as server:
            return await of(server)

    return asyncio.run(run())


def test_a_live_stream_follows_the_hotwords_of_its_messages(recognizer: Recognizer) -> None:
    wave = speech(8.0, 5, torch.float32)
    rounded = torch.frombuffer(bytearray(pcm(wave)), dtype=torch.int16).float() / 2**15

    def words(replies: list[dict[str, Any]]) -> list[str]:
        return [word["text"] for reply in replies for word in reply.get("final", [])]

    options: dict[str, Any] = {"hotwords": ["abe", "hgfe"], "hotword_score": 20.0}
    expected = [text for text, _, _ in final(captions(Stream(recognizer, **options), rounded))]
    assert words(live_words(recognizer, wave, options)) == expected
    assert words(live_words(recognizer, wave, {}, later=options | {"hotword_score": 40.0})) != words(
        live_words(recognizer, wave, {})
    )
    assert live_words(recognizer, wave, {"hotwords": ["abe", "Zoë"]})[0]["unused_hotwords"] == ["Zoë"]


@pytest.mark.parametrize(
    ("first", "later", "named"),
    [
        ({"hotwords": "abe"}, None, "hotwords"),
        ({"hotwords_list": "names"}, None, "hotwords_list"),
        ({"hotwords": ["a"] * (MAX_PHRASES + 1)}, None, "hotwords"),
        ({}, {"hotwords": [3]}, "hotwords"),
        ({}, {"hotwords": ["abe"], "end": True}, "hotwords"),
    ],
)
def test_a_message_with_unusable_hotwords_ends_the_stream_with_one_line(
    recognizer: Recognizer, first: dict[str, Any], later: dict[str, Any] | None, named: str
) -> None:
    replies = live_words(recognizer, speech(1.0, 0, torch.float32), first, later)
    assert mentions(replies[-1]["error"], named)
    assert "\n" not in replies[-1]["error"]


def test_nothing_of_one_request_is_stored_in_the_decoder(recognizer: Recognizer) -> None:
    wave = speech(2.0, 3, torch.float32)
    before = recognizer.transcribe(wave, sample_rate=16000)
    recognizer.transcribe(wave, sample_rate=16000, hotwords=["hgfe"], hotword_score=40)
    assert recognizer.transcribe(wave, sample_rate=16000) == before
    assert recognizer.decode.biasing is NO_BIASING or recognizer.decode.biasing == Biasing()
