"""Requests to object stores from this process, by obstore: the only file that knows it.

obstore retries what may be temporary (5xx, resets, time-outs, cut bodies) until `retry_seconds` have passed. What it
returns is checked here: number of bytes, ETag, size. Its threads do not survive a fork, so `asr/storage/session.py`
decides which process may hold a client.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from asr.errors import StoreError, one_line
from asr.storage.location import HTTP, SCHEMES, bucket, key, printable_url, scheme
from asr.storage.settings import StorageSettings

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta

REQUEST_BYTES = 16 << 20  # in one request, at most: it must end within timeout_seconds
CONCURRENT_REQUESTS = 32  # of a process
MAX_HTTP_STORES = 64  # signed URLs need one each
NUM_RETRIES = 10_000  # time bounds them, not their number
SLACK_SECONDS = 10.0  # beyond what obstore should take at most, before a request is given up
MODIFIED = "modified "  # begins the version of an object of a server without ETags

logger = logging.getLogger(__name__)


class ObjectInfo(NamedTuple):
    """An object's size in bytes and its version: the ETag, or when it was modified; None if the server says neither."""

    size: int
    etag: str | None


class Get(NamedTuple):
    """Ask for bytes `start` to `stop` of an object, all of which must be there; with `etag`, of that version only.

    With `is_open` the object may end before `stop`.
    """

    url: str
    start: int
    stop: int
    etag: str | None = None
    is_open: bool = False


class Head(NamedTuple):
    """Ask for an object's size and version."""

    url: str


class List(NamedTuple):
    """Ask for the objects below a URL."""

    url: str


class Put(NamedTuple):
    """Write an object, whole or not at all."""

    url: str
    content: bytes | Path


Request = Get | Head | List | Put


class Fetched(NamedTuple):
    """Bytes of an object, and what the store said of it."""

    content: bytes
    info: ObjectInfo


class _Place(NamedTuple):
    """A store as obstore has it, and an object in it."""

    store: Any
    path: str


class Client:
    """A process's connections to stores, kept in a thread with an event loop, so that requests are concurrent."""

    def __init__(self) -> None:
        import obstore

        self._obstore = obstore
        self._stores: dict[tuple[str, StorageSettings], Any] = {}
        self._whole_only: set[str] = set()  # hosts and buckets of servers without byte ranges
        self._free = asyncio.Semaphore(CONCURRENT_REQUESTS)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="object stores").start()

    def run(self, requests: Sequence[Request], settings: StorageSettings) -> list[Any]:
        """Answer requests, as many at once as CONCURRENT_REQUESTS.

        Returns:
            One answer each: Fetched for Get, ObjectInfo for Head, a list of (URL, size) for List, None for Put.

        Raises:
            StoreError: of the first that failed.
        """
        return asyncio.run_coroutine_threadsafe(self._run(requests, settings), self._loop).result()

    async def _run(self, requests: Sequence[Request], settings: StorageSettings) -> list[Any]:
        tasks = [asyncio.ensure_future(self._answer(request, settings)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, request: Request, settings: StorageSettings) -> Any:
        limit = time_limit(request, settings)
        async with self._free:
            try:
                return await asyncio.wait_for(self._asked(request, settings), limit)
            except StoreError:
                raise
            except TimeoutError:
                cause = f"no answer within {limit:.0f} seconds"
            except FileNotFoundError as error:
                cause = _cause(error, "no such object")
            except (self._obstore.exceptions.BaseError, OSError, ValueError) as error:
                cause = _cause(error)
            raise StoreError(f"{printable_url(request.url)}: {cause}.") from None

    def _asked(self, request: Request, settings: StorageSettings) -> Coroutine[Any, Any, Any]:
        place = self._place(request.url, settings)
        if isinstance(request, Get):
            return self._get(request, place)
        if isinstance(request, Head):
            return self._head(request, place)
        if isinstance(request, List):
            return self._list(request, place)
        return self._put(request, place)

    # ---- the four requests

    async def _get(self, request: Get, place: _Place) -> Fetched:
        whole = bucket(request.url) in self._whole_only
        try:
            result = await self._result(request, place, whole)
        except self._obstore.exceptions.NotSupportedError:  # answered with 200, and all of the object
            self._whole_only.add(bucket(request.url))
            logger.warning("%s answers requests for byte ranges with whole objects", bucket(request.url))
            whole = True
            result = await self._result(request, place, whole)
        except self._obstore.exceptions.PreconditionError:
            raise _changed(request.url, f"it no longer has the version {request.etag}") from None
        info = _info(result.meta)
        check_version(request.url, request.etag, info)
        if whole:
            content = await _slice_of(result, request.start, request.stop)
        else:
            content = bytes(await result.bytes_async())
        stop = min(request.stop, max(info.size, request.start)) if request.is_open else request.stop
        check_length(request.url, request.start, stop, info, len(content))
        return Fetched(content, info)

    async def _result(self, request: Get, place: _Place, whole: bool) -> GetResult:
        options: dict[str, Any] = {} if whole else {"range": (request.start, request.stop)}
        if request.etag is not None and request.etag.startswith('"'):  # a weak ETag (W/"...") never matches
            options["if_match"] = request.etag
        return await self._obstore.get_async(place.store, place.path, options=options)  # type: ignore[arg-type]

    async def _head(self, request: Head, place: _Place) -> ObjectInfo:
        if scheme(request.url) in HTTP and "?" in request.url:  # a signature is for GET alone
            result = await self._obstore.get_async(place.store, place.path)
            return _info(result.meta)
        return _info(await self._obstore.head_async(place.store, place.path))

    async def _list(self, request: List, place: _Place) -> list[tuple[str, int]]:
        if scheme(request.url) in HTTP:
            raise StoreError(f"{printable_url(request.url)}: a web server's files cannot be listed; name each.")
        root = f"{scheme(request.url)}://{bucket(request.url)}/"
        found: list[ObjectMeta] = []
        async for chunk in self._obstore.list(place.store, place.path.rstrip("/") or None):
            found += chunk
        return sorted((root + meta["path"], meta["size"]) for meta in found)

    async def _put(self, request: Put, place: _Place) -> None:
        await self._obstore.put_async(place.store, place.path, request.content)

    # ---- stores

    def _place(self, url: str, settings: StorageSettings) -> _Place:
        """Find or make the store of a URL."""
        if scheme(url) not in HTTP:
            root, path = f"{scheme(url)}://{bucket(url)}", key(url)
        elif set("?%#") & set(url):  # obstore would encode the path anew
            root, path = url, ""
        else:
            root, path = f"{scheme(url)}://{bucket(url)}", key(url)
        if (root, settings) not in self._stores:
            while len(self._stores) >= MAX_HTTP_STORES:
                self._stores.pop(next(iter(self._stores)))
            self._stores[root, settings] = self._open(root, settings)
        return _Place(self._stores[root, settings], path)

    def _open(self, root: str, settings: StorageSettings) -> Any:
        from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

        timeout = timedelta(seconds=settings.timeout_seconds)
        client_options = {"timeout": timeout, "connect_timeout": min(timeout, timedelta(seconds=5)), "allow_http": True}
        retry = {"max_retries": NUM_RETRIES, "retry_timeout": timedelta(seconds=settings.retry_seconds)}
        options: Any = {"client_options": client_options, "retry_config": retry}
        kind = scheme(root)
        if kind in HTTP:
            return HTTPStore(root, **options)
        stores: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
        assert stores.keys() | set(HTTP) == set(SCHEMES)
        return stores[kind](bucket(root), **options)


def time_limit(request: Request, settings: StorageSettings) -> float:
    """Return the seconds after which a request is given up, should obstore not have done so."""
    size = 0
    if isinstance(request, Put):
        size = request.content.stat().st_size if isinstance(request.content, Path) else len(request.content)
    return (settings.retry_seconds + settings.timeout_seconds) * (1 + size // REQUEST_BYTES) + SLACK_SECONDS


async def _slice_of(result: GetResult, start: int, stop: int) -> bytes:
    """Read an object from its beginning as far as `stop`, and keep what is behind `start`."""
    content, position = bytearray(), 0
    async for chunk in result.stream(min_chunk_size=1 << 18):
        content += memoryview(chunk)[max(0, start - position) : max(0, stop - position)]
        position += len(chunk)
        if position >= stop:
            break
    return bytes(content)


def _info(meta: ObjectMeta) -> ObjectInfo:
    etag, modified = meta["e_tag"], meta["last_modified"]
    if etag is None and modified > datetime(1970, 1, 2, tzinfo=UTC):
        etag = MODIFIED + modified.isoformat()
    return ObjectInfo(meta["size"], etag)


def check_version(url: str, wanted: str | None, info: ObjectInfo) -> None:
    """Check that an object is still of the version that is wanted; None: any will do.

    Raises:
        StoreError: it is not.
    """
    if wanted is not None and info.etag != wanted:
        raise _changed(url, f"its version was {wanted} and now is {info.etag}")


def check_length(url: str, start: int, stop: int, info: ObjectInfo, got: int) -> None:
    """Check that all bytes of a range came: past the end of an object a store sends fewer, without an error.

    Raises:
        StoreError: they did not.
    """
    if got == stop - start:
        return
    named = f"{printable_url(url)}: bytes {start} to {stop}"
    if info.size < stop:
        raise StoreError(f"{named} must be there; it has {info.size} bytes. It is truncated, or another file.")
    raise StoreError(f"{named} must come whole; the store sent {got} of {stop - start}.")


def _changed(url: str, how: str) -> StoreError:
    must = f"{printable_url(url)}: must not change while it is in use; {how}"
    return StoreError(f"{must}. Start again, or write new objects under new names.")


def _cause(error: Exception, otherwise: str = "") -> str:
    """Say in one line why a request failed, without what may be secret: URLs with queries, bodies with keys."""
    text = str(error).partition("Debug source:")[0]
    status = re.search(r"status code: (\d{3} ?[A-Za-z -]*)", text)
    code, message = (re.search(rf"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message"))
    if status:
        parts = [status[1].strip(), *(part[1] for part in (code, message) if part)]
        cause = ", ".join(parts)
    elif otherwise:
        cause = otherwise
    else:
        cause = re.sub(r"\w+://\S+", lambda url: printable_url(url[0]), text.rpartition(" - ")[2])
    return one_line(unquote(cause)).rstrip(".") + _advice(text)


def _advice(text: str) -> str:
    """What to do about frequent causes."""
    if "169.254.169.254" in text or "metadata.google" in text:
        keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return f". There are no credentials: set {keys}, or AWS_SKIP_SIGNATURE=true for a public bucket"
    if "ExpiredToken" in text:
        return ". Renew the credentials, and start the command again: it resumes"
    if "LOCATION" in text or "AuthorizationHeaderMalformed" in text:
        return ". Set AWS_REGION to the bucket's region"
    return ""
