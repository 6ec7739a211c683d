"""The server's components, and the recognition of a request's recording."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.requests import ClientDisconnect

from asr.apps.serve.hosts import Hosts
from asr.apps.serve.hotwords import ServedHotwords
from asr.apps.serve.jobs import Job, Jobs, QueueFullError, StoppedError
from asr.apps.serve.metrics import Metrics
from asr.apps.serve.pages import ExampleAudio
from asr.apps.serve.problems import busy, stopping
from asr.apps.serve.stream_sockets import StreamSockets
from asr.apps.serve.upload import Upload, Uploads, unusable
from asr.core.data.labels import LANGUAGE
from asr.core.data.manifest import Utterance
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.interfaces import NO_BIASING, Biasing

if TYPE_CHECKING:
    from asr.core.recognition.transcript import Transcript, Word


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
        language: language of requests that name none, such as `en`; None: not configured.
        hotwords: compiles the hotwords of requests.
    """

    name: str
    recognizer: Recognizer
    jobs: Jobs
    sockets: StreamSockets
    uploads: Uploads
    metrics: Metrics
    hosts: Hosts
    hotwords: ServedHotwords
    examples: tuple[ExampleAudio, ...] = ()
    language: str | None = None

    @property
    def has_prompt(self) -> bool:
        """Whether the model has a prompt for the language."""
        return LANGUAGE in self.recognizer.model.labels.names

    @property
    def languages(self) -> list[str]:
        """Languages that a request may name: those of the model's prompt, or the only one."""
        if self.has_prompt:
            return self.recognizer.model.labels.values(LANGUAGE)
        return [] if self.language is None else [self.language]

    def labelled(self, utterance: Utterance, language: str | None) -> Utterance:
        """Return an utterance with the language that its request names, or the server's, for the model's prompt."""
        language = language or self.language
        if language is None or not self.has_prompt:
            return utterance
        return replace(utterance, labels={LANGUAGE: language})

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
    language: str | None = None,
    biasing: Biasing = NO_BIASING,
    on_words: Callable[[Sequence["Word"]], object] = lambda words: None,
) -> "Transcript":
    """Return the transcript of a recording; cancel its job if the client leaves before recognition begins.

    Args:
        request: request of the client, whose body has been read.
        service: recognises the recording.
        upload: the recording; its file is no longer read after this function returns or raises.
        nbest: maximum number of alternatives in the transcript.
        language: language of the recording, for a model with a prompt; None: the server's.
        biasing: hotwords of the request.
        on_words: argument of `Job`.

    Raises:
        UnusableError: the queue is full, the server stops, or the recording is unusable.
        ClientDisconnect: the client has disconnected.
    """
    job = Job(service.labelled(upload.utterance, language), nbest, biasing, on_words)
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
