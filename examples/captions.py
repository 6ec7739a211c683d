"""Show what is said into a microphone, while it is said.

    arecord -q -f S16_LE -c 1 -r 16000 | python examples/captions.py runs/mini
    ffmpeg -v error -i recording.mp3 -f wav -ac 1 -ar 16000 - | python examples/captions.py runs/mini

prints a line for the words that became final, after the second at which they begin; the line below shows the words
that may still change. Ctrl-C ends the recording. On macOS, ffmpeg records with `-f avfoundation -i :0`.
"""

import signal
import sys
import wave

import numpy as np

import asr

ERASED = "\r\033[K"  # the terminal's line


def show(captions: asr.Captions) -> None:
    if captions.final:
        print(f"{ERASED}{captions.final[0].start:.2f} {' '.join(word.text for word in captions.final)}")
    print(ERASED + " ".join(word.text for word in captions.partial), end="", flush=True)


signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the recorder, and the rest of the audio is recognised
stream = asr.Stream(asr.load_recognizer(sys.argv[1]))
with wave.open(sys.stdin.buffer) as recorder:
    if (recorder.getnchannels(), recorder.getsampwidth(), recorder.getframerate()) != (1, 2, stream.sample_rate):
        sys.exit(f"Record one channel of 16-bit samples at {stream.sample_rate} Hz.")
    while data := recorder.readframes(stream.sample_rate // 10):
        show(stream.feed(np.frombuffer(data, dtype="<i2").astype(np.float32) / 2**15))
show(stream.finish())
