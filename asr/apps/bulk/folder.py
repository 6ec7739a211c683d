"""The output folder of a bulk job, on a disk or in an object store.

job.json identifies the job by hashes of its input, model and settings. It is written before any part, and only if it
does not exist, so all parts of a folder are from one job. records/part-N.json has counts and times of a part.
part-N.jsonl has the texts of a part and is the last file written for it: if part-N.jsonl exists, the part is done.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.apps.bulk.fingerprints import settings_fingerprint
from asr.apps.bulk.transcription import PartResult, is_record
from asr.base.storage.location import is_url, join, plain, printable_url
from asr.base.storage.store import list_prefix, read_files, write_together
from asr.base.system.files import UNFINISHED
from asr.base.system.learnt import parse_json
from asr.errors import InputError, StoreError

JOB, RECORDS, FAILURES, REPORT = "job.json", "records", "failures.jsonl", "report.json"
SEGMENTS = "segments"  # prefix of the names of files with a part's segments
FORMAT = 2  # version of the folder's format
ABANDONED_SECONDS = 3600.0  # age above which an unfinished file must be from a killed process
READ_AT_ONCE = 1000  # number of records that are read together


class JobFolder:
    """The output folder of a job.

    Args:
        path: path or URL of the folder; created if absent.

    Raises:
        InputError: the folder cannot be written.
        StoreError: the folder cannot be listed.
    """

    def __init__(self, path: str) -> None:
        self.path = plain(path)
        self.names = self._listed()  # listed only once, because there may be a million parts

    def _listed(self) -> dict[str, int]:
        """Return the names of the files; those of objects with their sizes in bytes, those of local files with 0."""
        if is_url(self.path):
            return {url.removeprefix(self.path).lstrip("/"): info.size for url, info in list_prefix(self.path)}
        try:
            return dict.fromkeys(os.listdir(self.path), 0)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> InputError:
        must = "--output-dir must be a folder that can be written to, or a URL"
        return InputError(f"{must}; {self.path}: {error.strerror}.")

    def job(self) -> dict[str, Any] | None:
        """Read job.json; None if it does not exist."""
        if JOB not in self.names:
            return None
        return self._read_job()

    def _read_job(self) -> dict[str, Any]:
        [content] = read_files([self._path(JOB)])
        job = parse_json(content, f"{printable_url(self.path)}: {JOB}")
        if not isinstance(job, dict) or job.get("format") != FORMAT:
            must = f"{printable_url(self.path)}: {JOB} must be from a bulk job, format {FORMAT}"
            raise InputError(f"{must}; it is not. Give another --output-dir.")
        return job

    def claim(self, job: Mapping[str, Any]) -> None:
        """Write job.json if it does not exist; otherwise check that it describes the same job.

        Args:
            job: content of job.json, as plain values; its entry `fingerprints` identifies the job.
        """
        self._make()
        if JOB not in self.names:
            self.check(job)
            self._write(JOB, _lines([{"format": FORMAT, **job}], indent=1), is_new=True)
        self._check_same(self._read_job(), job)

    def check(self, job: Mapping[str, Any]) -> None:
        """Check, without writing, whether the folder can be that of a job; arguments and errors as for `claim`."""
        if JOB in self.names:
            self._check_same(self._read_job(), job)
        elif strange := sorted(name for name in self.names if name.startswith("part-")):
            must = f"{printable_url(self.path)} must have the parts of one job"
            raise InputError(f"{must}; it has {strange[0]} without {JOB}. Give another --output-dir.")

    def _check_same(self, stored: Mapping[str, Any], job: Mapping[str, Any]) -> None:
        stored_hashes, hashes = stored.get("fingerprints"), job["fingerprints"]
        if stored_hashes == hashes:
            return
        others = [key for key in hashes if not isinstance(stored_hashes, dict) or stored_hashes.get(key) != hashes[key]]
        before, now = stored.get("settings"), job.get("settings")
        if "settings" in others and isinstance(before, dict) and isinstance(now, dict):
            keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
            if changed := ", ".join(f"{key}: {before.get(key)} -> {now.get(key)}" for key in keys):
                others[others.index("settings")] = f"settings ({changed})"
        must = f"{printable_url(self.path)} must have the parts of one job"
        raise InputError(
            f"{must}; its parts differ from this job in {' and '.join(others)}. Give another --output-dir."
        )

    def _make(self) -> None:
        """Create the folder, and remove unfinished files of killed processes."""
        if is_url(self.path):
            return
        try:
            Path(self.path, RECORDS).mkdir(parents=True, exist_ok=True)
            for folder in (self.path, os.path.join(self.path, RECORDS)):
                _remove_abandoned(folder)
        except OSError as error:
            raise self._unwritable(error) from None

    def is_done(self, name: str) -> bool:
        """Return whether a part was in the last listing, or this process has written it since then."""
        return f"{name}.jsonl" in self.names

    def write_part(self, name: str, result: PartResult) -> None:
        """Write the files of a part; the file of the texts is written last.

        A part that is written again gets its record last, so that the failures of the earlier record stay until
        everything else is written.

        Raises:
            StoreError, OSError: a file cannot be written.
        """
        segments = _segments_name(name)
        if result.segments or (result.segments is not None and segments in self.names):  # an empty manifest is invalid
            self._write(segments, _lines(result.segments))
        texts = f"{name}.jsonl"
        files = {texts: _lines(result.texts)} | ({segments: _lines(result.segments)} if result.segments else {})
        sizes = {file: len(content) for file, content in files.items()}
        writes = [(f"{RECORDS}/{name}.json", _lines([result.record | {"num_bytes": sizes}])), (texts, files[texts])]
        for file, content in reversed(writes) if self.is_done(name) else writes:
            self._write(file, content)
        self.names |= sizes | {f"{RECORDS}/{name}.json": len(writes[0][1])}

    def records(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Read the records of parts, in order; check that the files of the parts have not been cut since then."""
        for start in range(0, len(names), READ_AT_ONCE):
            chunk = names[start : start + READ_AT_ONCE]
            files = [f"{RECORDS}/{name}.json" for name in chunk]
            for name, file in zip(chunk, files, strict=True):
                if self._size(file) is None:
                    raise self._damaged(name, f"{file}: must be the record of a part; there is no such file")
            contents = read_files([self._path(file) for file in files])
            for name, file, content in zip(chunk, files, contents, strict=True):
                try:
                    record = parse_json(content, file)
                except InputError as error:
                    raise self._damaged(name, str(error).rstrip(".")) from None
                if not is_record(record) or record["part"] != int(name.rpartition("-")[2]):
                    raise self._damaged(name, f"{file}: must be the record of a part; it is damaged")
                self._check_sizes(name, record)
                yield record

    def _check_sizes(self, name: str, record: Mapping[str, Any]) -> None:
        """Check that no file of a part is shorter than when it was written; it is longer after a part was redone."""
        texts = f"{name}.jsonl"  # records of earlier versions lack the sizes
        for file, num_bytes in record.get("num_bytes", {texts: min(1, record["num_texts"])}).items():
            size = self._size(file) or 0
            if size < num_bytes:
                raise self._damaged(
                    name, f"{file}: must have the {num_bytes:,} bytes that were written; it has {size:,}"
                )

    def _size(self, file: str) -> int | None:
        """Return the size of a file in bytes; None if it does not exist."""
        if is_url(self.path):
            return self.names.get(file)
        try:
            return os.stat(self._path(file)).st_size
        except FileNotFoundError:
            return None

    def _damaged(self, name: str, must: str) -> InputError:
        cure = f"Delete {name}.jsonl, and start the same command again"
        return InputError(f"{printable_url(self.path)}: {must}. {cure}.")

    def list_again(self) -> None:
        """List the folder again, because other processes of the job have written parts."""
        self.names = self._listed()

    def write_failures(self, failures: Sequence[Mapping[str, str]]) -> None:
        """Write failures.jsonl."""
        self._write(FAILURES, _lines(failures))

    def write_report(self, report: Mapping[str, Any], page: str) -> str:
        """Write report.json and its page; return the path or URL of the page."""
        self._write(REPORT, _lines([report], indent=1))
        name = REPORT.replace(".json", ".html")
        self._write(name, page.encode("utf-8", "backslashreplace"))
        return printable_url(self._path(name))

    def _path(self, name: str) -> str:
        return join(self.path, name)

    def _write(self, name: str, content: bytes, *, is_new: bool = False) -> None:
        path = self._path(name)
        try:
            write_together(path, content, is_new=is_new)
        except OSError as error:
            raise StoreError(
                f"{path}: must be written; {error.strerror}. Start the same command again to resume."
            ) from None


def job_fingerprints(source: str, model: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes that identify a job; the keys name its input, model and settings."""
    return {"input": source, "model": model, "settings": settings_fingerprint(settings)}


def _segments_name(part: str) -> str:
    return f"{part.replace('part', SEGMENTS, 1)}.jsonl"


def _lines(entries: Sequence[Mapping[str, Any]], indent: int | None = None) -> bytes:
    from asr.core.recognition.formats import json_text

    return "".join(json_text(entry, indent=indent) + "\n" for entry in entries).encode()


def _remove_abandoned(folder: str) -> None:
    before = time.time() - ABANDONED_SECONDS
    for file in Path(folder).glob(f".*{UNFINISHED}"):
        if file.stat().st_mtime < before:
            file.unlink(missing_ok=True)
