"""The server as clients use it: answers equal to those of asr.transcribe, concurrency, metrics, and a clean stop."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import schemathesis
import soundfile
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as openapi_checks

from asr.apps.serve.app import make_app
from asr.apps.serve.hosts import Hosts
from asr.apps.serve.hotwords import ServedHotwords
from asr.apps.serve.jobs import Jobs
from asr.apps.serve.metrics import Metrics
from asr.apps.serve.pages import read_examples
from asr.apps.serve.schema import Transcription
from asr.apps.serve.service import Service
from asr.apps.serve.stream_client import StreamLimits
from asr.apps.serve.stream_sockets import StreamSockets
from asr.apps.serve.streams import Streams
from asr.apps.serve.upload import Limits, Uploads
from asr.base.audio.resampling import resample
from asr.core.data.manifest import read_manifest
from asr.core.recognition.inference import INFERENCE
from asr.errors import InputError
from asr.serve import _bound_socket, _name
from asr.transcribe import main as transcribe
from tests.conftest import ROOT
from tests.forked import run_module
from tests.listener import listener
from tests.media import media_file, needs_media
from tests.refusals import check_refusal, mentions, refused
from tests.serving import Server, answer, multipart, request_head, serving
from tests.test_serve_bad_input import SAID, encoded, one_line, open_files
from tests.tones import SAMPLE_RATE, sentences, speak

# a recording of a few minutes
LONG = encoded(np.concatenate([speak(text + "  ") for text in sentences(150, seed=6)]), "FLAC")


@pytest.fixture(scope="module")
def server(fluent: Path) -> Iterator[Server]:
    with serving(fluent / "run", "--beam", "4") as running:
        yield running


def in_background(function: Any, *arguments: Any) -> "Future[Any]":
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


# ---- answers


def test_the_answer_equals_the_output_of_transcribe(server: Server, fluent: Path, tmp_path: Path) -> None:
    for number, suffix in enumerate((".wav", ".flac", ".ogg", ".mp3")):
        soundfile.write(tmp_path / f"said{suffix}", speak(sentences(4, seed=number)[3]), SAMPLE_RATE)
    (tmp_path / "long.flac").write_bytes(LONG)
    files = sorted(tmp_path.iterdir())
    options = ["--beam", "4", "--nbest", "3", "--format", "json", "--output-dir", str(tmp_path / "out")]
    for file in files:
        assert transcribe([str(fluent / "run"), str(file), *options]) == 0
        written = json.loads((tmp_path / "out" / f"{file.stem}.json").read_text())
        response = server.post(file.read_bytes(), file.name, nbest=3)
        assert response.status_code == 200
        assert response.json() == {**written, "id": file.name}
        assert list(response.json()) == list(written)
        Transcription.model_validate_json(response.content, strict=True)


@needs_media
@pytest.mark.parametrize("suffix", ["m4a", "mp4", "webm"])
def test_the_recordings_of_phones_and_browsers_are_read(
    server: Server, fluent: Path, tmp_path: Path, suffix: str
) -> None:
    text = sentences(4, seed=1)[3]
    path = tmp_path / f"said.{suffix}"
    waveform = resample(torch.from_numpy(speak(text)), SAMPLE_RATE, 48000).numpy()
    path.write_bytes(media_file(waveform, suffix=suffix, video_seconds=1.0 if suffix == "mp4" else 0.0))
    assert server.post(path.read_bytes(), path.name).json()["text"] == text
    assert (
        transcribe([str(fluent / "run"), str(tmp_path), "--format", "json", "--output-dir", str(tmp_path / "out")]) == 0
    )
    assert json.loads((tmp_path / "out" / "said.json").read_text())["text"] == text


def test_nbest_limits_the_number_of_hypotheses(server: Server) -> None:
    assert len(server.post(SAID).json()["alternatives"]) == 1
    three = server.post(SAID, nbest=3).json()
    assert 1 < len(three["alternatives"]) <= 3
    assert three["alternatives"][0]["text"] == three["text"]


def test_concurrent_requests_get_the_answers_of_separate_requests(server: Server, fluent: Path) -> None:
    files = [Path(utterance.audio_filepath) for utterance in read_manifest(fluent / "test.jsonl")][:24]
    alone = {file: server.post(file.read_bytes(), file.name).json() for file in files}
    before = server.metric("asr_batch_recordings_count")
    with ThreadPoolExecutor(24) as clients:
        together = list(clients.map(lambda file: server.post(file.read_bytes(), file.name).json(), files * 2))
    batches = server.metric("asr_batch_recordings_count") - before
    assert batches < len(together) / 2, "hardly any recordings were recognised in one batch"
    for file, answered in zip(files * 2, together, strict=True):
        expected = alone[file]
        assert answered["text"] == expected["text"]
        assert answered["id"] == file.name
        for word, same in zip(answered["words"], expected["words"], strict=True):
            assert (word["text"], word["start"], word["end"]) == (same["text"], same["start"], same["end"])
            assert word["confidence"] == pytest.approx(same["confidence"], abs=1.1e-4)  # both are rounded to 1e-4


def test_a_curl_command_suffices_as_a_client(server: Server, tmp_path: Path) -> None:
    (tmp_path / "said.wav").write_bytes(SAID)
    command = ["curl", "-s", "-F", f"file=@{tmp_path / 'said.wav'}", f"{server.address}/transcribe"]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["text"] == "abcd ef"


# ---- health and metrics


def test_health_describes_the_served_model(server: Server) -> None:
    response = server.get("/health")
    assert response.status_code == 200
    assert response.json() == {"ready": True, "model": "run", "waiting": 0, "streams": 0}


def test_metrics_count_requests_by_path_and_status(server: Server) -> None:
    def count(status: int) -> float:
        match = re.search(
            rf'asr_requests_total{{path="/transcribe",status="{status}"}} (\S+)', server.get("/metrics").text
        )
        return float(match[1]) if match else 0.0

    before = count(200), count(422), server.metric("asr_audio_seconds_total")
    latencies = server.metric("asr_transcribe_seconds_count")
    duration = server.post(SAID).json()["duration"]
    server.post(b"nothing")
    assert count(200) == before[0] + 1
    assert count(422) == before[1] + 1
    assert server.metric("asr_audio_seconds_total") == pytest.approx(before[2] + duration, abs=1e-3)
    assert server.metric("asr_transcribe_seconds_count") == latencies + 1
    server.get("/nowhere/1")
    server.get("/nowhere/2")
    # Unknown paths are not counted, because otherwise any client could make this page grow without limit.
    assert "nowhere" not in server.get("/metrics").text


def test_the_log_has_one_line_per_request_and_no_transcripts(server: Server) -> None:
    server.post(SAID, "private name.wav")
    server.get("/a%0ab%1b[31m?secret=1")
    line = server.wait_for_log(r"POST /transcribe 200 \d+\.\d+ s$")
    assert "127.0.0.1" in line
    server.wait_for_log(r"GET /a\\nb\\x1b\[31m 404")  # written after the answer is sent
    log = server.log.read_text()
    assert "private" not in log
    assert "abcd" not in log
    assert "secret" not in log
    assert "\x1b" not in log


# ---- the schema


UPLOADING = ("/transcribe", "/v1/audio/transcriptions")
SCHEMA_CHECKS = [
    not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.unsupported_method,
    openapi_checks.negative_data_rejection,
]


def test_the_server_conforms_to_its_own_schema(server: Server) -> None:
    """Schemathesis makes valid and invalid requests from the schema; each answer must conform to it."""
    recordings = st.sampled_from([SAID, encoded(speak("fa"), "FLAC"), LONG[:2000]]) | st.binary(max_size=500)
    schemathesis.openapi.format("binary", recordings)
    schema = schemathesis.openapi.from_url(f"{server.address}/openapi.json")
    statuses: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        seen = statuses.setdefault(operation.path, set())
        takes_something = operation.path in UPLOADING  # routes without input cannot get invalid input
        for mode in schemathesis.GenerationMode if takes_something else [schemathesis.GenerationMode.POSITIVE]:
            fuzz(operation.as_strategy(generation_mode=mode), seen)
    assert statuses.keys() == {*UPLOADING, "/v1/models", "/v1/models/{name}", "/health", "/metrics"}
    assert statuses["/health"] == statuses["/metrics"] == statuses["/v1/models"] == {200}
    assert statuses["/v1/models/{name}"] == {404}
    assert statuses["/transcribe"] >= {200, 422}
    assert statuses["/v1/audio/transcriptions"] >= {200, 400}
    malformed = {"Content-Type": "multipart/form-data; boundary=b"}
    broken = httpx.post(f"{server.address}/transcribe", content=b"no boundary in it", headers=malformed)
    assert broken.status_code == 400, "the fuzzer does not always find such bodies"
    schema["/transcribe"]["POST"].validate_response(broken)
    assert "400" in schema["/transcribe"]["POST"].definition.raw["responses"]
    assert server.post(SAID).status_code == 200


def fuzz(cases: Any, seen: set[int]) -> None:
    """Make the same requests in each test run, check each answer against the schema, and add its status to `seen`."""

    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def ask(case: Any) -> None:
        fields = case.body if isinstance(case.body, dict) else {}
        assume(not any(isinstance(value, list) for value in fields.values()))  # an empty list is an absent field
        assume(not {"hotwords", "keywords[]"} & fields.keys())  # in a form, every value is a text, so a valid phrase
        seen.add(case.call_and_validate(checks=SCHEMA_CHECKS).status_code)

    ask()


# ---- overload, and the end


def test_requests_beyond_the_queue_are_refused_with_a_time_to_retry(fluent: Path) -> None:
    with serving(fluent / "run", "--queue", "2", "--max-batch", "1") as server:
        with ThreadPoolExecutor(20) as clients:
            responses = list(clients.map(lambda _: server.post(LONG, "long.flac"), range(20)))
        statuses = [response.status_code for response in responses]
        assert set(statuses) == {200, 503}
        for refused in (response for response in responses if response.status_code == 503):
            assert int(refused.headers["retry-after"]) > 0
            assert "busy" in one_line(refused.content)
        assert server.post(SAID).status_code == 200


def test_a_full_server_refuses_a_request_before_the_upload(fluent: Path) -> None:
    def status_of(server: Server) -> int:
        with server.connect() as connection:
            connection.sendall(request_head("Content-Length: 1000000"))  # none of these bytes is sent
            return answer(connection)[0]

    with serving(fluent / "run", "--queue", "2", "--upload-seconds", "30") as server:
        with server.connect() as first, server.connect() as second:
            for connection in (first, second):
                connection.sendall(request_head("Content-Length: 1000000") + multipart(SAID)[:1000])
            while server.metric("asr_uploads") < 2:
                time.sleep(0.01)
            assert status_of(server) == 503
        server.wait_for_log("POST /transcribe 499")
        while server.metric("asr_uploads"):
            time.sleep(0.01)
        waiting = []
        while server.get("/health").json()["waiting"] < 2:
            waiting.append(in_background(server.post, LONG, "long.flac"))
            time.sleep(0.05)
        assert status_of(server) == 503
        assert 200 in [future.result(60).status_code for future in waiting]


def test_recordings_of_disconnected_clients_are_not_transcribed(fluent: Path) -> None:
    with serving(fluent / "run") as server:
        body = multipart(LONG)
        for _ in range(3):  # recognition of the first begins; the others wait, because each is long
            with server.connect() as connection:
                connection.sendall(request_head(f"Content-Length: {len(body)}") + body)
                time.sleep(0.1)
        for _ in range(3):
            server.wait_for_log("POST /transcribe 499")
        assert server.post(SAID).status_code == 200
        assert server.get("/health").json()["waiting"] == 0
        assert server.metric("asr_audio_seconds_total") < 10  # only the last recording was recognised
        assert not [path for path in open_files(server.process.pid) if str(server.scratch) in str(path)]
        assert not list(server.scratch.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_stops_the_server_after_accepted_requests_are_answered(fluent: Path, number: int) -> None:
    with serving(fluent / "run") as server:
        running = in_background(server.post, LONG, "long.flac")
        while server.metric("asr_batch_recordings_count") == 0:
            time.sleep(0.01)
        server.process.send_signal(number)
        server.wait_for_log("^stopping")
        with pytest.raises(httpx.ConnectError):
            server.get("/health")
        assert running.result(60).status_code == 200
        assert server.process.wait(10) == 0
        assert "Traceback" not in server.log.read_text()


def test_requests_still_waiting_at_the_end_of_the_stop_time_are_answered_with_an_error(fluent: Path) -> None:
    with serving(fluent / "run", "--stop-seconds", "0.5", "--max-batch", "1", "--num-threads", "1") as server:
        waiting = [in_background(server.post, LONG, f"{number}.flac") for number in range(12)]
        while server.get("/health").json()["waiting"] < 10:
            time.sleep(0.01)
        assert server.stop() == 0
        responses = [future.result(60) for future in waiting]
        refused = [response for response in responses if response.status_code == 503]
        assert len(refused) > 5
        assert all("stopping" in one_line(response.content) for response in refused)
        assert not list(server.scratch.iterdir())


def test_a_killed_server_leaves_no_files(fluent: Path) -> None:
    with serving(fluent / "run") as server:
        body = multipart(bytes(20_000_000))
        with server.connect() as connection:
            connection.sendall(request_head(f"Content-Length: {len(body) + 1}") + body)
            time.sleep(0.5)
            server.stop(signal.SIGKILL)
        assert not list(server.scratch.iterdir())


# ---- the command


def test_an_invalid_command_line_is_reported_in_one_line(server: Server, fluent: Path, tmp_path: Path) -> None:
    model = str(fluent / "run")
    (tmp_path / "text.wav").write_text("not audio")
    for arguments, message in (
        ((model, "--port", str(server.port)), "choose ... --port"),
        ((model, "--host", "203.0.113.1"), "free address"),
        ((model, "--port", "70000"), "--port; got 70000"),
        ((model, "--port", "0", "--allowed-host", "http://x"), "--allowed-host; got 'http://x'"),
        ((model, "--port", "0", "--forwarded-allow-ips", "10.0.0.1, x"), "--forwarded-allow-ips; got 10.0.0.1, x"),
        ((str(tmp_path), "--port", "0"), "model folder ... config.json"),
        ((model, "--port", "0", "--max-seconds", "0"), "--max-seconds; got 0"),
        ((model, "--port", "0", "--max-megabytes", "nan"), "--max-megabytes; got nan"),
        ((model, "--port", "0", "--queue", "0"), "--queue; got 0"),
        ((model, "--port", "0", "--streams", "0"), "--streams; got 0"),
        ((model, "--port", "0", "--chunk-seconds", "-1"), "--chunk-seconds; got -1"),
        ((model, "--port", "0", "--example", str(tmp_path / "text.wav")), "libsndfile reads"),
        ((model, "--port", "0", "--example", str(tmp_path / "none.wav")), "no such file"),
        ((model, "--port", "0", "--lm-weight", "1"), "--lm-weight ... --lm"),
    ):
        done = run_module("asr.serve", *arguments)
        assert done.returncode == 1, arguments
        assert done.stdout == ""
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert mentions(done.stderr, message)


def test_only_one_of_two_servers_started_simultaneously_gets_the_address() -> None:
    with _bound_socket("127.0.0.1", 0) as first:  # the first server, while it loads its model
        port = first.getsockname()[1]
        with refused(InputError, "choose", cure="--port"):
            _bound_socket("127.0.0.1", port)


def test_names_that_are_not_utf_8_are_shown_with_escapes(tmp_path: Path) -> None:
    example = tmp_path / "sp\udcfft.wav"
    example.write_bytes(SAID)
    names = (_name("models/caf\udce9/bundle"), *(recording.name for recording in read_examples([str(example)], 60)))
    assert names == (r"caf\udce9", r"sp\udcfft")
    served = replace(service()[0], name=names[0])
    for path in ("/", "/health"):
        assert names[0] in request_to(served, "GET", path).text.replace(r"\\", "\\")


def test_without_the_packages_of_the_server_the_error_says_what_to_install() -> None:
    code = "import sys\nfor name in ('fastapi', 'uvicorn'): sys.modules[name] = None\n"
    code += "import importlib.util as u; find = u.find_spec\n"
    code += "u.find_spec = lambda name: None if name in ('fastapi', 'uvicorn') else find(name)\n"
    code += "from asr.core.cli.command import run_command; from asr.serve import main\n"
    code += "sys.argv[1:] = ['model']\nrun_command(main)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    check_refusal(done.stderr, "asr.serve ... needs packages")


# ---- internal errors


def service(queue: int = 4) -> tuple[Service, Jobs]:
    """Make the service of a server with an untrained recogniser."""
    metrics, recognizer = Metrics(), listener()
    jobs = Jobs(recognizer, INFERENCE, queue=queue)
    uploads = Uploads(Limits(10_000_000, 60, 10), queue, metrics.uploading)
    hotwords = ServedHotwords(recognizer)
    sockets = StreamSockets(
        Streams(recognizer), StreamLimits(4, 60, 10), hotwords, metrics.stream, metrics.stream_ended
    )
    sockets.streams.start()
    hosts = Hosts(frozenset({"localhost"}))
    return Service("listener", recognizer, jobs, sockets, uploads, metrics, hosts, hotwords), jobs


def request_to(served: Service, method: str, path: str, **given: Any) -> httpx.Response:
    """Send a request to the application directly, without a server."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(served), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **given)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("/root/secret"), "the server failed; see its log."),
        (RuntimeError("[enforce fail] can't allocate memory"), "the server has too little memory for this recording."),
    ],
    ids=["a fault", "memory"],
)
def test_an_internal_error_is_reported_in_one_line_without_details(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, jobs = service()
    jobs.start()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(served.recognizer.model.encoder, "forward", fail)
    response = request_to(served, "POST", "/transcribe", files={"file": ("a.wav", SAID)})
    assert response.status_code == 500
    assert one_line(response.content) == message
    monkeypatch.undo()
    assert request_to(served, "POST", "/transcribe", files={"file": ("a.wav", SAID)}).json()["text"] == "abcd ef"
    jobs.stop()
    jobs.join(60)


def test_a_server_whose_net_has_failed_is_not_ready() -> None:
    served, jobs = service()
    jobs.start()
    assert request_to(served, "GET", "/health").status_code == 200
    jobs.stop()
    jobs.join(60)
    response = request_to(served, "GET", "/health")
    assert response.status_code == 503
    assert response.json() == {"ready": False, "model": "listener", "waiting": 0, "streams": 0}
    refused = request_to(served, "POST", "/transcribe", files={"file": ("a.wav", SAID)})
    assert refused.status_code == 503
    assert "stopping" in one_line(refused.content)
