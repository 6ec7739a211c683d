"""The open WebSockets of the server, and the limit on their number."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from fastapi import WebSocket

from asr.apps.serve.hotwords import ServedHotwords
from asr.apps.serve.stream_client import LATER, REFUSED, StreamClient, StreamLimits, StreamProblemError, server_stopping
from asr.apps.serve.streams import Streams
from asr.base.text.printable import printable

logger = logging.getLogger("asr.apps.serve")


class StreamSockets:
    """Serves WebSockets, up to a maximum number at a time.

    Args:
        streams: recognises the streams.
        limits: limits of each stream.
        hotwords: compiles the hotwords of streams.
        on_change: called with 1 when a stream begins, with -1 when it ends.
        on_end: called with the way a stream ended, and its seconds of audio.
    """

    def __init__(
        self,
        streams: Streams,
        limits: StreamLimits,
        hotwords: ServedHotwords,
        on_change: Callable[[int], object] = lambda change: None,
        on_end: Callable[[str, float], object] = lambda how, seconds: None,
    ) -> None:
        self.streams = streams
        self.limits = limits
        self._hotwords = hotwords
        self._on_change = on_change
        self._on_end = on_end
        self._open: set[StreamClient] = set()
        self._stopping = False

    @property
    def number(self) -> int:
        """Number of open streams."""
        return len(self._open)

    async def serve(self, socket: WebSocket) -> None:
        """Serve a client until its stream ends."""
        await socket.accept()
        client = StreamClient(socket, self.streams, self.limits, self._hotwords)
        refusal = self._refusal()
        if refusal is None:
            self._open.add(client)
            self._on_change(1)
        try:
            how, line = await client.serve(refusal)
        finally:
            if refusal is None:
                self._open.discard(client)
                self._on_change(-1)
        self._on_end(how, client.seconds)
        address = socket.client.host if socket.client else "-"
        logger.info("%s", printable(f"{address} stream of {client.seconds:.1f} s: {line}"))

    def _refusal(self) -> StreamProblemError | None:
        if self._stopping:
            return server_stopping()
        if len(self._open) >= self.limits.most:
            line = f"the server is busy: the maximum number of streams ({self.limits.most}) is open. Try again later."
            return StreamProblemError(line, REFUSED, LATER)
        return None

    async def stop(self, seconds: float) -> None:
        """Accept no more audio; recognise the received audio and send its words, for at most `seconds`."""
        self._stopping = True
        for client in self._open:
            client.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._open:
                    await asyncio.sleep(0.02)
