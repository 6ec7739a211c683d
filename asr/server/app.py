"""The routes of the server, and their responses."""

from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from asr.recognition.formats import FORMATS
from asr.server.connection import Connection
from asr.server.hosts import KnownHosts
from asr.server.metrics import OTHER
from asr.server.openai_routes import add_openai
from asr.server.pages import add_pages
from asr.server.problems import add_errors
from asr.server.schema import PROBLEMS, UPLOAD_BODY, Health, Options, Transcription
from asr.server.service import Service, recognized
from asr.server.upload import no_fields

ABOUT = """Recordings to text, with the time and the confidence of each word.

    curl -F file=@recording.wav http://127.0.0.1:8000/transcribe

Programs written for OpenAI's interface use http://127.0.0.1:8000/v1 as their base URL.

The WebSocket at /stream recognises speech while it is spoken. The client's first message is JSON,
`{"sample_rate": 48000}`, in Hz; the optional key `"chunk_seconds"` replaces the server's chunk length. The following
messages contain audio as bytes: 16-bit PCM, little-endian, mono. The last message is `{"end": true}`. The server first
sends `{"ready": true, "chunk_seconds": ..., "note": ...}`. Whenever words change, it sends `{"final": [words],
"partial": "provisional words", "is_end": whether a segment of speech has ended, "heard": seconds recognised}`. It sends
each final word once, with times and confidence as above. Its last message is `{"end": true, "seconds": ...}`, or
`{"error": "one line."}`, which it may send at any time.
"""


def make_app(service: Service) -> Connection:
    """Return the application (ASGI)."""
    app = FastAPI(title="asr", description=ABOUT, version="1", docs_url=None, redoc_url=None, redirect_slashes=False)
    add_errors(app)
    _add_transcribe(app, service)
    add_openai(app, service)
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
        """Answer with the text, the words with times and confidence, and the n-best hypotheses."""
        if options.nbest > 1 and service.recognizer.decode.max_hypotheses == 1:
            must = "nbest must be 1, because this server's decoder finds only one hypothesis"
            raise HTTPException(422, f"{must}; got {options.nbest}. Start the server with --beam 16, for example.")
        service.check_room()
        async with service.uploads.receive(request, no_fields) as upload:
            transcript = await recognized(request, service, upload, options.nbest)
        content = FORMATS["json"].write(upload.name, transcript)
        return Response(content.encode(), media_type="application/json")


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
