"""Requests to object stores from this process; the only file that uses obstore.

obstore retries possibly temporary errors (5xx, resets, timeouts, truncated bodies) until `retry_seconds` have passed.
Its results are checked here: number of bytes, ETag, size. Its threads do not survive a fork, so
`asr/base/storage/session.py` decides which process may have a client.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
import time
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote

from asr.base.storage.location import HTTP, SCHEMES, bucket, key, printable_url, scheme
from asr.base.storage.settings import StorageSettings
from asr.errors import StoreError, UnreachableStoreError, one_line

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta

REQUEST_BYTES = 16 << 20  # maximum size of a request, which must end within timeout_seconds
CONCURRENT_REQUESTS = 32  # maximum number of concurrent requests of a process
MAX_STORES = 64  # maximum number of open stores; each signed URL needs a store
NUM_RETRIES = 10_000  # no limit in practice: retry_seconds limits retries
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 15.0  # pause before a retry; doubles with each retry
SLACK_SECONDS = 10.0  # a request is abandoned this long after obstore's own time limits
MODIFIED = "modified "  # prefix of a version that is a time, from a server without ETags

VARIABLES = ("AWS_", "GOOGLE_", "AZURE_")  # prefixes of environment variables
# obstore's messages, for S3 and for HTTP, when a server ignores a byte range and sends the whole object.
ANSWERED_WITH_200 = ("non-partial response", "Range request not supported")
REASONS = {  # meaning of parts of obstore's messages
    "TimedOut": "no answer within timeout_seconds",
    "IncompleteBody": "the answer ended early",
    "dns error": "the name of the host cannot be resolved",
}

_process_id: int | None = None  # id of the first process that used obstore: this process or an ancestor

logger = logging.getLogger(__name__)


class ObjectInfo(NamedTuple):
    """An object's size in bytes and its version: the ETag, else the time of modification, else None."""

    size: int
    etag: str | None


class Get(NamedTuple):
    """Get bytes `start` to `stop` of an object.

    The object must contain all these bytes; with `is_open` it may end before `stop`. If `etag` is given, the object
    must have this version.
    """

    url: str
    start: int
    stop: int
    etag: str | None = None
    is_open: bool = False


class Stat(NamedTuple):
    """Get an object's size and version."""

    url: str


class Listing(NamedTuple):
    """List the objects below a URL."""

    url: str


class Put(NamedTuple):
    """Write an object atomically; with `is_new`, only if it does not exist."""

    url: str
    content: bytes | Path
    is_new: bool = False


Environment = tuple[tuple[str, str], ...]
Request = Get | Stat | Listing | Put


class Fetched(NamedTuple):
    """Bytes of an object, and its size and version."""

    content: bytes
    info: ObjectInfo


class _Incomplete(Exception):  # noqa: N818
    """Fewer bytes arrived than were announced."""


class _Location(NamedTuple):
    """An obstore store, and the path of an object in it."""

    store: Any
    path: str


class Client:
    """A process's connections to stores; a thread with an event loop sends the requests concurrently."""

    def __init__(self) -> None:
        import obstore

        global _process_id
        assert is_alive(), "a process forked from one that used obstore would hang"
        _process_id = os.getpid()
        self._obstore = obstore
        self._stores: dict[tuple[str, StorageSettings, Environment], Any] = {}
        # Hosts and buckets, by their answers to requests for byte ranges: a range, or the whole object.
        self._with_ranges: set[str] = set()
        self._without_ranges: set[str] = set()
        self._free = asyncio.Semaphore(CONCURRENT_REQUESTS)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name="object stores").start()

    def run(self, requests: Sequence[Request], settings: StorageSettings) -> list[Any]:
        """Send requests, at most CONCURRENT_REQUESTS at a time.

        Returns:
            The result of each request: Fetched for Get, ObjectInfo for Stat, pairs of URL and ObjectInfo for Listing;
            for Put, whether the object was written.

        Raises:
            StoreError: a request failed; the error is that of the first failed request in the given order.
        """
        return asyncio.run_coroutine_threadsafe(self._run(requests, settings), self._loop).result()

    async def _run(self, requests: Sequence[Request], settings: StorageSettings) -> list[Any]:
        tasks = [asyncio.ensure_future(self._answer(request, settings)) for request in requests]
        try:
            return [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            # Retrieve each error, because asyncio logs the others. A cancelled request may still fail: wait_for returns
            # an answer that arrives in the same iteration of the loop as the cancellation.
            await asyncio.gather(*tasks, return_exceptions=True)

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
                cause = _missing(error, request.url)
            except (_Incomplete, self._obstore.exceptions.BaseError, OSError, ValueError) as error:
                cause = _cause(error)
            raise UnreachableStoreError(f"{printable_url(request.url)}: {cause}.") from None

    def _asked(self, request: Request, settings: StorageSettings) -> Coroutine[Any, Any, Any]:
        location = self._locate(request.url, settings)
        if isinstance(request, Get):
            return self._get(request, location, settings)
        if isinstance(request, Stat):
            return self._head(request, location)
        if isinstance(request, Listing):
            return self._list(request, location, settings)
        return self._put(request, location)

    # ---- the four requests

    async def _get(self, request: Get, location: _Location, settings: StorageSettings) -> Fetched:
        """Get a range; also retry after wrong bodies, such as truncated ones without ETags, which obstore does not."""
        deadline, pause = time.monotonic() + settings.retry_seconds, FIRST_PAUSE_SECONDS
        may_be_whole = bucket(request.url) not in self._with_ranges
        while True:
            try:
                return await self._get_once(request, location, may_be_whole)
            except (_Incomplete, self._obstore.exceptions.GenericError) as error:
                if time.monotonic() + pause > deadline or "status code: 4" in str(error):
                    raise
            may_be_whole = True  # a server's first whole object may be a proxy's error page
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _get_once(self, request: Get, location: _Location, may_be_whole: bool) -> Fetched:
        """Get a range once; `may_be_whole`: from a server that ignores ranges, get the whole object."""
        host, is_whole = bucket(request.url), False
        try:
            result = await self._result(request, location, whole=False)
            self._with_ranges.add(host)
        except self._obstore.exceptions.PreconditionError:
            raise _changed(request.url, f"it no longer has the version {request.etag}") from None
        except (self._obstore.exceptions.GenericError, self._obstore.exceptions.NotSupportedError) as error:
            if "status code: 416" in str(error):
                return _past_the_end(request, await self._head(Stat(request.url), location))
            if not any(mark in str(error) for mark in ANSWERED_WITH_200):
                raise
            if not may_be_whole:
                raise _Incomplete("the store answered a request for a byte range with a whole object") from None
            if host not in self._without_ranges:
                logger.warning("%s answers requests for byte ranges with whole objects", host.rpartition("@")[2])
            self._without_ranges.add(host)
            result, is_whole = await self._result(request, location, whole=True), True
        info = _info(result.meta)
        check_version(request.url, request.etag, info)
        if encoding := result.attributes.get("Content-Encoding"):
            must = f"{printable_url(request.url)}: must be stored and sent without an encoding"
            raise StoreError(f"{must}; got Content-Encoding: {one_line(encoding)}. Upload it without one.")
        if is_whole:
            content = await _slice_of(result, request.start, request.stop)
        else:
            content = bytes(await result.bytes_async())
        expected = min(request.stop, info.size) - request.start
        if len(content) != expected and not (is_whole and expected < 0):
            raise _Incomplete(f"the store sent {len(content)} bytes instead of {expected}")
        if not request.is_open:
            check_end(request.url, request.stop, info)
        return Fetched(content, info)

    async def _result(self, request: Get, location: _Location, whole: bool) -> GetResult:
        options: dict[str, Any] = {} if whole else {"range": (request.start, request.stop)}
        if request.etag is not None and request.etag.startswith('"'):  # a weak ETag (W/"...") never matches
            options["if_match"] = request.etag
        return await self._obstore.get_async(location.store, location.path, options=options)  # type: ignore[arg-type]

    async def _head(self, request: Stat, location: _Location) -> ObjectInfo:
        if scheme(request.url) in HTTP and "?" in request.url:  # the signature in a signed URL is valid only for GET
            result = await self._obstore.get_async(location.store, location.path)
            return _info(result.meta)
        try:
            return _info(await self._obstore.head_async(location.store, location.path))
        except self._obstore.exceptions.GenericError as error:
            if "status code: 400" not in str(error):
                raise
        # The answer to HEAD has no body, which would have the reason, such as an expired token.
        result = await self._obstore.get_async(location.store, location.path, options={"range": (0, 1)})
        return _info(result.meta)

    async def _list(
        self, request: Listing, location: _Location, settings: StorageSettings
    ) -> list[tuple[str, ObjectInfo]]:
        """List objects; a truncated answer, which obstore does not retry, is requested again from the beginning."""
        if scheme(request.url) in HTTP:
            raise StoreError(f"{printable_url(request.url)}: a web server's files cannot be listed; name each file.")
        root = f"{scheme(request.url)}://{bucket(request.url)}/"
        deadline, pause = time.monotonic() + settings.retry_seconds, FIRST_PAUSE_SECONDS
        while True:
            objects: list[ObjectMeta] = []
            try:
                async for chunk in self._obstore.list(location.store, location.path.rstrip("/") or None):
                    objects += chunk
                return sorted((root + meta["path"], _info(meta)) for meta in objects)
            except self._obstore.exceptions.GenericError as error:
                if time.monotonic() + pause > deadline or "status code: " in str(error):
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _put(self, request: Put, location: _Location) -> bool:
        try:
            mode: Literal["create", "overwrite"] = "create" if request.is_new else "overwrite"
            await self._obstore.put_async(location.store, location.path, request.content, mode=mode)
        except self._obstore.exceptions.AlreadyExistsError:
            return False
        return True

    # ---- stores

    def _locate(self, url: str, settings: StorageSettings) -> _Location:
        """Return the store of a URL, opened if necessary, and the object's path in it."""
        if scheme(url) not in HTTP:
            root, path = f"{scheme(url)}://{bucket(url)}", key(url)
        elif set("?%#") & set(url):  # obstore would encode the path again
            root, path = url, ""
        else:
            root, path = f"{scheme(url)}://{bucket(url)}", key(url)
        store = root, settings, store_environment()
        if store not in self._stores:
            while len(self._stores) >= MAX_STORES:
                self._stores.pop(next(iter(self._stores)))
            self._stores[store] = self._open(root, settings)
        return _Location(self._stores[store], path)

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


def is_alive() -> bool:
    """Return whether obstore works in this process; it fails in a process that is forked after the first use."""
    return _process_id in (None, os.getpid())


def store_environment() -> Environment:
    """Return the environment variables with endpoints and credentials of stores."""
    return tuple(sorted(item for item in os.environ.items() if item[0].startswith(VARIABLES)))


def time_limit(request: Request, settings: StorageSettings) -> float:
    """Return the time in seconds after which a request is abandoned if obstore has neither a result nor an error."""
    size = 0
    if isinstance(request, Put):
        size = request.content.stat().st_size if isinstance(request.content, Path) else len(request.content)
    return (settings.retry_seconds + settings.timeout_seconds) * (1 + size // REQUEST_BYTES) + SLACK_SECONDS


async def _slice_of(result: GetResult, start: int, stop: int) -> bytes:
    """Read an object from its beginning to `stop`, and return the bytes from `start` on."""
    content, offset = bytearray(), 0
    async for chunk in result.stream(min_chunk_size=1 << 18):
        content += memoryview(chunk)[max(0, start - offset) : max(0, stop - offset)]
        offset += len(chunk)
        if offset >= stop:
            break
    return bytes(content)


def _info(meta: ObjectMeta) -> ObjectInfo:
    etag, modified = meta["e_tag"], meta["last_modified"]
    if etag is None and modified > datetime(1970, 1, 2, tzinfo=UTC):
        etag = MODIFIED + modified.isoformat()
    return ObjectInfo(meta["size"], etag)


def check_version(url: str, wanted: str | None, info: ObjectInfo) -> None:
    """Check that an object still has the version `wanted`; None allows any version.

    Raises:
        StoreError: the object has another version.
    """
    if wanted is not None and info.etag != wanted:
        raise _changed(url, f"its version was {wanted} and now is {info.etag}")


def check_end(url: str, stop: int, info: ObjectInfo) -> None:
    """Check that an object contains all bytes up to `stop`; a store reports no error for a range beyond the end.

    Raises:
        StoreError: the object is shorter.
    """
    if info.size < stop:
        must = f"{printable_url(url)}: must have at least {stop} bytes; it has {info.size}"
        raise StoreError(f"{must}. It is truncated, or not the file that was indexed.")


def _past_the_end(request: Get, info: ObjectInfo) -> Fetched:
    check_version(request.url, request.etag, info)
    if not request.is_open:
        check_end(request.url, request.stop, info)
    return Fetched(b"", info)


def _changed(url: str, how: str) -> StoreError:
    must = f"{printable_url(url)}: must not change while it is in use; {how}"
    return StoreError(f"{must}. Start again, or write new objects under new names.")


def _cause(error: Exception, otherwise: str = "") -> str:
    """Describe in one line why a request failed; leave out possible secrets, such as a URL's query or access keys."""
    text, _, details = str(error).partition("Debug source:")
    status = re.search(r"status code: (\d{3} ?[A-Za-z -]*)", text)
    if status:
        answered = (re.search(rf"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message"))
        cause = ", ".join([status[1].strip(), *(part[1] for part in answered if part)])
    elif otherwise:
        cause = otherwise
    else:
        cause = re.sub(r"\w+://\S+", lambda url: printable_url(url[0]), text.rpartition(" - ")[2])
        cause = re.sub(r"^(Generic \w+ error: |HTTP error: )*", "", cause)
        reasons = [reason for mark, reason in REASONS.items() if mark in details]
        reasons += re.findall(r'message: "([^"]*)"', details)
        cause += f" ({reasons[0]})" if reasons else ""
    retries = re.search(r"after (\d+) retries", text)
    cause = one_line(unquote(cause)).rstrip(".") + (f", after {retries[1]} retries" if retries else "")
    return cause + _advice(text)


def _missing(error: Exception, url: str) -> str:
    """Describe in one line that an object is missing; the error does not always tell whether its bucket exists."""
    cause = _cause(error, "no such object")
    if scheme(url) in HTTP or "NoSuch" in cause:
        return cause
    return f"{cause}; the object or the bucket {bucket(url)} does not exist"


def _advice(text: str) -> str:
    """Return advice for a frequent cause of a failed request; "" for other causes."""
    if any(mark in text for mark in ("169.254.169.254", "metadata.google", "Missing AccessKeyId")):
        keys = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        return f". Set {keys}, or AWS_SKIP_SIGNATURE=true for a public bucket"
    if "ExpiredToken" in text:
        return ". Renew the credentials"
    if "LOCATION" in text or "AuthorizationHeaderMalformed" in text:
        return ". Set AWS_REGION to the bucket's region"
    return ""
