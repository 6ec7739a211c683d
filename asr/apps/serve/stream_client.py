"""A WebSocket connection: the client sends samples during speech, the server sends words.

    in    {"sample_rate": 48000}, then messages of bytes: 16-bit PCM, little-endian, mono; {"flush": true} makes all
          words final; at the end {"end": true}
    out   {"ready": true, ...}, then {"final": [words], "partial": "...", ...} whenever words change; {"end": true, ...}
          after the last words, or {"error": "one line."}

If a client sends audio faster than the server recognises it, the server stops reading, and TCP slows the client down.
If a client does not read its words, they are buffered for some seconds; then the client is disconnected.
"""

import asyncio
import json
import logging
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, TypeVar

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import TypeAdapter, ValidationError

from asr.apps.serve.hotwords import NAMES, HotwordRequest, ServedHotwords, read_hotwords
from asr.apps.serve.jobs import StoppedError
from asr.apps.serve.problems import UnusableError, shown_text
from asr.apps.serve.schema import StreamOptions
from asr.apps.serve.streams import SAMPLE_BYTES, Speech, Streams, Update
from asr.base.text.printable import printable
from asr.core.recognition.transcript import Word
from asr.errors import InputError, is_out_of_memory
from asr.interfaces import Biasing

MAX_MESSAGE_BYTES = 1 << 18  # maximum size of a message
AHEAD_SECONDS = 5.0  # maximum seconds of buffered audio; a longer chunk is buffered completely
SEND_SECONDS = 10.0  # timeout for a client to read a message
MESSAGES_A_SECOND = 1000  # allowed messages per second of audio; limited because each message takes some time
SPARE_MESSAGES = 1000  # number of messages allowed in addition to the rate MESSAGES_A_SECOND

EXAMPLE = '{"sample_rate": 16000}'
FLUSH: Final = "flush"
NORMAL, POLICY, FAULT, RESTART, LATER = 1000, 1008, 1011, 1012, 1013  # closing codes of RFC 6455, section 7.4

# How streams end, for the metrics:
ENDED, GONE, DROPPED, REFUSED = "ended", "gone", "dropped", "refused"
IDLE, TOO_LONG, STOPPING, FAILED = "idle", "too long", "stopping", "failed"

MESSAGE = TypeAdapter(dict[str, Any])  # a JSON object
Result = TypeVar("Result")

logger = logging.getLogger("asr.apps.serve")


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of streams.

    Args:
        most: maximum number of streams that are open at a time.
        max_seconds: maximum length of a stream, both in seconds of audio and in real time.
        idle_seconds: maximum time without a message, including the time before the first message.
    """

    most: int
    max_seconds: float
    idle_seconds: float


class StreamProblemError(Exception):
    """Ends a stream with a reason for the client, a label for the metrics, and the WebSocket's closing code."""

    def __init__(self, line: str, how: str = REFUSED, code: int = POLICY) -> None:
        super().__init__(line)
        self.how, self.code = how, code


class _GoneError(Exception):
    """The client has disconnected or was dropped, so nothing more can be sent."""

    def __init__(self, line: str = "the client disconnected", how: str = GONE) -> None:
        super().__init__(line)
        self.how = how


def server_stopping() -> StreamProblemError:
    return StreamProblemError("the server is stopping. Try again later.", STOPPING, RESTART)


class StreamClient:
    """An open WebSocket."""

    def __init__(self, socket: WebSocket, streams: Streams, limits: StreamLimits, hotwords: ServedHotwords) -> None:
        self.seconds = 0.0  # seconds of received audio
        self._socket = socket
        self._streams = streams
        self._limits = limits
        self._hotwords = hotwords
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()  # set when buffered audio has been recognised
        self._news = asyncio.Event()  # set when there is an update to send, or a failure
        self._pending: dict[str, Any] | None = None  # update not sent yet
        self._partial = ""  # the last provisional words that were sent
        self._is_over = False
        self._failure: Exception | None = None
        self._stopped = asyncio.Event()

    async def serve(self, refusal: StreamProblemError | None) -> tuple[str, str]:
        """Recognise the stream, unless it is refused; return the way it ended, for the metrics and for the log."""
        try:
            try:
                problem = refusal or await self._recognize()
            except StreamProblemError as error:
                problem = error
            if problem is None:
                await self._send({"end": True, "seconds": round(self.seconds, 3)})
            else:
                await self._send({"error": str(problem)})
            await self._close(NORMAL if problem is None else problem.code)
        except _GoneError as gone:
            return gone.how, str(gone)
        return (ENDED, "ended") if problem is None else (problem.how, str(problem))

    def stop(self) -> None:
        """End the stream as soon as the received audio is recognised."""
        self._stopped.set()

    async def _recognize(self) -> StreamProblemError | None:
        """Recognise the stream to its end; return the problem that ended it early, if any."""
        options, hotwords = await self._unless_stopped(self._options())
        biasing = await self._biasing(hotwords)
        of_stream = options.sample_rate, options.chunk_seconds, options.latency, options.language, self._on_update
        try:
            speech = self._streams.open(*of_stream, biasing)
        except InputError as error:
            raise StreamProblemError(str(error)) from None
        except StoppedError:
            raise server_stopping() from None
        writing = asyncio.create_task(self._write())
        try:
            problem = await self._listen(speech, writing, biasing)
            self._streams.end(speech)  # also after a problem, so that the words of the received audio are sent
            await writing
            return problem
        finally:
            self._streams.close(speech)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _biasing(self, hotwords: HotwordRequest) -> Biasing:
        """Compile hotwords; raise StreamProblemError if they cannot be used."""
        try:
            return await self._hotwords.biasing(hotwords)
        except UnusableError as error:
            raise StreamProblemError(str(error.detail)) from None

    async def _listen(
        self, speech: Speech, writing: "asyncio.Task[None]", biasing: Biasing
    ) -> StreamProblemError | None:
        """Receive audio until it ends or sending fails; return the problem that ended the stream early, if any."""
        ready = {"ready": True, "chunk_seconds": round(speech.chunk_seconds, 3), "note": speech.stream.note}
        await self._send(ready | ({"unused_hotwords": [*biasing.impossible]} if biasing.impossible else {}))
        reading = asyncio.create_task(self._unless_stopped(self._read(speech)))
        try:
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():  # sending ends before receiving only after an error
                await writing
            await reading
        except StreamProblemError as problem:
            if writing.done():
                raise
            return problem
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return None

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, Result]) -> Result:
        """Await a message of the client; raise StreamProblemError if the server stops first."""
        task = asyncio.create_task(waiting)
        stopping = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise server_stopping()
            return await task
        finally:
            for pending in (task, stopping):
                pending.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    # ---- incoming messages

    async def _options(self) -> tuple[StreamOptions, HotwordRequest]:
        """Receive and check the first message."""
        message = await self._next("the first message must arrive within {:g} seconds; none arrived.")
        must = f"the first message must be JSON, such as {EXAMPLE}"
        if message.get("text") is None:
            raise StreamProblemError(f"{must}; got {len(message.get('bytes') or b'')} bytes of audio.")
        try:
            values = MESSAGE.validate_json(message["text"])
            own = {name: value for name, value in values.items() if name not in NAMES}
            options = StreamOptions.model_validate(own, strict=True)
        except ValidationError as error:
            raise StreamProblemError(f"{must}; {_first(error)}.") from None
        return options, _hotwords_of(values)

    async def _next(self, too_late: str) -> dict[str, Any]:
        """Receive a message; `too_late` is the problem if it does not arrive within this number of seconds."""
        seconds = self._limits.idle_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._receive()
        except TimeoutError:
            raise StreamProblemError(too_late.format(seconds), IDLE) from None

    async def _read(self, speech: Speech) -> None:
        """Receive audio until the client ends the stream; a sample may be divided between two messages."""
        limits, num_messages, num_bytes = self._limits, 0, 0
        try:
            async with asyncio.timeout(limits.max_seconds):
                while (samples := await self._message()) is not None:
                    num_messages += 1
                    if isinstance(samples, HotwordRequest):
                        self._streams.replace_hotwords(speech, await self._biasing(samples))
                        continue
                    if samples == FLUSH:
                        self._streams.flush(speech)
                        samples = b""  # counts as a message without audio
                    num_bytes += len(samples)
                    self.seconds = num_bytes / SAMPLE_BYTES / speech.sample_rate
                    if self.seconds > limits.max_seconds:
                        raise TimeoutError
                    if num_messages > SPARE_MESSAGES + MESSAGES_A_SECOND * self.seconds:
                        must = "messages must contain a millisecond of audio or more on average"
                        raise StreamProblemError(f"{must}; these contain less.")
                    if samples:
                        self._streams.put(speech, samples)
                    while speech.is_ahead(AHEAD_SECONDS):
                        self._room.clear()
                        await self._room.wait()
                    await asyncio.sleep(0)  # gives other clients a turn during a burst of messages
        except TimeoutError:
            line = f"a stream must be at most {limits.max_seconds:g} seconds long; this one is longer. Begin another."
            raise StreamProblemError(line, TOO_LONG) from None
        if num_bytes % SAMPLE_BYTES:
            must = f"audio must be whole samples of {SAMPLE_BYTES} bytes"
            raise StreamProblemError(f"{must}; got {num_bytes:,} bytes, and the last byte is left out.")

    async def _message(self) -> bytes | HotwordRequest | Literal["flush"] | None:
        """Receive audio, hotwords or a flush; None: the client ends the stream."""
        message = await self._next("audio must not pause for {:g} seconds; it did.")
        text, samples = message.get("text"), message.get("bytes")
        if text is not None:
            with suppress(ValidationError):
                values = MESSAGE.validate_json(text)
                if values == {"end": True}:
                    return None
                if values == {FLUSH: True}:
                    return FLUSH
                if values and set(values) <= set(NAMES):
                    return _hotwords_of(values)
            must = 'a message must be audio, {"hotwords": [...]}, {"flush": true} or {"end": true}'
            raise StreamProblemError(f"{must}; got the text {shown_text(text)}.")
        if not samples:
            raise StreamProblemError("a message of audio must have samples; it is empty.")
        return bytes(samples)

    async def _receive(self) -> dict[str, Any]:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            self._say_gone(message.get("code"), message.get("reason"))
        return dict(message)

    @staticmethod
    def _say_gone(code: int | None, reason: str | None) -> NoReturn:
        if code in (1002, 1003, 1007, 1009):  # the protocol refused a message, and has sent the reason to the client
            raise _GoneError(f"refused: the message is not allowed ({code}: {shown_text(reason or '')})", REFUSED)
        raise _GoneError

    # ---- outgoing messages

    def _on_update(self, outcome: Update | Exception) -> None:
        """Pass an outcome from the streams' thread to the event loop."""
        with suppress(RuntimeError):  # the server has stopped
            self._loop.call_soon_threadsafe(self._take_up, outcome)

    def _take_up(self, outcome: Update | Exception) -> None:
        """Queue this update, merged with any update that has not been sent yet."""
        self._room.set()
        self._news.set()
        if isinstance(outcome, Exception):
            self._failure = outcome
            return
        captions, seconds, self._is_over = outcome
        partial = " ".join(word.text for word in captions.partial)
        before = self._pending or {"final": [], "partial": self._partial, "is_end": False, "is_backchannel": False}
        if captions.final or captions.is_end or captions.is_backchannel or partial != before["partial"]:
            self._pending = {
                "final": [*before["final"], *map(_word, captions.final)],
                "partial": partial,
                "is_end": before["is_end"] or captions.is_end,
                "is_backchannel": before["is_backchannel"] or captions.is_backchannel,
                "heard": round(seconds, 3),
            }

    async def _write(self) -> None:
        """Send updates until the last one."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._failure is not None:
                raise _problem_of(self._failure)
            event, self._pending = self._pending, None
            if event is not None:
                self._partial = event["partial"]
                await self._send(event)
            if self._is_over and self._pending is None:
                return

    async def _send(self, event: dict[str, Any]) -> None:
        await self._out(self._socket.send_text(json.dumps(event, separators=(",", ":"))))

    async def _close(self, code: int) -> None:
        await self._out(self._socket.close(code))

    async def _out(self, sending: Any) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await sending
        except TimeoutError:
            raise _GoneError(f"dropped: the client read nothing for {SEND_SECONDS:g} seconds", DROPPED) from None
        except (WebSocketDisconnect, RuntimeError):  # RuntimeError: the protocol has closed the socket
            raise _GoneError from None


def _hotwords_of(values: dict[str, Any]) -> HotwordRequest:
    """Read the hotwords of a message; raise StreamProblemError if they are invalid."""
    try:
        return read_hotwords(values)
    except UnusableError as error:
        raise StreamProblemError(str(error.detail)) from None


def _word(word: Word) -> dict[str, Any]:
    confidence = round(word.confidence, 4)
    return {"text": word.text, "start": round(word.start, 3), "end": round(word.end, 3), "confidence": confidence}


def _problem_of(failure: Exception) -> StreamProblemError:
    if isinstance(failure, StoppedError):
        return server_stopping()
    if is_out_of_memory(failure):
        return StreamProblemError("the server has too little memory for this stream.", FAILED, FAULT)
    return StreamProblemError("the server failed; see its log.", FAILED, FAULT)


def _first(error: ValidationError) -> str:
    """Describe the first error in one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = "".join(f"{part}: " for part in first["loc"])
    return printable(f"{where}{first['msg']}; got {shown_text(first['input'])}")
