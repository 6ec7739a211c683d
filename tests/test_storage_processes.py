"""A process that is forked, killed or interrupted may fail to read, but never gets wrong bytes and never hangs."""

import asyncio
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

from asr.base.storage import session
from asr.base.storage.store import read_range, write_whole
from asr.errors import StoreError
from tests.conftest import ROOT
from tests.storing import FaultyProxy, storage

CONTENT = random.Random(0).randbytes(50_000)
FORK = multiprocessing.get_context("fork")  # the default until Python 3.13
URL = "s3://bucket/shared"
ACCESS = "import os, sys, time\nfrom asr.base.storage.store import read_range\n"


@pytest.fixture(autouse=True)
def _object(s3: FaultyProxy) -> None:
    write_whole(URL, CONTENT)
    s3.requests.clear()


class Ranges(Dataset[tuple[bytes, str]]):
    """Byte ranges of the object, each with the name of the class through which it was read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, position: int) -> tuple[bytes, str]:
        return read_range(URL, 1000 * position, 1000), access()


def access() -> str:
    return type(session._session.access).__name__


def right() -> bool:
    start = random.randrange(40_000)
    return read_range(URL, start, 500) == CONTENT[start : start + 500]


def test_loading_processes_can_read_after_the_training_process_has_read() -> None:
    assert right()
    items = list(DataLoader(Ranges(), batch_size=None, num_workers=3, multiprocessing_context="fork"))
    assert items == [[CONTENT[1000 * place : 1000 * place + 1000], "Client"] for place in range(40)]
    assert access() == "_Helper"
    assert right()


@pytest.mark.slow
def test_loading_processes_read_correctly_despite_many_faults(s3: FaultyProxy) -> None:
    s3.faults.extend(random.Random(0).choices(["", "slow_down", "reset", "cut", "reset_within"], k=60))
    items = list(DataLoader(Ranges(), batch_size=None, num_workers=3, multiprocessing_context="fork"))
    assert [content for content, _ in items] == [CONTENT[1000 * place : 1000 * place + 1000] for place in range(40)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_failure_in_a_loading_process_is_reported_in_one_line(s3: FaultyProxy, num_workers: int) -> None:
    session.configure(storage(retry_seconds=0.5, timeout_seconds=0.5))
    s3.forever = "slow_down"
    context = "fork" if num_workers else None
    with pytest.raises(StoreError) as caught:
        list(DataLoader(Ranges(), batch_size=None, num_workers=num_workers, multiprocessing_context=context))
    assert str(caught.value).startswith(f"{URL}: 503 Service Unavailable, SlowDown")
    assert "\n" not in str(caught.value)


def read_then_fork(done: "multiprocessing.Queue[tuple[bool, bool, str]]") -> None:
    """Read as a loading process does; then fork, and read in the child as well."""
    first = right() and access() == "Client"
    child = FORK.Process(target=lambda: done.put((first, right(), access())))
    child.start()
    child.join()


def test_a_child_of_a_process_that_used_obstore_reads_through_a_helper() -> None:
    done: multiprocessing.Queue[tuple[bool, bool, str]] = FORK.Queue()
    process = FORK.Process(target=read_then_fork, args=(done,))
    process.start()
    assert done.get(timeout=60) == (True, True, "_Helper")
    process.join()


def test_parent_and_children_can_read_concurrently() -> None:
    """A child must not use the socket of its parent's helper."""
    assert right()
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            os._exit(0 if all(right() for _ in range(20)) else 1)
        children.append(child)
    assert all(right() for _ in range(40))
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert right()


def test_threads_can_read_concurrently() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: right(), range(100)))


def test_a_child_forked_while_another_thread_reads_can_read() -> None:
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            assert right()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                os._exit(0 if right() else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_reading_works_within_an_event_loop_as_in_notebooks() -> None:
    async def read() -> bool:
        return right()

    assert asyncio.run(read())


def started(code: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", ACCESS + code]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)


def helpers_of(process_id: int) -> list[int]:
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    return [int(child) for child in children]


def is_alive(process_id: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process_id}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("end", ["killed", "at its end"])
def test_a_helper_ends_with_its_process(end: str) -> None:
    code = f"""
read_range({URL!r}, 0, 5)
from asr.base.storage import session
print(session._session.access._process.pid, flush=True)
time.sleep({60 if end == "killed" else 0})
"""
    with started(code) as process:
        assert process.stdout
        helper = int(process.stdout.readline())
        if end == "killed":
            assert helpers_of(process.pid) == [helper]
            process.kill()
        assert process.wait(timeout=30) == (-signal.SIGKILL if end == "killed" else 0)
        for _ in range(200):
            if not is_alive(helper):
                return
            time.sleep(0.1)
    pytest.fail("the helper still runs")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_to_all_processes_does_not_stop_the_helper(number: signal.Signals) -> None:
    code = f"""
import signal
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda *_: None)  # like a training, which finishes its step
from asr.base.storage import session
read_range({URL!r}, 0, 5)
helper = session._session.access
print('read', flush=True)
sys.stdin.read()
time.sleep(0.5)
read_range({URL!r}, 0, 5)
print(session._session.access is helper and helper._process.poll() is None, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", ACCESS + code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "read\n"
        os.killpg(process.pid, number)
        process.stdin.close()
        assert process.stdout.readline() == "True\n"
