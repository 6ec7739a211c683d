"""The server's components, and the recognition of a request's recording."""

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
    """The components of a server.

    Args:
        name: name of the model for clients.
        recognizer: recogniser, used in the threads of `jobs` and of the streams.
        jobs: queue of recordings.
        sockets: open streams.
        uploads: receives recordings within limits.
        metrics: metrics for Prometheus.
        hosts: known names of the server.
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
        """Refuse a recording before its upload if the queue has no room for it.

        Raises:
            UnusableError: the queue is full, or the maximum number of uploads is being received.
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
    """Return the transcript of a recording; cancel its job if the client leaves before recognition begins.

    Args:
        request: request of the client, whose body has been read.
        service: recognises the recording.
        upload: the recording; its file is no longer read after this function returns or raises.
        nbest: maximum number of alternatives in the transcript.
        on_words: argument of `Job`.

    Raises:
        UnusableError: the queue is full, the server stops, or the recording is unusable.
        ClientDisconnect: the client has disconnected.
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
            if not service.jobs.withdraw(job):  # recognition has begun, and reads the file until it ends
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
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
