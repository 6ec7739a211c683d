"""The routes of the server, and for each connection the headers of its response and a line of the log."""

import logging
import time
from collections.abc import Callable, MutableMapping
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from asr.apps.serve.hosts import KnownHosts
from asr.apps.serve.hotwords import headers, only_hotwords
from asr.apps.serve.metrics import CLIENT_GONE, OTHER
from asr.apps.serve.openai_routes import add_openai
from asr.apps.serve.pages import add_pages
from asr.apps.serve.problems import add_errors
from asr.apps.serve.schema import PROBLEMS, Health, Options, Transcription, upload_body
from asr.apps.serve.service import Service, recognized
from asr.base.text.printable import printable
from asr.core.data.labels import LANGUAGE
from asr.core.recognition.formats import FORMATS
from asr.errors import InputError

ABOUT = """Recordings to text, with the time and the confidence of each word.

    curl -F file=@recording.wav http://127.0.0.1:8000/transcribe

Programs written for OpenAI's interface use http://127.0.0.1:8000/v1 as their base URL.

The WebSocket at /stream recognises speech while it is spoken. The client's first message is JSON,
`{"sample_rate": 48000}`, in Hz; the optional key `"chunk_seconds"` replaces the server's chunk length, `"latency"`
chooses one of the latencies of a model that has a list of them, and `"hotwords"` lists names and terms. The following
messages contain audio as bytes: 16-bit PCM, little-endian, mono. A message `{"hotwords": [...]}` between them replaces
the hotwords from the next word on; `{"flush": true}` makes all words final without closing the stream. The last message
is `{"end": true}`. The server first sends `{"ready": true, "chunk_seconds": ..., "note": ...}`. Whenever words change,
it sends `{"final": [words], "partial": "provisional words", "is_end": whether a segment of speech has ended,
"is_backchannel": whether the final words were a backchannel, "heard": seconds recognised}`.
It sends each final word once, with times and confidence as above. Its last message is `{"end": true, "seconds": ...}`,
or `{"error": "one line."}`, which it may send at any time.
"""


SHOWN = 80  # maximum number of characters of an address in the log
SWITCHING = 101  # status of a switch to the WebSocket protocol; counted when the connection ends

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "media-src 'self' blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

logger = logging.getLogger("asr.apps.serve")


class Connection:
    """The outermost layer of the application (ASGI).

    After a refusal, uvicorn reads and discards the rest of the request for a while, so that the client can read the
    reason.

    Args:
        app: the next inner layer.
        on_answer: called with address, status and duration in seconds of each request.
    """

    def __init__(self, app: ASGIApp, on_answer: Callable[[str, int, float], object]) -> None:
        self._app = app
        self._on_answer = on_answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = CLIENT_GONE

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                message = {**message, "headers": with_headers(list(message.get("headers", [])))}
            elif message["type"] == "websocket.accept":
                status = SWITCHING
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            seconds = time.perf_counter() - began
            self._on_answer(scope["path"], status, seconds)
            logger.info("%s", _line(scope, status, seconds))


def with_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add the default headers, except headers that the answer already has."""
    present = {name.lower() for name, _ in headers}
    policy = (b"content-security-policy", POLICY.encode())
    return headers + [(name, value) for name, value in (*HEADERS, policy) if name not in present]


def _line(scope: MutableMapping[str, object], status: int, seconds: float) -> str:
    client = scope.get("client")
    address = client[0] if isinstance(client, tuple) else "-"
    path = str(scope["path"])
    path = path if len(path) <= SHOWN else path[:SHOWN] + "…"
    return printable(f"{address} {scope.get('method', 'WebSocket')} {path} {status} {seconds:.3f} s")


def make_app(service: Service) -> Connection:
    """Return the application (ASGI)."""
    app = FastAPI(title="asr", description=ABOUT, version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
    add_errors(app)
    _add_transcribe(app, service)
    add_openai(app, service)
    _add_stream(app, service)
    _add_state(app, service)
    add_pages(app, service.name, service.uploads.limits, service.examples, bool(service.hotwords.properties()))
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
        openapi_extra={"requestBody": upload_body(service.hotwords.properties())},
    )
    async def transcribe(request: Request, options: Annotated[Options, Query()]) -> Response:
        """Answer with the text, the words with times and confidence, and the n-best hypotheses."""
        if options.nbest > 1 and service.recognizer.decode.max_hypotheses == 1:
            must = "nbest must be 1, because this server's decoder finds only one hypothesis"
            raise HTTPException(422, f"{must}; got {options.nbest}. Start the server with --beam 16, for example.")
        if options.language is not None:
            try:
                service.recognizer.model.labels.check(LANGUAGE, options.language, "language")
            except InputError as error:
                raise HTTPException(422, str(error)) from None
        service.check_room()
        async with service.uploads.receive(request, only_hotwords) as upload:
            biasing = await service.hotwords.biasing(upload.options)
            transcript = await recognized(request, service, upload, options.nbest, options.language, biasing)
        content = FORMATS["json"].write(upload.name, transcript)
        return Response(content.encode(), headers=headers(biasing), media_type="application/json")


def _add_stream(app: FastAPI, service: Service) -> None:
    @app.websocket("/stream")
    async def stream(socket: WebSocket) -> None:
        await service.sockets.serve(socket)

    @app.websocket("/{path:path}")
    async def nothing(socket: WebSocket) -> None:
        detail = "there is no WebSocket at this address. There is one at /stream."
        await socket.send_denial_response(JSONResponse({"detail": detail}, 404))


def _add_state(app: FastAPI, service: Service) -> None:
    service.metrics.watch(service.jobs)

    @app.get(
        "/health",
        tags=["state"],
        summary="Whether the server is ready",
        response_model=Health,
        responses={503: {"model": Health}},
    )
    async def health() -> Response:
        """Answer with 200 while the server recognises recordings and streams, and with 503 when it has stopped."""
        ready = service.jobs.alive and service.sockets.streams.alive
        waiting, streams = service.jobs.waiting, service.sockets.number
        state = Health(ready=ready, model=service.name, waiting=waiting, streams=streams)
        return JSONResponse(state.model_dump(), 200 if ready else 503)

    @app.get("/metrics", tags=["state"], summary="Counters, for Prometheus", responses={200: METRICS_PAGE})
    async def metrics() -> Response:
        """Answer with metrics of requests, queue, batches, streams, latencies and seconds of audio."""
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})


METRICS_PAGE: dict[str, Any] = {"content": {"text/plain": {"schema": {"type": "string"}}}}
