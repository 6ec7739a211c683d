"""Fine-tune a model, and use the result only if the test shows that it is better.

    python examples/fine_tune.py runs/mini my_recordings.csv runs/mine --set optimizer.lr=1e-4

prints what `python -m asr.finetune` prints, then the word error rates before and after, the model to use, and the text
that it recognises in the first recording of the test. Options after the folder are those of asr.finetune. The same
command resumes a training that was stopped.
"""

import json
import subprocess
import sys
from pathlib import Path

import asr

model, data, folder, *options = sys.argv[1:]
command = [sys.executable, "-m", "asr.finetune", model, data, "--output", folder, "--method", "full", *options]
subprocess.run(command, check=True)  # a process of its own, so that its memory is free afterwards

comparison = json.loads(Path(folder, "comparison.json").read_text())["test"]
before, after = comparison["a"]["rate"], comparison["b"]["rate"]  # errors divided by words
_, highest = comparison["difference"]["interval"]  # 95 % interval of after - before
best = folder if highest < 0 else model
print(f"{before:.1%} before, {after:.1%} after; the model to use is {best}")

manifest = Path(folder, "data", "test.jsonl")
recording = json.loads(manifest.read_text().splitlines()[0])
print(asr.load_recognizer(best).transcribe(manifest.parent / recording["audio_filepath"]).text)
