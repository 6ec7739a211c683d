"""MP4, M4A and WebM files for tests, written by PyAV."""

import io
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np
import pytest

needs_media = pytest.mark.skipif(not find_spec("av"), reason="needs PyAV, which the extra `media` installs")
FORMATS = {"m4a": "ipod", "mp4": "mp4", "mov": "mov", "webm": "webm", "mkv": "matroska"}  # FFmpeg's names
CODECS = {"m4a": "aac", "mp4": "aac", "mov": "aac", "webm": "libopus", "mkv": "libopus"}


def media_file(
    *tracks: np.ndarray,
    suffix: str = "m4a",
    rate: int = 48000,
    codec: str = "",
    video_seconds: float = 0.0,
    begin: float = 0.0,
    gap: tuple[float, float] = (0.0, 0.0),
    jitter: float = 0.0,
    drift: float = 0.0,
    bit_rate: int = 64000,
    options: Mapping[str, str] | None = None,
) -> bytes:
    """Encode audio tracks, (S,) or (C, S), and write them to a file.

    Args:
        tracks: waveforms of the audio tracks.
        suffix: one of FORMATS.
        rate: sample rate of the tracks, in Hz; Opus is always decoded at 48 kHz.
        codec: FFmpeg's name of the encoder; "": the format's usual one.
        video_seconds: length of a video track, which is the first track; 0: none.
        begin: time of the audio's first sample.
        gap: a time in the audio, and by how many seconds everything after it is delayed.
        jitter: seconds by which every second packet after the fourth is late, as a live recorder writes them.
        drift: seconds by which each packet is later than the previous one.
        bit_rate: of each track, in bit/s.
        options: of the format.
    """
    import av

    file = io.BytesIO()
    with av.open(file, "w", format=FORMATS[suffix], options=dict(options or {})) as media:
        packets = []
        if video_seconds:
            video = media.add_stream("libvpx" if suffix == "webm" else "mpeg4", rate=25)
            video.width = video.height = 64
            video.pix_fmt = "yuv420p"
        streams = []
        for track in tracks:
            layout = {1: "mono", 2: "stereo"}[1 if track.ndim == 1 else len(track)]
            extra = {"strict": "experimental"} if codec == "vorbis" else {}
            streams.append(media.add_stream(codec or CODECS[suffix], rate=rate, layout=layout, options=extra))
            streams[-1].bit_rate = bit_rate
        if video_seconds:
            for number in range(round(25 * video_seconds)):
                picture = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
                picture.pts = number
                packets += video.encode(picture)
            packets += video.encode()
        for track, stream in zip(tracks, streams, strict=True):
            kind = stream.codec_context.format.name
            samples = np.atleast_2d(track).astype(np.float32)
            if samples.shape[1]:
                frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout=stream.layout)
                frame.sample_rate, frame.pts = rate, 0
                for part in av.AudioResampler(kind, stream.layout, rate).resample(frame):
                    packets += stream.encode(part)
            packets += stream.encode()
        for number, packet in enumerate(packets):
            if packet.stream.type == "audio":
                late = begin + drift * number + (jitter if number % 2 and number > 4 else 0.0)
                if packet.pts * packet.time_base >= gap[0]:
                    late += gap[1]
                packet.pts += round(late / packet.time_base)
                packet.dts = packet.pts
        for packet in sorted(packets, key=lambda packet: float(packet.dts * packet.time_base)):
            media.mux(packet)
    return file.getvalue()
