"""Pages of the server: the demo, its examples, and the API's documentation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, HTTPException, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse, HTMLResponse
from fastapi_offline import FastAPIOffline
from starlette.routing import Mount
from starlette.types import ASGIApp

from asr.apps.serve.upload import Limits
from asr.apps.web.demo import SCRIPTS, demo_body
from asr.apps.web.page import asset, escape, page
from asr.base.text.printable import printable
from asr.core.data.recordings import whole_file
from asr.errors import InputError

CAPTIONS = '<button type="button" id="caption" class="microphone">Captions</button>'
# connect-src allows requests; script-src allows the microphone's audio worklet.
ALLOWED = {"connect-src": "'self'", "script-src": "'self'"}
# This header allows all content from this origin; the page's own policy allows only its own scripts and styles.
DEMO_POLICY = "default-src 'self' 'unsafe-inline' data: blob:; base-uri 'none'; frame-ancestors 'none'"
# Swagger UI sets style attributes, and its style sheet contains embedded pictures.
DOCS_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'"
)
DOCS = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/assets/swagger-ui.css">
<title>asr: the endpoint</title>
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/assets/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
DOCS_START = """SwaggerUIBundle({ dom_id: "#swagger-ui", url: "/openapi.json", deepLinking: true, validatorUrl: null });
"""


@dataclass(frozen=True)
class ExampleAudio:
    """An example recording on the demo page, and its displayed name."""

    name: str
    path: Path


def read_examples(paths: Sequence[str], max_seconds: float) -> tuple[ExampleAudio, ...]:
    """Check the example recordings of the demo page."""
    for path in paths:
        seconds = whole_file(path, path).duration
        if seconds > max_seconds:
            raise InputError(f"--example must be within --max-seconds {max_seconds:g}; {path} has {seconds:.1f} s.")
    return tuple(ExampleAudio(printable(Path(path).stem), Path(path)) for path in paths)


def add_pages(app: FastAPI, model: str, limits: Limits, examples: tuple[ExampleAudio, ...], has_hotwords: bool) -> None:
    """Add the pages to an application."""
    demo = demo_page(model, limits, examples, has_hotwords)

    @app.get("/", include_in_schema=False)
    async def show_demo() -> Response:
        return HTMLResponse(demo, headers={"content-security-policy": DEMO_POLICY})

    @app.get("/examples/{number}", include_in_schema=False)
    async def show_example(number: Annotated[int, InPath()]) -> Response:
        if not 0 <= number < len(examples):
            raise HTTPException(404, f"there are {len(examples)} examples, counted from 0; got {number}.")
        return FileResponse(examples[number].path, media_type="application/octet-stream")

    @app.get("/docs", include_in_schema=False)
    async def show_docs() -> Response:
        return HTMLResponse(DOCS, headers={"content-security-policy": DOCS_POLICY})

    @app.get("/docs/start.js", include_in_schema=False)
    async def start_docs() -> Response:
        return Response(DOCS_START, media_type="text/javascript")

    @app.get("/collector.js", include_in_schema=False)
    async def collector() -> Response:
        return Response(asset("collector.js"), media_type="text/javascript")

    app.mount("/docs/assets", _swagger_assets())


def _swagger_assets() -> ASGIApp:
    """Return Swagger UI from the package fastapi-offline; FastAPI's own page would load it from the internet."""
    carrier = FastAPIOffline(docs_url=None, redoc_url=None, static_url="/assets")
    return next(route.app for route in carrier.routes if isinstance(route, Mount))


def demo_page(model: str, limits: Limits, examples: tuple[ExampleAudio, ...], has_hotwords: bool = False) -> str:
    """Return the demo's page; `has_hotwords` adds a field for names."""
    size = f"{limits.max_seconds:g} seconds and {limits.max_bytes / 1e6:g} megabytes"
    bounds = f"Recordings may have up to {size}; they are not stored."
    body = demo_body(
        f'Model <strong>{escape(model)}</strong>. {bounds}\nPrograms use <a href="/docs">the endpoint</a>.',
        "WAV, FLAC, Ogg, MP3, M4A, MP4, WebM or AIFF. Or use the microphone: captions show words while you speak.",
        [(f"/examples/{number}", example.name) for number, example in enumerate(examples)],
        without=" Without JavaScript: curl -F file=@recording.wav ADDRESS/transcribe",
        buttons=CAPTIONS,
        sections=(asset("names.html") if has_hotwords else "") + asset("live.html"),
    )
    data = {"settings": {"max_bytes": limits.max_bytes, "max_seconds": limits.max_seconds}}
    return page("Speech to text", body, (*SCRIPTS, "captions.js", "live.js", "serve.js"), data, allow=ALLOWED)
