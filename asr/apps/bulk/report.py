"""The report and the failures of a job whose parts are all done, computed from the records of its parts."""

from collections.abc import Iterable, Mapping
from typing import Any

from asr.apps.bulk.job import BulkJob
from asr.apps.bulk.statistics import summed_statistics

NUM_FAILURES = 20  # maximum number of failures in report.json; failures.jsonl has all failures


def finish(job: BulkJob) -> dict[str, Any]:
    """Write failures.jsonl, and return the report; all processes of a job compute identical results.

    All failures are in memory, but only the records of a thousand parts at a time.
    """
    failures: list[dict[str, str]] = []
    workers: dict[str, dict[str, float]] = {}
    sums = {"audio_seconds": 0.0, "num_segments": 0, "num_torn": 0}

    def counted() -> Iterable[Mapping[str, Any]]:
        for record in job.folder.records(job.names):
            failures.extend(record["failures"])
            for key in sums:
                sums[key] += record[key]
            _count(workers.setdefault(record["worker"], _worker()), record)
            yield record

    statistics = summed_statistics(counted())
    job.folder.write_failures(failures)
    return {
        "input": job.identity["input"],
        "model": job.identity["model"],
        "settings": job.identity["settings"],
        "num_parts": job.plan.num_parts,
        "num_utterances": len(job.source.utterances),
        "num_failures": len(failures),
        "hours": round(sums["audio_seconds"] / 3600, 4),
        "num_segments": sums["num_segments"],
        "num_torn_segments": sums["num_torn"],
        **statistics,
        "workers": {name: _rounded(worker) for name, worker in sorted(workers.items())},
        "failures": failures[:NUM_FAILURES],
    }


def _worker() -> dict[str, float]:
    return {"parts": 0, "audio_seconds": 0.0, "seconds": 0.0, "waiting_seconds": 0.0}


def _count(worker: dict[str, float], record: Mapping[str, Any]) -> None:
    worker["parts"] += 1
    for key in ("audio_seconds", "seconds", "waiting_seconds"):
        worker[key] += record[key]


def _rounded(worker: Mapping[str, float]) -> dict[str, float]:
    rate = worker["audio_seconds"] / worker["seconds"] if worker["seconds"] else 0.0
    return {key: round(value, 2) for key, value in worker.items()} | {"audio_seconds_per_second": round(rate, 2)}
