"""OpenAI's routes under /v1: transcriptions and models.

*Source*: OpenAI's API reference, "Audio" and "Models". Recordings are processed as at /transcribe.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from asr.apps.serve.hotwords import headers
from asr.apps.serve.openai_answers import (
    OpenAIModel,
    OpenAIModels,
    OpenAIProblem,
    OpenAITranscription,
    OpenAIVerboseTranscription,
    delta,
    done,
    event,
    plain,
    verbose,
)
from asr.apps.serve.openai_form import Forms, TranscriptionForm, check_model, form_body, form_reader
from asr.apps.serve.problems import UnusableError, failed, openai_error
from asr.apps.serve.schema import PROBLEMS
from asr.apps.serve.service import Service, recognized
from asr.apps.serve.upload import Upload
from asr.core.recognition.formats import FORMATS
from asr.interfaces import Biasing

if TYPE_CHECKING:
    from asr.core.recognition.transcript import Transcript, Word

OWNER = "asr"
TEXTS = {"text": ("txt", "text/plain"), "srt": ("srt", "text/plain"), "vtt": ("vtt", "text/vtt")}
EVENTS = "text/event-stream"
ANSWER: dict[str, Any] = {
    "description": "The transcript, in the format of response_format and stream.",
    "content": {
        "application/json": {},  # FastAPI adds the schema of `model`
        "text/plain": {"schema": {"type": "string"}},
        "text/vtt": {"schema": {"type": "string"}},
        EVENTS: {},  # OpenAPI 3.1 has no schema for a single event
    },
    "model": OpenAITranscription | OpenAIVerboseTranscription,
}


def add_openai(app: FastAPI, service: Service) -> None:
    """Add OpenAI's routes to an application."""
    _add_transcriptions(app, service)
    _add_models(app, service)


def _add_transcriptions(app: FastAPI, service: Service) -> None:
    read = form_reader(service.name, service.languages, service.hotwords.in_prompt)

    async def received(request: Request) -> AsyncIterator[Upload[Forms]]:
        """Receive the form; FastAPI closes the recording's file after the answer, or after a stream's last event."""
        if request.query_params:
            raise UnusableError(422, "the query must be empty, since all options are fields of the form; it is not.")
        service.check_room()
        async with service.uploads.receive(request, read) as upload:
            yield upload

    @app.post(
        "/v1/audio/transcriptions",
        tags=["OpenAI's interface"],
        summary="Recognise one recording",
        responses={200: ANSWER, **_problems(400, 403, 404, 408, 413, 415, 421, 500, 503, 507)},
        openapi_extra={"requestBody": form_body(service.name, service.languages, service.hotwords)},
    )
    async def transcriptions(request: Request, upload: Annotated[Upload[Forms], Depends(received)]) -> Response:
        """Answer, as requested, with plain text, subtitles, text with times, or events sent during recognition."""
        form, hotwords = upload.options
        biasing = await service.hotwords.biasing(hotwords)
        if form.stream:
            answer: Response = await _stream(request, service, upload, biasing)
        else:
            transcript = await recognized(request, service, upload, language=form.language, biasing=biasing)
            answer = _answer(transcript, form, service)
        answer.headers.update(headers(biasing))
        return answer


def _answer(transcript: "Transcript", form: TranscriptionForm, service: Service) -> Response:
    if form.response_format in TEXTS:
        name, media_type = TEXTS[form.response_format]
        return Response(FORMATS[name].write("", transcript), media_type=media_type)
    if form.response_format == "json":
        return JSONResponse(plain(transcript, bool(form.include)))
    tokenizer = service.recognizer.model.tokenizer
    return JSONResponse(verbose(transcript, form.language or service.language, form.timestamp_granularities, tokenizer))


class _Events(StreamingResponse):
    """Server-sent events; if the client disconnects, they are not cancelled, because the generator ends by itself."""

    media_type = EVENTS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


async def _stream(request: Request, service: Service, upload: Upload[Forms], biasing: Biasing) -> Response:
    """Answer with the words of each decoded segment; an error before the first segment sets the HTTP status."""
    loop = asyncio.get_running_loop()
    segments: asyncio.Queue[Sequence[Word] | None] = asyncio.Queue()  # None: end

    def on_words(words: Sequence["Word"]) -> None:
        with suppress(RuntimeError):  # the server has stopped and its loop is closed
            loop.call_soon_threadsafe(segments.put_nowait, words)

    form, _ = upload.options
    of_form: dict[str, Any] = {"language": form.language, "biasing": biasing, "on_words": on_words}
    outcome = asyncio.ensure_future(recognized(request, service, upload, **of_form))
    outcome.add_done_callback(lambda _: segments.put_nowait(None))
    first = await segments.get()
    if first is None:
        await outcome
    return _Events(_events(first, segments, outcome, bool(form.include)))


async def _events(
    words: "Sequence[Word] | None",
    segments: "asyncio.Queue[Sequence[Word] | None]",
    outcome: "asyncio.Future[Transcript]",
    with_logprobs: bool,
) -> AsyncIterator[str]:
    is_first = True
    while words is not None:
        if words:
            yield event(delta(words, is_first, with_logprobs))
            is_first = False
        words = await segments.get()
    try:
        yield event(done(await outcome, with_logprobs))
    except ClientDisconnect:
        return
    except HTTPException as error:
        yield event(openai_error(error))
    except Exception as error:  # the jobs' thread has logged it
        yield event(openai_error(failed(error)))


def _add_models(app: FastAPI, service: Service) -> None:
    model = OpenAIModel(id=service.name, object="model", created=int(time.time()), owned_by=OWNER)
    tags: list[Any] = ["OpenAI's interface"]

    @app.get("/v1/models", tags=tags, summary="The served model, as a list", responses=_problems(421))
    async def models() -> OpenAIModels:
        """Answer with a list of the served model."""
        return OpenAIModels(object="list", data=[model])

    @app.get("/v1/models/{name:path}", tags=tags, summary="The served model, by name", responses=_problems(404, 421))
    async def model_named(name: str) -> OpenAIModel:
        """Answer with the model if its name is the served model's; otherwise with 404."""
        check_model(name, service.name)
        return model


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the API documentation of errors, by status: as for other routes, but in OpenAI's format."""
    described = {**PROBLEMS, 400: {"description": "The form is malformed, or a field or the file cannot be used."}}
    described[404] = {"description": "There is no such model."}
    return {status: {**described[status], "model": OpenAIProblem} for status in statuses}
