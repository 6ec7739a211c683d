"""Uvicorn's two protocols, with bounds on the work and memory that a client can cause, and errors as JSON.

The WebSocket protocol answers pings and joins the fragments of a message; the application does not receive them. This
module therefore counts pings and fragments. Answers to pings are stored until the client reads them.
"""

import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request, Response

FRAMES_A_SECOND = 200  # allowed frames in addition to messages: pings, pongs, and fragments after the first
SPARE_FRAMES = 1_000  # number of frames that a client may send in addition to this rate
JSON = "application/json"


class HttpProtocol(H11Protocol):
    """HTTP/1.1; the answer to a malformed request is JSON."""

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request, unless an answer has already begun; the application's answer is discarded."""
        if self.cycle is not None:  # h11 would refuse a second answer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = error_body(msg)
            headers = [
                ("content-type", JSON),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            events = h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """WebSockets with a limit on frames that are not messages."""

    _began: float | None = None
    _num_frames = 0

    def handle_connect(self, event: Request) -> None:
        """Answer the handshake; a refusal is JSON."""
        accept = self.conn.accept

        def accept_or_refuse(request: Request) -> Response:
            response = accept(request)
            return response if response.status_code == 101 else _as_json(response)

        self.conn.accept = accept_or_refuse  # type: ignore[method-assign]
        super().handle_connect(event)

    def handle_cont(self, event: Frame) -> None:
        """Handle a fragment of a message."""
        if self._counts():
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping."""
        if self._counts():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Handle the answer to a ping."""
        if self._counts():
            super().handle_pong(event)

    def _counts(self) -> bool:
        """Count a frame, and return whether to handle it; if there are too many, close the connection."""
        if self.close_sent or self.transport.is_closing():
            return False
        now = self.loop.time()
        self._began = now if self._began is None else self._began
        self._num_frames += 1
        if self._num_frames <= SPARE_FRAMES + FRAMES_A_SECOND * (now - self._began):
            return True
        self.conn.fail(CloseCode.POLICY_VIOLATION, "too many pings or fragments of messages")
        self.handle_parser_exception()
        return False


def error_body(line: str) -> bytes:
    """Return the JSON body of an error."""
    return json.dumps({"detail": line}).encode()


def _as_json(response: Response) -> Response:
    """Convert the answer to a failed handshake to JSON."""
    reason = (response.body or b"").decode("utf-8", "replace")
    body = error_body(" ".join(reason.split()) or "the handshake of a WebSocket failed.")
    headers = Headers(
        [(name, value) for name, value in response.headers.raw_items() if not name.lower().startswith("content-")]
    )
    headers["Content-Type"], headers["Content-Length"] = JSON, str(len(body))
    return Response(response.status_code, response.reason_phrase, headers, body)
