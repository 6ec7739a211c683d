"""A hundred fast, slow, disconnecting and noisy clients use one server process, and each gets only its own words."""

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest
import torch
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.live import END, RATE, alone, events, final_words, from_pcm, live_process, pcm
from tests.serving import Server
from tests.test_streaming import speech, streaming_recognizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_CLIENTS = 100
SECONDS = 6.0
FIRST = json.dumps({"sample_rate": RATE})


@pytest.fixture
def server() -> Iterator[Server]:
    """A server process whose model has random weights."""
    with live_process("tests.test_streaming.streaming_recognizer(dtype=torch.float32)", NUM_CLIENTS) as running:
        yield running


def joined(server: Server) -> connect:
    return connect(server.address.replace("http", "ws") + "/stream", compression=None, open_timeout=60)


async def speaker(server: Server, samples: bytes, seed: int, pause: float) -> list[str]:
    """Run a client that sends all its audio, in messages of any length, fast or slowly; return its words."""
    generator = random.Random(seed)
    async with joined(server) as connection:
        telling = asyncio.create_task(events(connection))
        await connection.send(FIRST)
        at = 0
        while at < len(samples):
            size = 2 * generator.randint(100, 6000)
            await connection.send(samples[at : at + size])
            at += size
            await asyncio.sleep(pause * generator.random())
        await connection.send(END)
        replies = await telling
    assert "end" in replies[-1], replies[-1]
    return [word["text"] for word in final_words(replies)]


async def vanisher(server: Server, samples: bytes, seed: int) -> None:
    """Run a client that disconnects before its audio ends."""
    await asyncio.sleep(random.Random(seed).random())
    connection = await joined(server)
    await connection.send(FIRST)
    await connection.send(samples[: 2 * random.Random(seed).randint(1, len(samples) // 2)])
    raw = connection.transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
    connection.transport.abort()


async def noisemaker(server: Server, seed: int) -> None:
    """Run a client that sends noise, and then an invalid message."""
    generator = random.Random(seed)
    junk = ["no JSON", b"\x00" * 641, "{}", b"", '{"end": 1}', bytes(300_000)]
    async with joined(server) as connection:
        with contextlib.suppress(ConnectionClosed):
            if seed % 5:
                await connection.send(FIRST)
            for _ in range(generator.randint(1, 30)):
                await connection.send(generator.randbytes(2 * generator.randint(1, 4000)))
            await connection.send(generator.choice(junk))
        await events(connection)


async def deaf(server: Server, samples: bytes, over: asyncio.Event) -> None:
    """Run a client that sends audio and never reads."""
    address = server.address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(address[0], int(address[1]))
    head = ["GET /stream HTTP/1.1", "Host: 127.0.0.1", "Upgrade: websocket", "Connection: Upgrade"]
    head += ["Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Version: 13", "", ""]
    writer.write("\r\n".join(head).encode())
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.pause_reading()
    for opcode, content in ((1, FIRST.encode()), (2, samples[:60_000])):
        writer.write(bytes([0x80 | opcode, 0x80 | 126]) + struct.pack("!H", len(content)) + bytes(4) + content)
    await over.wait()
    writer.close()


def test_a_hundred_clients_do_not_disturb_each_other(server: Server) -> None:
    torch.set_num_threads(1)
    recognizer = streaming_recognizer(dtype=torch.float32)
    voices = [pcm(speech(SECONDS, seed, torch.float32)) for seed in range(10)]
    expected = [[word.text for word in alone(recognizer, from_pcm(samples))] for samples in voices]

    async def crowd() -> list[list[str]]:
        over = asyncio.Event()
        others = [asyncio.create_task(vanisher(server, voices[seed % 10], seed)) for seed in range(20)]
        others += [asyncio.create_task(noisemaker(server, seed)) for seed in range(20)]
        silent = [asyncio.create_task(deaf(server, voices[seed], over)) for seed in range(5)]
        pauses = [0.0, 0.05, 0.5]  # seconds; the last makes the client slower than speech
        transcripts = await asyncio.gather(
            *(speaker(server, voices[seed % 10], seed, pauses[seed % 3]) for seed in range(NUM_CLIENTS - 45))
        )
        over.set()
        await asyncio.gather(*others, *silent)
        return transcripts

    transcripts = asyncio.run(crowd())
    for seed, words in enumerate(transcripts):
        assert words == expected[seed % 10], f"client {seed}"
    end = time.monotonic() + 60
    while server.get("/health").json()["streams"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    together = server.metric("asr_turn_streams_sum") / server.metric("asr_turn_streams_count")
    print(f"streams per turn: {together:.1f}")
    assert together > 2
    assert "Traceback" not in server.log.read_text()
    assert server.stop() == 0
