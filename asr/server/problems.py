"""Errors: one line of JSON each, in the form that the clients of the address read.

Below /v1/ that is OpenAI's, `{"error": {"message", "type", "param", "code"}}`, and elsewhere `{"detail"}`. OpenAI has
no status 422: a wrong field or file is 400 there.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from asr.errors import is_out_of_memory
from asr.server.metrics import CLIENT_GONE
from asr.text.printable import printable

RETRY_SECONDS = 2  # after which a client that was refused may try again
OPENAI = "/v1/"
ADDRESSES = "/, /transcribe, /stream (a WebSocket), /v1/audio/transcriptions, /v1/models, /health, /metrics and /docs"


class UnusableError(HTTPException):
    """A request that cannot be answered; the answer is its one line.

    Args:
        status: of HTTP.
        line: says why.
        param: the field of the form that is wrong; None: none, or none alone.
        code: OpenAI's short name of the error, where it has one.
        headers: of the answer.
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


def busy() -> UnusableError:
    """Refuse a request because as many wait as the server takes."""
    line = f"the server is busy: as many requests wait as it takes. Try again in {RETRY_SECONDS} seconds."
    return UnusableError(503, line, headers={"Retry-After": str(RETRY_SECONDS)})


def stopping() -> UnusableError:
    """Refuse a request because the server ends."""
    line = "the server is stopping. Try again later."
    return UnusableError(503, line, headers={"Retry-After": str(RETRY_SECONDS)})


def failed(error: Exception) -> UnusableError:
    """Answer a request that met a fault of the server, without its insides."""
    memory = is_out_of_memory(error)
    line = "the server has too little memory for this recording." if memory else "the server failed; its log says how."
    return UnusableError(500, line)


def problem(path: str, error: StarletteHTTPException, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Write an error in the form of the address `path`."""
    headers = headers or error.headers
    if not path.startswith(OPENAI):
        return JSONResponse({"detail": str(error.detail)}, error.status_code, headers)
    status = 400 if error.status_code == 422 else error.status_code
    return JSONResponse(openai_error(error), status, headers)


def openai_error(error: StarletteHTTPException) -> dict[str, Any]:
    """An error in OpenAI's form."""
    param, code = (error.param, error.code) if isinstance(error, UnusableError) else (None, None)
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    return {"error": {"message": str(error.detail), "type": kind, "param": param, "code": code}}


def add_errors(app: FastAPI) -> None:
    """Have an application answer every error with one line."""

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> Response:
        allowed = (error.headers or {}).get("Allow", "")
        if error.detail == HTTPStatus.NOT_FOUND.phrase:
            error.detail = f"there is nothing at this address. There are {ADDRESSES}."
        elif error.detail == HTTPStatus.METHOD_NOT_ALLOWED.phrase:
            error.detail = f"{printable(request.method)} is not what this address takes; it takes {allowed}."
        return problem(request.url.path, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"])
        line = printable(f"{where}: {first['msg']}; got {first.get('input')!r:.80}.")
        return problem(request.url.path, UnusableError(422, line))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        # Nobody reads it but the log.
        return problem(request.url.path, UnusableError(CLIENT_GONE, "the client went away."))

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> Response:
        return problem(request.url.path, failed(error))
