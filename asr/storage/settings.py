"""Settings of access to object stores; none of them changes what is read, so resume does not compare them."""

from dataclasses import dataclass
from typing import Annotated

from asr.settings.rule import PATH, above, number, or_null


@dataclass(frozen=True)
class StorageSettings:
    """How long to wait for a store, and where to keep what was fetched.

    Args:
        cache_dir: folder of a local disk that keeps the byte ranges fetched, shared by processes; None: none are kept.
        cache_gigabytes: size of that folder, at most (each process may exceed it by 1 %); the least recently used are
            removed.
        retry_seconds: how long a request that failed is repeated before the store counts as out of reach.
        timeout_seconds: after which an unanswered request counts as failed; of at most REQUEST_BYTES
            (asr/storage/client.py).
    """

    cache_dir: Annotated[str | None, or_null(PATH)] = None
    cache_gigabytes: Annotated[float, number(0.1, 1_000_000)] = 100.0
    retry_seconds: Annotated[float, number(0, 240)] = 120.0  # signatures of temporary credentials last 5 minutes
    timeout_seconds: Annotated[float, above(0, 240)] = 30.0
