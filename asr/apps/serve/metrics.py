"""The server's metrics, for Prometheus."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from asr.apps.serve.jobs import Jobs

CLIENT_GONE = 499  # nginx's status for a client that disconnects before the answer
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
OTHER = "other"  # label of all addresses without a route
RECOGNIZING = ("/transcribe", "/v1/audio/transcriptions")


class Metrics:
    """Metrics of one server, in a separate registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("asr_requests", "Requests answered.", ["path", "status"], registry=self._registry)
        self._seconds = Histogram(
            "asr_transcribe_seconds",
            "Seconds from a request for a transcript to its answer, upload included; only answers with status 200.",
            buckets=SECONDS,
            registry=self._registry,
        )
        self._batches = Histogram(
            "asr_batch_recordings", "Recordings recognised together.", buckets=BATCHES, registry=self._registry
        )
        self._audio = Counter(
            "asr_audio_seconds", "Seconds of audio in recordings that were recognised.", registry=self._registry
        )
        self._waiting = Gauge("asr_waiting_recordings", "Recordings in the queue.", registry=self._registry)
        self._uploads = Gauge("asr_uploads", "Uploads being received.", registry=self._registry)
        self._streams = Gauge("asr_streams", "Open streams.", registry=self._registry)
        self._ended = Counter("asr_streams_ended", "Ended streams.", ["how"], registry=self._registry)
        self._stream_audio = Counter(
            "asr_stream_audio_seconds", "Seconds of audio received from streams.", registry=self._registry
        )
        self._turns = Histogram(
            "asr_turn_streams", "Streams recognised together.", buckets=BATCHES, registry=self._registry
        )
        self._lags = Histogram(
            "asr_stream_seconds",
            "Seconds from the arrival of the audio that completes a chunk to the chunk's words.",
            buckets=SECONDS,
            registry=self._registry,
        )

    def watch(self, jobs: Jobs) -> None:
        """Report the number of waiting jobs at each scrape."""
        self._waiting.set_function(lambda: jobs.waiting)

    def batch(self, number: int) -> None:
        """Count a batch of `number` recordings."""
        self._batches.observe(number)

    def recognized(self, audio_seconds: float) -> None:
        """Count the audio of a recognised recording."""
        self._audio.inc(audio_seconds)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request; `path` is one of the server's addresses, or OTHER."""
        self._requests.labels(path, str(status)).inc()
        if path in RECOGNIZING and status == 200:
            self._seconds.observe(seconds)

    def uploading(self, change: int) -> None:
        """Count an upload that begins (1) or ends (-1)."""
        self._uploads.inc(change)

    def stream(self, change: int) -> None:
        """Count a stream that begins (1) or ends (-1)."""
        self._streams.inc(change)

    def stream_ended(self, how: str, audio_seconds: float) -> None:
        """Count an ended stream by the way it ended, and add its seconds of audio."""
        self._ended.labels(how).inc()
        self._stream_audio.inc(audio_seconds)

    def turn(self, lags: Sequence[float]) -> None:
        """Count streams recognised together; `lags` are the seconds from each stream's audio to its words."""
        self._turns.observe(len(lags))
        for lag in lags:
            self._lags.observe(lag)

    def text(self) -> bytes:
        """Return the page for Prometheus."""
        return generate_latest(self._registry)
