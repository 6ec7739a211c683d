"""Open files and objects, of which only the requested byte ranges are read."""

import io
from typing import Any

from asr.base.storage.store import read_range, size_and_etag


class RangeFile(io.RawIOBase):
    """A path or URL as an open file, for libraries that need one; all bytes are of one version of the file.

    Args:
        path: path or URL of the file.

    Raises:
        StoreError: the file cannot be read, or has changed.
    """

    def __init__(self, path: str) -> None:
        self._path, self._position = path, 0
        self.size, self._version = size_and_etag(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        number = max(0, min(len(buffer), self.size - self._position))
        if number:
            buffer[:number] = read_range(self._path, self._position, number, etag=self._version)
            self._position += number
        return number
