"""OpenAI's interface: OpenAI's client reads the answers, and fields and errors follow OpenAI's published schema.

The classes of `openai.types` are generated from the published schema. The client does not validate objects of these
classes, so the tests do: they fail at a missing field, a field of the wrong type, or an additional field.
"""

import asyncio
import itertools
import json
import math
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np
import openai
import pytest
from openai.types import Model
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
)
from openai.types.shared import ErrorObject
from pydantic import BaseModel

from asr.apps.serve.upload import Limits, Uploads
from asr.transcribe import main as transcribe
from tests.refusals import mentions
from tests.serving import Server, multipart, serving
from tests.test_serve import LONG, request_to, service
from tests.test_serve_bad_input import SAID, TOO_LONG, TRACES, encoded, open_files
from tests.tones import SAMPLE_RATE, speak

SchemaT = TypeVar("SchemaT", bound=BaseModel)
PATH = "/v1/audio/transcriptions"
FORM = {"model": "run"}
MAX_SECONDS = 600
WORDS = encoded(np.concatenate([speak("abcd ef"), np.zeros(2 * SAMPLE_RATE), speak("fade dab")]))  # two segments


@pytest.fixture(scope="module")
def server(fluent: Path) -> Iterator[Server]:
    with serving(fluent / "run", "--language", "en", "--max-megabytes", "3", "--max-seconds", MAX_SECONDS) as running:
        yield running


def client_of(server: Server, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, **options)


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return client_of(server)


def post(server: Server, content: bytes | None = SAID, name: str = "a.wav", **fields: Any) -> httpx.Response:
    """Send a form; fields with the value None are left out."""
    form = {field: value for field, value in {**FORM, **fields}.items() if value is not None}
    files = None if content is None else {"file": (name, content)}
    return httpx.post(f"{server.address}{PATH}", data=form, files=files, timeout=60)


def error_of(response: httpx.Response) -> ErrorObject:
    """Return the error of an answer; it has every field of the schema, and its message is one line."""
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    error = of_schema(ErrorObject, json.dumps(body["error"]))
    assert "\n" not in error.message
    assert error.message.endswith(".")
    assert not [trace for trace in TRACES if trace in error.message]
    return error


def of_schema(schema: type[SchemaT], content: str | bytes) -> SchemaT:
    """Read JSON and check it against the schema: types are correct, and no field is missing or additional."""
    answer = schema.model_validate_json(content, strict=True)
    for part in parts(answer):
        assert not part.model_extra, type(part)
    return answer


def parts(value: object) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from parts(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from parts(item)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the data of server-sent events."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *blocks, end = response.text.split("\n\n")
    assert end == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


# ---- answers


def test_the_schema_check_finds_fields_that_are_missing_or_additional_or_wrong() -> None:
    for content in ('{"text": "a", "words": 1}', '{"usage": null}', '{"text": 1}'):
        with pytest.raises((ValueError, AssertionError)):
            of_schema(Transcription, content)


def test_json_has_the_text_of_transcribe(server: Server) -> None:
    response = post(server)
    assert response.headers["content-type"] == "application/json"
    answer = of_schema(Transcription, response.content)
    assert answer.text == server.post(SAID).json()["text"] == "abcd ef"
    assert response.json().keys() == {"text", "usage"}
    assert response.json()["usage"] == {"type": "duration", "seconds": server.post(SAID).json()["duration"]}


@pytest.mark.parametrize(
    ("response_format", "form", "media_type"),
    [("text", "txt", "text/plain"), ("srt", "srt", "text/plain"), ("vtt", "vtt", "text/vtt")],
)
def test_texts_and_subtitles_equal_the_files_of_transcribe(
    response_format: str, form: str, media_type: str, server: Server, fluent: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.wav").write_bytes(WORDS)
    command = [str(fluent / "run"), str(tmp_path / "a.wav"), "--format", form, "--output-dir", str(tmp_path / "out")]
    assert transcribe(command) == 0
    response = post(server, WORDS, response_format=response_format)
    assert response.headers["content-type"] == f"{media_type}; charset=utf-8"
    assert response.text == (tmp_path / "out" / f"a.{form}").read_text()


def test_verbose_json_has_the_requested_segments_and_words(server: Server) -> None:
    expected = server.post(WORDS).json()
    requested = {
        (): {"segments"},
        ("segment",): {"segments"},
        ("word",): {"words"},
        ("word", "segment"): {"words", "segments"},
    }
    for granularities, more in requested.items():
        given = {"timestamp_granularities[]": list(granularities)} if granularities else {}
        response = post(server, WORDS, response_format="verbose_json", **given)
        answer = of_schema(TranscriptionVerbose, response.content)
        assert response.json().keys() == {"language", "duration", "text", "usage"} | more
        assert (answer.language, answer.duration, answer.text) == ("en", expected["duration"], expected["text"])
        if answer.words is not None:
            words = [(word.word, word.start, word.end) for word in answer.words]
            assert words == [(word["text"], word["start"], word["end"]) for word in expected["words"]]


def test_segments_are_numbered_and_scored_according_to_the_schema(server: Server) -> None:
    answer = of_schema(TranscriptionVerbose, post(server, WORDS, response_format="verbose_json").content)
    words = server.post(WORDS).json()["words"]
    cues = post(server, WORDS, response_format="srt").text.strip().split("\n\n")
    assert answer.segments is not None
    assert len(answer.segments) == len(cues) == 2
    for number, (segment, cue) in enumerate(zip(answer.segments, cues, strict=True)):
        own, words = words[: len(segment.text.split())], words[len(segment.text.split()) :]
        assert segment.id == number
        assert segment.text == " ".join(word["text"] for word in own) == " ".join(cue.split("\n")[2:])
        assert segment.start == own[0]["start"]
        assert segment.seek == math.floor(segment.start * 100)
        assert own[-1]["end"] <= segment.end <= answer.duration
        mean = sum(math.log(max(word["confidence"], 1e-4)) for word in own) / len(own)
        assert segment.avg_logprob == pytest.approx(mean, abs=2e-4)  # confidences are rounded to 1e-4
        content = segment.text.encode()
        assert segment.compression_ratio == pytest.approx(len(content) / len(zlib.compress(content)), abs=1e-4)
        assert (segment.temperature, segment.no_speech_prob) == (0.0, 0.0)
        assert len(segment.tokens) == len(segment.text)  # the tokenizer has one token per character
    assert words == []


def test_the_tokens_of_logprobs_concatenate_to_the_text_and_have_the_confidence_of_its_words(server: Server) -> None:
    response = post(server, WORDS, **{"include[]": "logprobs"})
    answer = of_schema(Transcription, response.content)
    assert answer.logprobs is not None
    assert "".join(token.token or "" for token in answer.logprobs) == answer.text
    for token, word in zip(response.json()["logprobs"], server.post(WORDS).json()["words"], strict=True):
        assert bytes(token["bytes"]).decode() == token["token"]
        assert math.exp(token["logprob"]) == pytest.approx(max(word["confidence"], 1e-4), abs=2e-4)


def test_silence_gives_an_empty_answer_in_every_format(server: Server) -> None:
    silence = encoded(np.zeros(3 * SAMPLE_RATE))
    assert of_schema(Transcription, post(server, silence).content).text == ""
    assert post(server, silence, response_format="text").text == "\n"
    assert post(server, silence, response_format="srt").text == ""
    assert of_schema(TranscriptionVerbose, post(server, silence, response_format="verbose_json").content).segments == []
    assert events(post(server, silence, stream="true")) == [{"type": "transcript.text.done", "text": ""}]


# ---- streams


def test_a_stream_has_each_segment_and_then_the_text(server: Server) -> None:
    *deltas, last = events(post(server, LONG, stream="true", **{"include[]": "logprobs"}))
    assert len(deltas) > 1
    pieces = [of_schema(TranscriptionTextDeltaEvent, json.dumps(data)) for data in deltas]
    end = of_schema(TranscriptionTextDoneEvent, json.dumps(last))
    assert "".join(piece.delta for piece in pieces) == end.text == server.post(LONG).json()["text"]
    assert [token for data in deltas for token in data["logprobs"]] == last["logprobs"]
    assert "".join(token["token"] for token in last["logprobs"]) == end.text
    assert [data.keys() for data in events(post(server, stream="true"))] == [{"type", "delta"}, {"type", "text"}]


def test_the_first_words_arrive_before_the_last_are_recognised(server: Server) -> None:
    arrivals = []
    with httpx.stream("POST", f"{server.address}{PATH}", data={**FORM, "stream": "true"}, files={"file": LONG}) as got:
        arrivals = [time.monotonic() for line in got.iter_lines() if line]
    whole = arrivals[-1] - arrivals[0]
    assert whole > 0.05, "all events came at once"


def test_a_client_that_disconnects_stops_its_stream(server: Server) -> None:
    before = server.metric("asr_audio_seconds_total")
    with httpx.stream("POST", f"{server.address}{PATH}", data={**FORM, "stream": "true"}, files={"file": LONG}) as got:
        assert next(got.iter_lines()).startswith("data: ")
    end = time.monotonic() + 60
    while [path for path in open_files(server.process.pid) if str(server.scratch) in str(path)]:
        assert time.monotonic() < end, "the recording of the abandoned stream is still open"
        time.sleep(0.05)
    assert server.get("/health").json()["waiting"] == 0
    assert server.metric("asr_audio_seconds_total") == before  # recognition was cancelled
    assert post(server).json()["text"] == "abcd ef"
    assert "Traceback" not in server.log.read_text()


def ended_stream(how: str, monkeypatch: pytest.MonkeyPatch) -> httpx.Response:
    """Request a stream, and make the decoder fail, or the server stop, at the second segment."""
    served, jobs = service()
    served = replace(served, uploads=Uploads(Limits(10_000_000, MAX_SECONDS, 60), 1, lambda change: None))
    search, calls, answered = served.recognizer.search, itertools.count(1), threading.Event()

    def second_fails(*arguments: Any) -> Any:
        if next(calls) == 2:
            if how == "fault":
                raise KeyError("/root/secret")
            jobs.stop()
            assert answered.wait(60)  # otherwise the second segment's words may still precede the error
        return search(*arguments)

    monkeypatch.setattr(served.recognizer, "search", second_fails)
    jobs.start()
    form = {"model": "listener", "stream": "true"}
    response = request_to(served, "POST", PATH, data=form, files={"file": ("a.flac", LONG)})
    answered.set()
    jobs.stop()
    jobs.join(60)
    return response


@pytest.mark.parametrize(
    ("how", "message"), [("fault", "the server failed; see its log."), ("stop", "the server is stopping.")]
)
def test_an_error_in_a_stream_is_its_last_event(how: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    response = ended_stream(how, monkeypatch)
    assert response.status_code == 200
    *deltas, last = events(response)
    assert [data["type"] for data in deltas] == ["transcript.text.delta"]
    assert last.keys() == {"error"}
    assert last["error"]["type"] == "server_error"
    assert message in last["error"]["message"]


def test_an_error_before_the_first_words_has_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    served, jobs = service()
    form = {"model": "listener", "stream": "true"}
    stopped = request_to(
        served, "POST", PATH, data=form, files={"file": ("a.wav", SAID)}
    )  # the job threads have not been started yet
    assert stopped.status_code == 503
    assert "stopping" in error_of(stopped).message
    jobs.start()
    monkeypatch.setattr(served.recognizer.model.encoder, "forward", None)
    failed = request_to(served, "POST", PATH, data=form, files={"file": ("a.wav", SAID)})
    assert failed.status_code == 500
    assert error_of(failed).type == "server_error"
    jobs.stop()
    jobs.join(60)


# ---- invalid requests

WRONG: dict[str, tuple[dict[str, Any], int, str | None, str | None, str]] = {
    "no model": ({"model": None}, 400, "model", "missing_required_parameter", "GET /v1/models"),
    "unknown model": ({"model": "whisper-1"}, 404, "model", "model_not_found", "--model-name"),
    "two models": ({"model": ["run", "run"]}, 400, "model", "invalid_value", "given once"),
    "unknown format": ({"response_format": "xml"}, 400, "response_format", "invalid_value", "got 'xml'"),
    "diarized": ({"response_format": "diarized_json"}, 400, "response_format", "invalid_value", "'verbose_json'"),
    "granularities without verbose_json": (
        {"timestamp_granularities[]": "word"},
        400,
        "timestamp_granularities[]",
        "invalid_value",
        "response_format=verbose_json; got json",
    ),
    "unknown granularity": (
        {"response_format": "verbose_json", "timestamp_granularities[]": ["word", "phone"]},
        400,
        "timestamp_granularities[]",
        "invalid_value",
        "got 'phone'",
    ),
    "logprobs of subtitles": (
        {"response_format": "srt", "include[]": "logprobs"},
        400,
        "include[]",
        "invalid_value",
        "response_format=json; got srt",
    ),
    "unknown include": ({"include[]": "speakers"}, 400, "include[]", "invalid_value", "got 'speakers'"),
    "prompt": ({"prompt": "Kubernetes, Grafana"}, 400, "prompt", "unsupported_value", "--prompt-hotwords"),
    "temperature": ({"temperature": "0.2"}, 400, "temperature", "unsupported_value", "got 0.2"),
    "a temperature that is a text": ({"temperature": "hot"}, 400, "temperature", "invalid_value", "got 'hot'"),
    "NaN": ({"temperature": "nan"}, 400, "temperature", "unsupported_value", "got nan"),
    "another language": ({"language": "de"}, 400, "language", "unsupported_value", "got 'de'"),
    "stream of subtitles": ({"stream": "true", "response_format": "srt"}, 400, "response_format", None, "got srt"),
    "stream is not a boolean": ({"stream": "perhaps"}, 400, "stream", "invalid_value", "got 'perhaps'"),
    "hotwords": ({"hotwords": "Grafana"}, 400, "hotwords", "invalid_value", "--beam"),
    "keywords": ({"keywords[]": "Grafana"}, 400, "hotwords", "invalid_value", "--beam"),
    "a strange field": ({"\u202e<b>" * 30: "x"}, 400, None, "unknown_parameter", "…'"),
    "a long field": ({"prompt": "a" * 20_000}, 400, None, None, "16KB"),
    "too many fields": ({f"field{number}": "x" for number in range(1_040)}, 400, None, None, "1032"),
}


@pytest.mark.parametrize(("fields", "status", "param", "code", "message"), WRONG.values(), ids=WRONG.keys())
def test_an_invalid_field_is_named(
    fields: dict[str, Any], status: int, param: str | None, code: str | None, message: str, server: Server
) -> None:
    response = post(server, **fields)
    error = error_of(response)
    assert response.status_code == status
    assert error.type == "invalid_request_error"
    assert message in error.message
    assert param is None or error.param == param
    assert code is None or error.code == code


FILES: dict[str, tuple[bytes | None, int, str]] = {
    "no file": (None, 400, "the field `file`"),
    "empty": (b"", 400, "(0 bytes)"),
    "not audio": (b"this is not audio\n" * 100, 400, "libsndfile"),
    "truncated": (SAID[: len(SAID) // 2], 400, "file: "),
    "too many bytes": (bytes(4_000_000), 413, "at most 3 megabytes"),
    "too many seconds": (TOO_LONG["an hour of silence in a small FLAC"][0], 413, "at most 600 seconds"),
}


@pytest.mark.parametrize(("content", "status", "message"), FILES.values(), ids=FILES.keys())
def test_an_invalid_file_is_refused(content: bytes | None, status: int, message: str, server: Server) -> None:
    for stream in ("false", "true"):
        if content is None:  # httpx sends no multipart form without a file
            response = httpx.post(f"{server.address}{PATH}", files={"model": (None, "run"), "stream": (None, stream)})
        else:
            response = post(server, content, stream=stream)
        assert response.status_code == status
        error = error_of(response)
        assert message in error.message
        assert error.param == "file"


def test_a_field_sent_as_a_file_and_a_file_sent_as_a_field_are_refused(server: Server) -> None:
    files = {"file": ("a.wav", SAID), "prompt": ("a.txt", b"words"), "model": (None, "run")}
    assert mentions(error_of(httpx.post(f"{server.address}{PATH}", files=files)).message, "'prompt'; got a file")
    headers = {"content-type": "multipart/form-data; boundary=b0undary"}
    body = multipart(b"hello", name='name="file"')
    response = httpx.post(f"{server.address}{PATH}", content=body, headers=headers)
    assert "no file name" in error_of(response).message


def test_every_error_below_v1_has_the_format_of_openai(server: Server) -> None:
    def answer(method: str, path: str, **given: Any) -> tuple[int, str]:
        response = httpx.request(method, f"{server.address}{path}", **given)
        return response.status_code, error_of(response).message

    assert answer("POST", "/v1/audio/translations")[0] == 404
    assert "/v1/audio/transcriptions" in answer("GET", "/v1/chat")[1]
    assert answer("GET", PATH) == (405, "GET is not allowed at this address; it accepts POST.")
    assert answer("POST", PATH, json={"model": "run"})[0] == 415
    assert answer("POST", PATH, headers={"content-type": "multipart/form-data"})[0] == 400
    assert answer("POST", f"{PATH}?nbest=2", files={"file": SAID})[0] == 400
    assert answer("GET", "/v1/models", headers={"host": "evil.example"})[0] == 421
    assert answer("POST", PATH, files={"file": SAID}, headers={"origin": "http://evil.example"})[0] == 403
    assert "detail" in httpx.get(f"{server.address}/nowhere").json()


@pytest.mark.slow
def test_a_busy_server_gives_a_retry_time_and_the_client_retries(fluent: Path) -> None:
    with serving(fluent / "run", "--queue", "1", "--max-batch", "1") as server:
        with ThreadPoolExecutor(12) as clients:
            responses = list(clients.map(lambda _: post(server, LONG), range(12)))
        refused = [response for response in responses if response.status_code != 200]
        assert 0 < len(refused) < 12
        for response in refused:
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            assert "busy" in error_of(response).message
        with ThreadPoolExecutor(3) as clients:
            patient = client_of(server).with_options(max_retries=20)
            answers = list(
                clients.map(
                    lambda _: patient.audio.transcriptions.create(model="run", file=("a.flac", LONG)).text, range(3)
                )
            )
        assert len(set(answers)) == 1
        assert answers[0]


# ---- the model, and fields without effect


def test_the_model_is_listed_and_found_by_its_name(server: Server, client: openai.OpenAI) -> None:
    began = time.time()
    listed = httpx.get(f"{server.address}/v1/models").json()
    assert listed.keys() == {"object", "data"}
    assert listed["object"] == "list"
    [model] = listed["data"]
    assert of_schema(Model, json.dumps(model)).id == "run"
    assert began - 600 < model["created"] <= began
    assert httpx.get(f"{server.address}/v1/models/run").json() == model
    assert [model.id for model in client.models.list()] == ["run"]
    with pytest.raises(openai.NotFoundError, match="got 'whisper/1'"):
        client.models.retrieve("whisper/1")


def test_the_model_name_can_be_chosen_and_a_language_is_refused_unless_configured(fluent: Path) -> None:
    with serving(fluent / "run", "--model-name", "openai/whisper-1") as server:
        client = client_of(server)
        assert client.models.retrieve("openai/whisper-1").id == "openai/whisper-1"
        assert server.get("/health").json()["model"] == "openai/whisper-1"
        answer = client.audio.transcriptions.create(
            model="openai/whisper-1", file=("a.wav", SAID), response_format="verbose_json"
        )
        assert (answer.text, answer.language) == ("abcd ef", "und")
        with pytest.raises(openai.BadRequestError, match="not started with --language") as caught:
            client.audio.transcriptions.create(model="openai/whisper-1", file=("a.wav", SAID), language="en")
        assert caught.value.param == "language"


# ---- OpenAI's client


def test_the_client_reads_every_format(client: openai.OpenAI, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(WORDS)
    create = client.audio.transcriptions.create
    text = create(model="run", file=tmp_path / "a.wav").text
    assert text
    assert create(model="run", file=tmp_path / "a.wav", response_format="text") == f"{text}\n"
    assert create(model="run", file=tmp_path / "a.wav", response_format="srt").startswith("1\n00:00:")
    assert create(model="run", file=tmp_path / "a.wav", response_format="vtt").startswith("WEBVTT\n")
    verbose = create(
        model="run",
        file=tmp_path / "a.wav",
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        language="en",
        prompt="",
        temperature=0,
    )
    assert verbose.text == text == " ".join(word.word for word in verbose.words or ())
    assert text == " ".join(segment.text for segment in verbose.segments or ())


def test_the_client_reads_streams(client: openai.OpenAI) -> None:
    with client.audio.transcriptions.create(model="run", file=("a.flac", LONG), stream=True) as stream:
        *deltas, last = stream
    assert all(isinstance(delta, TranscriptionTextDeltaEvent) for delta in deltas)
    assert isinstance(last, TranscriptionTextDoneEvent)
    assert "".join(delta.delta for delta in deltas) == last.text


def test_exceptions_of_the_client_name_the_field(client: openai.OpenAI) -> None:
    create = client.audio.transcriptions.create
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="whisper-1", file=("a.wav", SAID))
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as empty:
        create(model="run", file=("a.wav", b""))
    assert empty.value.param == "file"
    with pytest.raises(openai.BadRequestError) as unsupported:
        create(model="run", file=("a.wav", SAID), chunking_strategy="auto")
    assert unsupported.value.param == "chunking_strategy"
    with pytest.raises(openai.BadRequestError) as late:
        list(create(model="run", file=("a.wav", b"RIFF"), stream=True))
    assert late.value.type == "invalid_request_error"


def test_the_client_raises_the_error_that_ends_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    response = ended_stream("fault", monkeypatch)
    answer = httpx.MockTransport(lambda _: httpx.Response(200, headers=response.headers, content=response.content))

    async def read() -> None:
        async with openai.AsyncOpenAI(
            base_url="http://x/v1", api_key="none", http_client=httpx.AsyncClient(transport=answer)
        ) as client:
            stream = await client.audio.transcriptions.create(model="listener", file=("a.flac", b"-"), stream=True)
            assert (await anext(aiter(stream))).type == "transcript.text.delta"
            await anext(aiter(stream))

    with pytest.raises(openai.APIError, match="the server failed"):
        asyncio.run(read())


def test_a_stopping_server_finishes_open_streams(fluent: Path) -> None:
    with serving(fluent / "run") as server:
        with httpx.stream(
            "POST", f"{server.address}{PATH}", data={**FORM, "stream": "true"}, files={"file": LONG}, timeout=60
        ) as got:
            lines = got.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            *_, last = (line for line in lines if line)
        assert json.loads(last.removeprefix("data: "))["type"] == "transcript.text.done"
        assert server.process.wait(30) == 0
