"""The WebSocket sends the words of `asr.Stream` to any number of clients, and answers bad input with one clear line."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from fastapi import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from asr import Stream
from asr.apps.serve import stream_client
from asr.apps.serve.stream_client import AHEAD_SECONDS, MAX_MESSAGE_BYTES, SPARE_MESSAGES, StreamLimits
from asr.apps.serve.streams import SAMPLE_BYTES, Speech
from asr.base.audio.resampling import resampled
from asr.core.recognition.latency import latencies
from asr.core.recognition.recognizer import Recognizer
from tests.listener import listener
from tests.live import END, LIMITS, RATE, Live, alone, events, final_words, from_pcm, live, pcm, say, service, text
from tests.refusals import mentions
from tests.test_streaming import causal, speech, streaming_recognizer
from tests.tones import sentences, speak


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    """A streaming recogniser with chunks of a quarter of a second, whose random weights emit many tokens."""
    return streaming_recognizer(dtype=torch.float32)


def cut(samples: bytes, seed: int, most: int = 3000) -> list[bytes]:
    """Cut samples into messages at random; most are short."""
    generator, messages, at = random.Random(seed), [], 0
    while at < len(samples):
        size = 2 * generator.choice([1, 2, generator.randint(1, most)])
        messages.append(samples[at : at + size])
        at += size
    return messages


def run(test: Callable[[Live], Awaitable[Any]], recognizer: Recognizer, limits: StreamLimits = LIMITS) -> Any:
    """Run a test of a server; at the end all streams must be closed."""

    async def within() -> Any:
        async with live(recognizer, limits) as server:
            outcome = await test(server)
            async with asyncio.timeout(20):
                while server.metric("asr_streams "):
                    await asyncio.sleep(0.01)
            assert not server.service.sockets.streams._open
            return outcome

    return asyncio.run(within())


# ---- words


def test_concurrent_clients_get_the_words_of_asr_stream_for_their_samples(recognizer: Recognizer) -> None:
    spoken = [pcm(speech(seconds, seed, torch.float32)) for seed, seconds in enumerate((3.0, 0.0, 1.7, 4.1, 0.3))]

    async def test(server: Live) -> Any:
        replies = await asyncio.gather(*(say(server, cut(samples, seed)) for seed, samples in enumerate(spoken)))
        assert server.metric("asr_turn_streams_sum") > server.metric("asr_turn_streams_count"), (
            "no streams were recognised in one batch"
        )
        return replies

    for samples, replies in zip(spoken, run(test, recognizer), strict=True):
        expected = alone(recognizer, from_pcm(samples) if samples else torch.zeros(0))
        assert replies[0] == {"ready": True, "chunk_seconds": 0.24, "note": ""}
        assert replies[-1] == {"end": True, "seconds": round(len(samples) / 2 / RATE, 3)}
        assert text(replies) == " ".join(word.text for word in expected)
        for word, same in zip(final_words(replies), expected, strict=True):
            assert (word["start"], word["end"]) == (round(same.start, 3), round(same.end, 3))
            assert word["confidence"] == pytest.approx(same.confidence, abs=2e-4)
        recognised_seconds = [event["heard"] for event in replies[1:-1]]
        assert recognised_seconds == sorted(recognised_seconds)
        for before, event in pairwise(replies[:-1]):
            assert event["final"] or event["is_end"] or event["partial"] != before.get("partial", "")


def test_words_arrive_while_a_client_speaks(recognizer: Recognizer) -> None:
    samples = pcm(speech(4.0, 3, torch.float32))

    async def test(server: Live) -> Any:
        async with server.connect() as connection:
            await connection.send(json.dumps({"sample_rate": RATE}))
            await connection.send(samples)
            replies: list[Any] = []
            while not final_words(replies) or not replies[-1]["partial"]:
                replies.append(json.loads(await connection.recv()))
            await connection.send(END)
            return replies + await events(connection)

    replies = run(test, recognizer)
    assert text(replies) == " ".join(word.text for word in alone(recognizer, from_pcm(samples)))


@pytest.mark.parametrize("rate", [48000, 44100])
def test_audio_with_another_sample_rate_is_resampled(recognizer: Recognizer, rate: int) -> None:
    samples = pcm(
        torch.nn.functional.interpolate(speech(2.0, 5, torch.float32)[None, None], rate * 2, mode="linear")[0, 0]
    )
    expected = alone(recognizer, torch.cat(list(resampled([from_pcm(samples)], rate, RATE))))
    replies = run(lambda server: say(server, cut(samples, 1), {"sample_rate": rate}), recognizer)
    assert text(replies) == " ".join(word.text for word in expected)
    assert expected


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 96000])
def test_a_chunk_of_resampled_audio_needs_few_turns(recognizer: Recognizer, rate: int) -> None:
    """The resampler returns samples in bursts; a chunk that lacks few samples must not take these one by one."""
    live_speech = Speech(Stream(recognizer, chunk_seconds=0.32), rate, lambda update: None)
    live_speech.add(bytes(20 * SAMPLE_BYTES * rate))
    num_turns, most = 0, 0  # turns since the last complete chunk
    while live_speech.is_ready:
        live_speech.process(*live_speech.take())
        num_turns = 0 if live_speech.stream.ears.is_ready else num_turns + 1
        most = max(most, num_turns)
        live_speech.stream.advance([live_speech.stream.ears])
        live_speech.want()
    assert most <= 12


@pytest.mark.parametrize("seconds", [0.8, AHEAD_SECONDS])
def test_a_client_may_choose_the_chunk_duration(seconds: float, recognizer: Recognizer) -> None:
    samples = pcm(speech(2.5 * seconds, 6, torch.float32))
    messages = [samples[begin : begin + RATE // 5] for begin in range(0, len(samples), RATE // 5)]
    replies = run(lambda server: say(server, messages, {"sample_rate": RATE, "chunk_seconds": seconds}), recognizer)
    assert replies[0]["chunk_seconds"] == seconds
    assert text(replies) == " ".join(word.text for word in alone(recognizer, from_pcm(samples), chunk_seconds=seconds))


def test_each_client_may_choose_its_own_latency_from_the_list_of_the_model() -> None:
    model, samples = causal("greedy"), pcm(speech(3.0, 6, torch.float32))
    model.model.float()
    choices = latencies(model.model)

    async def test(server: Live) -> Any:
        options = [{"sample_rate": RATE, "latency": latency} for latency in choices]
        return await asyncio.gather(*(say(server, cut(samples, 2), each) for each in options))

    for latency, replies in zip(choices, run(test, model), strict=True):
        assert replies[0]["chunk_seconds"] == pytest.approx(latency)
        expected = alone(model, from_pcm(samples), latency=latency)
        assert text(replies) == " ".join(word.text for word in expected)
    [refusal] = run(lambda server: say(server, [samples], {"sample_rate": RATE, "latency": 0.08}), model)
    assert mentions(refusal["error"], "latency ... 0.24, 0.04 or 0.6 ... 0.08")


def test_with_a_non_streaming_model_the_last_seconds_are_recognised_again_and_a_note_says_so() -> None:
    texts = sentences(3, seed=5, words=(3, 8))

    async def test(server: Live) -> Any:
        spoken = (cut(pcm(torch.from_numpy(speak(sentence)).float()), seed) for seed, sentence in enumerate(texts))
        return await asyncio.gather(*(say(server, messages) for messages in spoken), say(server, []))

    *replies, of_nothing = run(test, listener())
    assert [text(each) for each in replies] == texts
    assert replies[0][0]["note"].startswith(
        "at least the last 8 s are recognised again every 0.96 s, because Ear needs the"
    )
    assert text(of_nothing) == ""


# ---- invalid messages


def bad(*messages: "str | bytes") -> Callable[[Live], Awaitable[tuple[list[Any], int | None]]]:
    """Return a client that sends `messages`, and returns the replies and the close code of the connection."""

    async def test(server: Live) -> tuple[list[Any], int | None]:
        async with server.connect() as connection:
            try:
                for message in messages:
                    await connection.send(message)
            except ConnectionClosed:
                pass
            replies = await events(connection)
            return replies, connection.close_code

    return test


FIRST = '{"sample_rate": 16000}'
BAD = {
    "audio first": ([bytes(100)], "got 100 bytes of audio"),
    "no JSON": (["hello\n"], "Invalid JSON: expected value at line 1 column 1; got 'hello\\\\n'."),
    "a list": (["[1]"], "got '[1]'."),
    "no rate": (["{}"], "sample_rate: Field required"),
    "a rate that is none": (['{"sample_rate": "16000"}'], "sample_rate: Input should be a valid integer"),
    "a low rate": (['{"sample_rate": 10}'], "sample_rate: Input should be greater than or equal to 8000; got '10'."),
    "a high rate": (['{"sample_rate": 1e9}'], "sample_rate: Input should be"),
    "a misspelt option": (['{"sample_rate": 16000, "chunk": 1}'], "chunk: Extra inputs are not permitted; got '1'."),
    "a tiny chunk": (['{"sample_rate": 16000, "chunk_seconds": 1e-9}'], "chunk_seconds: Input should be greater"),
    "no number": (['{"sample_rate": 16000, "chunk_seconds": NaN}'], "chunk_seconds: Input should be"),
    "a deep one": (["[" * 5000], "Invalid JSON: recursion limit exceeded"),
    "half a sample": ([FIRST, bytes(641), '{"end": true}'], "got 641 bytes"),
    "nothing": ([FIRST, b""], "samples; it is empty."),
    "text for audio": ([FIRST, "hello \x1b[31m" + "x" * 99], "got the text 'hello \\\\x1b[31mxxx"),
    "no end": ([FIRST, '{"end": false}'], '{"end": true}; got'),
    "samples one by one": ([FIRST, *[bytes(2)] * (SPARE_MESSAGES + 100)], "a millisecond"),
}


def test_an_invalid_message_is_reported_in_one_line_and_the_next_client_is_served(recognizer: Recognizer) -> None:
    samples = pcm(speech(0.5, 1, torch.float32))

    async def test(server: Live) -> None:
        for name, (messages, line) in BAD.items():
            replies, code = await bad(*messages)(server)
            [problem] = [event["error"] for event in replies if "error" in event]
            assert replies[-1] == {"error": problem}, name
            assert line in problem, name
            assert problem.endswith("."), name
            assert problem.isprintable(), name
            assert len(problem) < 250, name
            assert code == 1008, name
        assert server.metric('asr_streams_ended_total{how="refused"}') == len(BAD)
        assert text(await say(server, [samples])) == " ".join(w.text for w in alone(recognizer, from_pcm(samples)))

    run(test, recognizer)


def test_a_sample_may_be_divided_between_messages(recognizer: Recognizer) -> None:
    samples = pcm(speech(2.0, 2, torch.float32))
    pieces = [samples[:1601], samples[1601:1762], samples[1762:1813], samples[1813:]]
    words = final_words(run(lambda server: say(server, pieces), recognizer))
    assert words
    assert words == final_words(run(lambda server: say(server, [samples]), recognizer))


def test_audio_before_an_error_is_still_recognised(recognizer: Recognizer) -> None:
    samples = pcm(speech(2.0, 2, torch.float32))
    replies, _ = run(bad(FIRST, samples, "oops"), recognizer)
    assert final_words(replies) == final_words(run(lambda server: say(server, [samples]), recognizer))
    assert "oops" in replies[-1]["error"]


def test_a_message_that_is_too_large_closes_the_connection_with_code_1009(recognizer: Recognizer) -> None:
    replies, code = run(bad(FIRST, bytes(MAX_MESSAGE_BYTES + 2)), recognizer)
    assert code == 1009
    assert not final_words(replies)


HANDSHAKE = (
    "GET /stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def test_a_protocol_violation_closes_only_its_own_connection(
    recognizer: Recognizer, caplog: pytest.LogCaptureFixture
) -> None:
    junk = (random.Random(1).randbytes(5000), b"\x82\x05hello", b"\xff" * 99, b"\x81\x82\0\0\0\0\xff\xff", b"")

    async def test(server: Live) -> None:
        for content in junk:
            host, port = server.address.removeprefix("ws://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(HANDSHAKE.encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            writer.write(content)
            if content:
                async with asyncio.timeout(20):
                    await reader.read()  # read until the connection is closed
            writer.close()

    run(test, recognizer)
    assert not [record for record in caplog.records if record.exc_info and "UTF-8" not in record.msg]


EMPTY_PART, PING = b"\x00\x80\0\0\0\0", b"\x89\xfd\0\0\0\0" + bytes(125)  # frames of a client


@pytest.mark.parametrize("frame", [EMPTY_PART, PING], ids=["empty parts of a message", "pings that nobody reads"])
def test_a_flood_of_empty_frames_or_pings_needs_little_memory_and_disturbs_no_other_stream(
    recognizer: Recognizer, frame: bytes
) -> None:
    samples = pcm(speech(1.0, 2, torch.float32))

    async def flood(server: Live) -> int:
        """Send frames and read nothing, then read to the end; return the largest size of the server's send buffer."""
        host, port = server.address.removeprefix("ws://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1)
        writer.write(HANDSHAKE.encode())
        await asyncio.sleep(0.2)
        writer.write(b"\x01\x80\0\0\0\0" if frame == EMPTY_PART else b"")  # an unfinished text frame
        most = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                writer.write(1000 * frame)
                await writer.drain()
                await asyncio.sleep(0)
                connections = server.server.server_state.connections
                most = max([most, *(connection.transport.get_write_buffer_size() for connection in connections)])
            async with asyncio.timeout(20):
                await reader.read()  # read until the server closes the connection
        writer.close()
        return most

    async def test(server: Live) -> tuple[Any, int]:
        replies, most = await asyncio.gather(say(server, cut(samples, 1)), flood(server))
        return replies, most

    replies, most = run(test, recognizer)
    assert most < 1_000_000
    assert text(replies) == " ".join(word.text for word in alone(recognizer, from_pcm(samples)))


def test_a_message_may_be_fragmented(recognizer: Recognizer) -> None:
    samples = pcm(speech(1.0, 2, torch.float32))

    async def test(server: Live) -> Any:
        async with server.connect() as connection:
            await connection.send(FIRST)
            await connection.send([samples[at : at + 400] for at in range(0, len(samples), 400)])
            await connection.send(END)
            return [json.loads(message) async for message in connection]

    assert text(run(test, recognizer)) == " ".join(word.text for word in alone(recognizer, from_pcm(samples)))


def test_streams_are_refused_for_other_sites_hosts_and_paths(recognizer: Recognizer) -> None:
    async def refused(server: Live, address: str = "", path: str = "/stream", **options: Any) -> int:
        port = int(server.address.rsplit(":", 1)[1])
        with pytest.raises(InvalidStatus) as refusal:
            await connect((address or server.address) + path, host="127.0.0.1", port=port, **options)
        response = refusal.value.response
        assert json.loads(response.body or b"")["detail"].endswith(".")
        return response.status_code

    async def test(server: Live) -> None:
        async with server.connect(), server.connect(origin=server.address.replace("ws:", "http:")):
            pass
        assert await refused(server, origin="https://evil.example") == 403
        assert await refused(server, "ws://evil.example") == 421
        assert await refused(server, path="/streams") == 404
        assert server.metric('asr_requests_total{path="/stream",status="403"}') == 1
        assert "evil" not in server.service.metrics.text().decode()

    run(test, recognizer)


# ---- limits


def test_streams_beyond_the_maximum_are_refused_with_a_time_to_retry(recognizer: Recognizer) -> None:
    async def test(server: Live) -> None:
        async with server.connect() as first, server.connect() as other:
            for connection in (first, other):
                await connection.send(FIRST)
                assert json.loads(await connection.recv())["ready"]
            async with server.connect() as late:
                [reply] = await events(late)
                assert mentions(reply["error"], "busy ... streams (2)")
                assert late.close_code == 1013
            await first.close()
            while server.service.sockets.number > 1:
                await asyncio.sleep(0.01)
            assert "end" in (await say(server, [bytes(3200)]))[-1]
            assert server.metric("asr_streams ") == 1

    run(test, recognizer, StreamLimits(2, 60, 20))


def test_a_silent_client_is_disconnected(recognizer: Recognizer) -> None:
    samples = pcm(speech(1.0, 2, torch.float32))

    async def test(server: Live) -> Any:
        (mute, _), (stuck, _) = await asyncio.gather(bad()(server), bad(FIRST, samples)(server))
        assert server.metric('asr_streams_ended_total{how="idle"}') == 2
        return mute, stuck

    mute, stuck = run(test, recognizer, StreamLimits(4, 60, 0.3))
    [refusal] = mute
    assert mentions(refusal["error"], "first message ... 0.3 seconds")
    assert mentions(stuck[-1]["error"], "audio ... 0.3 seconds")
    assert " ".join(w["text"] for w in final_words(stuck)) == " ".join(
        word.text for word in alone(recognizer, from_pcm(samples))
    )


def test_a_stream_is_ended_at_its_maximum_duration(recognizer: Recognizer) -> None:
    limits = StreamLimits(4, 1.0, 20)
    second = pcm(speech(1.0, 2, torch.float32))
    replies, _ = run(bad(FIRST, second, bytes(2)), recognizer, limits)
    assert mentions(replies[-1]["error"], "a stream ... 1 seconds")
    assert final_words(replies)

    async def slowly(server: Live) -> Any:
        async with server.connect() as connection:
            await connection.send(FIRST)
            return await events(connection)

    assert "at most 1 seconds" in run(slowly, recognizer, limits)[-1]["error"]


def test_clients_that_disappear_leave_nothing_and_disturb_nobody(recognizer: Recognizer) -> None:
    samples = pcm(speech(2.0, 2, torch.float32))

    async def vanish(server: Live, *messages: "str | bytes") -> None:
        connection = await server.connect()
        for message in messages:
            await connection.send(message)
        raw = connection.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        connection.transport.abort()

    async def test(server: Live) -> Any:
        gone = [
            vanish(server),
            vanish(server, FIRST),
            vanish(server, FIRST, samples),
            vanish(server, FIRST, samples, END),
        ]
        replies, *_ = await asyncio.gather(say(server, cut(samples, 1)), *gone)
        return replies

    assert text(run(test, recognizer)) == " ".join(word.text for word in alone(recognizer, from_pcm(samples)))


# ---- slow clients: simulated sockets, so that nothing depends on the system's buffers


class Hand:
    """A simulated connection: a test sets the messages that the server receives, and reads those that it sends."""

    def __init__(self, deaf_after: int = 1000) -> None:
        self.coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self._deaf_after = deaf_after
        self.coming.put_nowait({"type": "websocket.connect"})
        scope = {"type": "websocket", "path": "/stream", "headers": [], "client": ("127.0.0.1", 1)}
        self.socket = WebSocket(scope, self.coming.get, self._send)

    async def _send(self, message: dict[str, Any]) -> None:
        if len(self.sent) >= self._deaf_after:
            await asyncio.Event().wait()
        self.sent.append(message)

    def say(self, message: "str | bytes") -> None:
        key = "text" if isinstance(message, str) else "bytes"
        self.coming.put_nowait({"type": "websocket.receive", key: message})


def test_a_client_that_sends_too_fast_is_slowed_down(recognizer: Recognizer) -> None:
    second = bytes(2 * RATE)

    async def test() -> None:
        sockets = service(recognizer).sockets
        sockets.streams.start()
        with sockets.streams._changed:  # while this lock is held, the net is busy and takes no audio
            hand = Hand()
            for message in (FIRST, *[second] * 9, END):
                hand.say(message)
            serving = asyncio.create_task(sockets.serve(hand.socket))
            for _ in range(500):
                await asyncio.sleep(0)
            taken = 9 + 1 - hand.coming.qsize()
            assert taken == AHEAD_SECONDS + 1
        await serving
        assert json.loads(hand.sent[-2]["text"]) == {"end": True, "seconds": 9.0}
        sockets.streams.stop()

    asyncio.run(test())


def test_a_client_that_does_not_read_is_dropped_and_logged(
    recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_client, "SEND_SECONDS", 0.1)
    caplog.set_level("INFO", "asr.apps.serve")

    async def test() -> None:
        served = service(recognizer)
        sockets = served.sockets
        sockets.streams.start()
        deaf = Hand(deaf_after=2)  # the first two messages are the acceptance and the start of the stream
        for message in (FIRST, pcm(speech(2.0, 2, torch.float32))):
            deaf.say(message)
        await sockets.serve(deaf.socket)
        assert len(deaf.sent) == 2
        assert 'how="dropped"} 1.0' in served.metrics.text().decode()
        assert sockets.number == 0
        sockets.streams.stop()

    asyncio.run(test())
    assert caplog.messages[-1] == "127.0.0.1 stream of 2.0 s: dropped: the client read nothing for 0.1 seconds"


# ---- internal errors, and the end of the server


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("/root/secret"), "the server failed; see its log."),
        (RuntimeError("[enforce fail] can't allocate memory"), "the server has too little memory for this stream."),
    ],
    ids=["a fault", "memory"],
)
def test_an_internal_error_is_reported_in_one_line_without_details_and_the_next_client_is_served(
    recognizer: Recognizer, error: Exception, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    async def test(server: Live) -> Any:
        with monkeypatch.context() as broken:
            broken.setattr(recognizer.model.encoder, "step", fail)
            replies, code = await bad(FIRST, bytes(RATE))(server)
            assert replies[-1] == {"error": line}
            assert code == 1011
        return await say(server, [bytes(RATE)])

    assert run(test, recognizer)[-1]["end"]


def test_a_stopping_server_sends_the_words_recognised_so_far(recognizer: Recognizer) -> None:
    samples = pcm(speech(2.0, 2, torch.float32))

    async def test(server: Live) -> Any:
        async with server.connect() as connection, server.connect() as mute:
            await connection.send(FIRST)
            await connection.send(samples)
            replies = [json.loads(await connection.recv()) for _ in range(2)]
            server.server.should_exit = True
            replies += await events(connection)
            assert mentions((await events(mute))[-1]["error"], "is stopping")
            assert connection.close_code == 1012
            return replies

    replies = run(test, recognizer)
    assert mentions(replies[-1]["error"], "is stopping")
    words = [word["text"] for word in final_words(replies)]
    assert words == [word.text for word in alone(recognizer, from_pcm(samples))]


def test_a_server_whose_thread_has_ended_refuses_streams(recognizer: Recognizer) -> None:
    async def test(server: Live) -> Any:
        server.service.sockets.streams.stop()
        return await bad(FIRST)(server)

    replies, code = run(test, recognizer)
    [refusal] = replies
    assert mentions(refusal["error"], "is stopping")
    assert code == 1012
