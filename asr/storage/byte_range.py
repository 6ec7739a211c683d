"""A part of a file."""

from typing import NamedTuple


class ByteRange(NamedTuple):
    """Bytes `start` to `start + num_bytes` of a file; if `etag` is given, the file must have this version."""

    path: str
    start: int
    num_bytes: int
    etag: str | None = None

    @property
    def stop(self) -> int:
        return self.start + self.num_bytes
