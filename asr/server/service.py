"""What the server works with, and how a request gets its recording recognised."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from asr.errors import InputError
from asr.recognition.recognizer import Recognizer
from asr.server.hosts import Hosts
from asr.server.jobs import Job, Jobs, QueueFullError, StoppedError
from asr.server.metrics import Metrics
from asr.server.pages import ExampleAudio
from asr.server.problems import busy, stopping
from asr.server.stream_sockets import StreamSockets
from asr.server.upload import Upload, Uploads, unusable

if TYPE_CHECKING:
    from asr.recognition.transcript import Transcript, Word


@dataclass(frozen=True)
class Service:
    """What the server works with.

    Args:
        name: of the model, as clients call it.
        recognizer: it recognises in the threads of `jobs` and of the streams.
        jobs: started.
        sockets: of streams, whose thread is started.
        uploads: which come in, within limits.
        metrics: counts.
        hosts: that it is known by.
        examples: recordings that the page offers.
        language: ISO 639 code of the model's language, such as `en`; None: not configured.
    """

    name: str
    recognizer: Recognizer
    jobs: Jobs
    sockets: StreamSockets
    uploads: Uploads
    metrics: Metrics
    hosts: Hosts
    examples: tuple[ExampleAudio, ...] = ()
    language: str | None = None

    def check_room(self) -> None:
        """Refuse another recording where it would have to wait beyond the queue; before it is uploaded.

        Raises:
            UnusableError: the queue is full, or as many recordings are on their way in.
        """
        if self.jobs.full or self.uploads.full:
            raise busy()


async def recognized(
    request: Request,
    service: Service,
    upload: Upload[Any],
    nbest: int = 1,
    on_words: Callable[[Sequence["Word"]], object] = lambda words: None,
) -> "Transcript":
    """Have a recording recognised, unless the client goes away before it is begun.

    Args:
        request: of the client, its body read.
        service: that recognises.
        upload: the recording; its file is no longer read when this returns or raises.
        nbest: how many alternatives the transcript has, at most.
        on_words: as of `Job`.

    Raises:
        UnusableError: the queue is full, the server stops, or the recording turns out to be unusable.
        ClientDisconnect: nobody is there to be answered.
    """
    job = Job(upload.utterance, nbest, on_words)
    try:
        service.jobs.submit(job)
    except QueueFullError:
        raise busy() from None
    except StoppedError:
        raise stopping() from None
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
        transcript = await outcome
    except InputError as error:
        raise unusable(error, upload.utterance.audio_filepath) from None
    except StoppedError:
        raise stopping() from None
    finally:
        leaving.cancel()
        service.jobs.withdraw(job)
    service.metrics.recognized(transcript.duration)
    return transcript


async def _gone(request: Request) -> None:
    """Wait until the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
