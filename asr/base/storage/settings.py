"""Settings of access to object stores; a resumed run may change them, because they do not affect the data."""

from dataclasses import dataclass
from typing import Annotated

from asr.base.settings.conf import run_defaults
from asr.base.settings.read import settings_of
from asr.base.settings.rule import FOLDER, above, number, or_null


@dataclass(frozen=True)
class StorageSettings:
    """Timeouts and cache of object stores.

    Args:
        cache_dir: folder of a local disk for fetched byte ranges, shared by all processes; None: no cache.
        cache_gigabytes: maximum size of this folder; above it, the least recently used ranges are removed. Each process
            may exceed it by 2 %.
        retry_seconds: time during which a failed request is repeated before the store counts as unreachable.
        timeout_seconds: time after which an unanswered request (of at most REQUEST_BYTES, asr/base/storage/client.py)
            counts as failed.
    """

    cache_dir: Annotated[str | None, or_null(FOLDER)]
    cache_gigabytes: Annotated[float, number(0.1, 1_000_000)]
    retry_seconds: Annotated[float, number(0, 240)]  # below 5 minutes, when temporary credentials' signatures expire
    timeout_seconds: Annotated[float, above(0, 240)]


def default_storage() -> StorageSettings:
    """Return the settings of conf/train.yaml, for commands without their own settings of stores."""
    values = run_defaults()["data"]
    return StorageSettings(**{entry.field: values[entry.key] for entry in settings_of(StorageSettings)})
