"""Settings of access to object stores; none of them changes what is read, so resume does not compare them."""

from dataclasses import dataclass
from typing import Annotated

from asr.settings.conf import run_defaults
from asr.settings.read import settings_of
from asr.settings.rule import PATH, above, number, or_null


@dataclass(frozen=True)
class StorageSettings:
    """How long to wait for a store, and where to keep what was fetched.

    Args:
        cache_dir: folder of a local disk that keeps the byte ranges fetched, for all processes; None: none are kept.
        cache_gigabytes: size of that folder, beyond which the least recently used ranges are removed; each process may
            exceed it by 2 %.
        retry_seconds: how long a request that failed is repeated before the store counts as out of reach.
        timeout_seconds: after which an unanswered request, of at most REQUEST_BYTES (asr/storage/client.py), counts as
            failed.
    """

    cache_dir: Annotated[str | None, or_null(PATH)]
    cache_gigabytes: Annotated[float, number(0.1, 1_000_000)]
    retry_seconds: Annotated[float, number(0, 240)]  # signatures of temporary credentials last 5 minutes
    timeout_seconds: Annotated[float, above(0, 240)]


def default_storage() -> StorageSettings:
    """Return the settings of conf/train.yaml, for commands that have no others."""
    values = run_defaults()["data"]
    return StorageSettings(**{entry.field: values[entry.key] for entry in settings_of(StorageSettings)})
