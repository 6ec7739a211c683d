"""The addresses of the server, and their answers."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from asr.errors import InputError, is_out_of_memory
from asr.recognition.formats import FORMATS
from asr.recognition.recognizer import Recognizer
from asr.server.connection import Connection
from asr.server.hosts import Hosts, KnownHosts
from asr.server.jobs import Job, Jobs, QueueFullError, StoppedError
from asr.server.metrics import CLIENT_GONE, OTHER, Metrics
from asr.server.pages import ExampleAudio, add_pages
from asr.server.schema import PROBLEMS, UPLOAD_BODY, Health, Options, Transcription
from asr.server.stream_sockets import StreamSockets
from asr.server.upload import Upload, Uploads, unusable
from asr.text.printable import printable

if TYPE_CHECKING:
    from asr.recognition.transcript import Transcript

RETRY_SECONDS = 2  # after which a client that was refused may try again

ABOUT = """Recordings to text, with the time and the confidence of each word.

    curl -F file=@recording.wav http://127.0.0.1:8000/transcribe

Speech while it is spoken: a WebSocket at /stream. The first message is JSON, `{"sample_rate": 48000}`, in Hz, with
`"chunk_seconds"` if they should be others than the server's. Then come messages of bytes, raw 16-bit PCM,
little-endian, mono, and at the end `{"end": true}`. The server answers with `{"ready": true, "chunk_seconds": ...,
"note": ...}`, and whenever words change with `{"final": [words], "partial": "words that may yet change", "is_end":
whether a stretch of speech is over, "heard": seconds}`. What is final comes once, with times and confidence as above.
The last is `{"end": true, "seconds": ...}`, or `{"error": "one line."}`, which may come at any time.
"""


@dataclass(frozen=True)
class Service:
    """What the server works with.

    Args:
        name: of the model, without the folders it lies in.
        recognizer: it recognises in the threads of `jobs` and of the streams.
        jobs: started.
        sockets: of streams, whose thread is started.
        uploads: which come in, within limits.
        metrics: counts.
        hosts: that it is known by.
        examples: recordings that the page offers.
    """

    name: str
    recognizer: Recognizer
    jobs: Jobs
    sockets: StreamSockets
    uploads: Uploads
    metrics: Metrics
    hosts: Hosts
    examples: tuple[ExampleAudio, ...] = ()


def make_app(service: Service) -> Connection:
    """Make the application (ASGI)."""
    app = FastAPI(title="asr", description=ABOUT, version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
    _add_errors(app)
    _add_transcribe(app, service)
    _add_stream(app, service)
    _add_state(app, service)
    add_pages(app, service.name, service.uploads.limits, service.examples)
    known = {getattr(route, "path", "") for route in app.routes}

    def answered(path: str, status: int, seconds: float) -> None:
        service.metrics.answered(path if path in known else OTHER, status, seconds)

    return Connection(KnownHosts(app, service.hosts), answered)


def _add_transcribe(app: FastAPI, service: Service) -> None:
    @app.post(
        "/transcribe",
        tags=["recognition"],
        summary="Recognise one recording",
        response_model=Transcription,
        responses=PROBLEMS,
        openapi_extra={"requestBody": UPLOAD_BODY},
    )
    async def transcribe(request: Request, options: Annotated[Options, Query()]) -> Response:
        """Answer with the text, its words with their times and confidence, and the n-best hypotheses."""
        if options.nbest > 1 and service.recognizer.decode.max_hypotheses == 1:
            must = "nbest must be 1, since this server's decoder finds one"
            raise HTTPException(422, f"{must}; got {options.nbest}. Start it with --beam 16, say.")
        if service.jobs.full or service.uploads.full:
            raise _busy()
        async with service.uploads.receive(request) as upload:
            transcript = await _recognized(request, service, upload, options.nbest)
        service.metrics.recognized(transcript.duration)
        content = FORMATS["json"].write(upload.name, transcript)
        return Response(content.encode(), media_type="application/json")


async def _recognized(request: Request, service: Service, upload: Upload, nbest: int) -> "Transcript":
    """Have the recording recognised, unless the client goes away before it is begun."""
    job = Job(upload.utterance, nbest)
    try:
        service.jobs.submit(job)
    except QueueFullError:
        raise _busy() from None
    except StoppedError:
        raise _stopping() from None
    outcome = asyncio.wrap_future(job.outcome)
    leaving = asyncio.ensure_future(_gone(request))
    either: set[asyncio.Future[Any]] = {outcome, leaving}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not outcome.done():
            if not service.jobs.withdraw(job):  # it is being read: the file must stay until it is not
                with suppress(Exception):
                    await outcome
            raise ClientDisconnect
        return await outcome
    except InputError as error:
        raise unusable(error, upload.utterance.audio_filepath) from None
    except StoppedError:
        raise _stopping() from None
    finally:
        leaving.cancel()
        service.jobs.withdraw(job)


async def _gone(request: Request) -> None:
    """Wait until the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_stream(app: FastAPI, service: Service) -> None:
    @app.websocket("/stream")
    async def stream(socket: WebSocket) -> None:
        await service.sockets.serve(socket)

    @app.websocket("/{path:path}")
    async def nothing(socket: WebSocket) -> None:
        detail = "there is no WebSocket at this address. There is one at /stream."
        await socket.send_denial_response(JSONResponse({"detail": detail}, 404))


def _busy() -> HTTPException:
    detail = f"the server is busy: as many requests wait as it takes. Try again in {RETRY_SECONDS} seconds."
    return HTTPException(503, detail, headers={"Retry-After": str(RETRY_SECONDS)})


def _stopping() -> HTTPException:
    detail = "the server is stopping. Try again later."
    return HTTPException(503, detail, headers={"Retry-After": str(RETRY_SECONDS)})


def _add_state(app: FastAPI, service: Service) -> None:
    service.metrics.watch(service.jobs)

    @app.get(
        "/health",
        tags=["state"],
        summary="Whether it is ready",
        response_model=Health,
        responses={503: {"model": Health}},
    )
    async def health() -> Response:
        """Answer with 200 while recordings and streams are recognised, with 503 when they no longer are."""
        ready = service.jobs.alive and service.sockets.streams.alive
        waiting, streams = service.jobs.waiting, service.sockets.number
        state = Health(ready=ready, model=service.name, waiting=waiting, streams=streams)
        return JSONResponse(state.model_dump(), 200 if ready else 503)

    @app.get("/metrics", tags=["state"], summary="Counters, for Prometheus", responses={200: METRICS_PAGE})
    async def metrics() -> Response:
        """Answer with requests by status, the queue, batches, streams, latencies and seconds of audio."""
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})


METRICS_PAGE: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}

# ---- errors: one line of JSON each


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> Response:
        detail = str(error.detail)
        allowed = (error.headers or {}).get("Allow", "")
        if detail == HTTPStatus.NOT_FOUND.phrase:
            there = "/, /transcribe, /stream (a WebSocket), /health, /metrics and /docs"
            detail = f"there is nothing at this address. There are {there}."
        elif detail == HTTPStatus.METHOD_NOT_ALLOWED.phrase:
            detail = f"{printable(request.method)} is not what this address takes; it takes {allowed}."
        return JSONResponse({"detail": detail}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"])
        return JSONResponse({"detail": printable(f"{where}: {first['msg']}; got {first.get('input')!r:.80}.")}, 422)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return JSONResponse({"detail": "the client went away."}, CLIENT_GONE)  # which nobody reads but the log

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        if is_out_of_memory(error):
            return JSONResponse({"detail": "the server has too little memory for this recording."}, 500)
        return JSONResponse({"detail": "the server failed; its log says how."}, 500)
