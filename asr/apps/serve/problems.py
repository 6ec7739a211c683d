"""Error responses: each error is one line in JSON, in the format of the route.

Under /v1/ the format is OpenAI's, `{"error": {"message", "type", "param", "code"}}`; elsewhere it is `{"detail"}`.
OpenAI does not use status 422, so an invalid field or file has status 400 under /v1/.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from asr.apps.serve.metrics import CLIENT_GONE
from asr.base.text.printable import printable
from asr.errors import is_out_of_memory

RETRY_SECONDS = 2  # time after which a refused client may try again
OPENAI = "/v1/"
INVALID, UNSUPPORTED = "invalid_value", "unsupported_value"  # OpenAI's codes
SHOWN = 40  # maximum number of characters of a client's text in an answer
ADDRESSES = "/, /transcribe, /stream (a WebSocket), /v1/audio/transcriptions, /v1/models, /health, /metrics and /docs"


class UnusableError(HTTPException):
    """A request that is refused with one line.

    Args:
        status: HTTP status.
        line: the reason.
        param: the invalid field of the form; None: no single field.
        code: OpenAI's code of the error, if there is one.
        headers: headers of the answer.
    """

    def __init__(
        self,
        status: int,
        line: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, line, headers)
        self.param = param
        self.code = code


def shown_text(given: object) -> str:
    """Quote a client's text, printable and shortened."""
    text = given if isinstance(given, str) else json.dumps(given)
    return repr(printable(text if len(text) <= SHOWN else text[:SHOWN] + "…"))


def busy() -> UnusableError:
    """Return the refusal of a request when the queue is full."""
    line = f"the server is busy: its queue is full. Try again in {RETRY_SECONDS} seconds."
    return UnusableError(503, line, headers={"Retry-After": str(RETRY_SECONDS)})


def stopping() -> UnusableError:
    """Return the refusal of a request when the server is stopping."""
    line = "the server is stopping. Try again later."
    return UnusableError(503, line, headers={"Retry-After": str(RETRY_SECONDS)})


def failed(error: Exception) -> UnusableError:
    """Return the answer to a fault of the server, without internal details."""
    memory = is_out_of_memory(error)
    line = "the server has too little memory for this recording." if memory else "the server failed; see its log."
    return UnusableError(500, line)


def problem(path: str, error: StarletteHTTPException, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error in the format of the address `path`."""
    headers = headers or error.headers
    if not path.startswith(OPENAI):
        return JSONResponse({"detail": str(error.detail)}, error.status_code, headers)
    status = 400 if error.status_code == 422 else error.status_code
    return JSONResponse(openai_error(error), status, headers)


def openai_error(error: StarletteHTTPException) -> dict[str, Any]:
    """Return an error in OpenAI's format."""
    param, code = (error.param, error.code) if isinstance(error, UnusableError) else (None, None)
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    return {"error": {"message": str(error.detail), "type": kind, "param": param, "code": code}}


def add_errors(app: FastAPI) -> None:
    """Let an application answer every error with one line."""

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> Response:
        allowed = (error.headers or {}).get("Allow", "")
        if error.detail == HTTPStatus.NOT_FOUND.phrase:
            error.detail = f"there is nothing at this address. The addresses are {ADDRESSES}."
        elif error.detail == HTTPStatus.METHOD_NOT_ALLOWED.phrase:
            error.detail = f"{printable(request.method)} is not allowed at this address; it accepts {allowed}."
        return problem(request.url.path, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"])
        reason, advice = first["msg"], ""
        if first["type"] == "extra_forbidden":
            reason, advice = "there is no such parameter", " /docs lists parameters, and the fields of the form."
        line = printable(f"{where}: {reason}; got {first.get('input')!r:.80}.{advice}")
        return problem(request.url.path, UnusableError(422, line))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        # Only the log shows this line.
        return problem(request.url.path, UnusableError(CLIENT_GONE, "the client disconnected."))

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        return problem(request.url.path, failed(error))
