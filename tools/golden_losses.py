"""Train each head for 20 steps, and write its losses and a hash of its weights: python -m tools.golden_losses FILE.

Two commits that compute the same write equal files on the same machine. Each head is trained by one process, by two
processes, and by one process that stops after 10 steps and is resumed; the language model by one process.
"""

import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from tools.coverage_map import ROOT

HEADS = ("ctc", "ctc_intermediate", "ctc_attention", "ctc_consistency", "tdt", "transducer")
SMALL = [
    *("encoder.dim=32", "encoder.num_layers=2", "encoder.block.num_heads=2", "encoder.subsampling.num_channels=8"),
    *("data.max_train_utterances=80", "data.batch_seconds=12", "augment=[speed_perturb,spec_augment]"),
    *("data.sorted_epochs=0", "encoder.block.dropout=0.1"),
]
COMMON = ["trainer.max_epochs=-1", "trainer.log_every_n_steps=1", "trainer.accelerator=cpu", "num_threads=1"]
WAYS = {
    "one process": [["trainer.max_steps=20"]],
    "two processes": [["trainer.max_steps=20", "trainer.strategy=ddp", "trainer.devices=2"]],
    "resumed": [["trainer.max_steps=10"], ["trainer.max_steps=20", "resume.allow=[trainer.max_steps]"]],
}


def golden(module: str, run: Path, overrides: list[str], commands: list[list[str]]) -> dict[str, object]:
    """Run the commands in one run folder; return the logged losses and a hash of the weights."""
    for command in commands:
        arguments = [*overrides, *COMMON, *command, f"run_dir={run}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-m", module, *arguments], check=True, env=environment, cwd=ROOT)
    rows = list(csv.DictReader((run / "metrics.csv").open(encoding="utf-8")))
    losses = {name: [row[name] for row in rows if row[name]] for name in rows[0] if name.startswith("train/")}
    kept = {name: values for name, values in losses.items() if re.search("loss|ctc|attention|grad_norm", name)}
    [weights] = run.glob("bundle/*.safetensors")
    return {"losses": kept, "weights": hashlib.sha256(weights.read_bytes()).hexdigest()}


def main() -> None:
    """Write the file."""
    written = {}
    with tempfile.TemporaryDirectory() as folder:
        for head, (way, commands) in product(HEADS, WAYS.items()):
            run = Path(folder) / f"{head}-{way}"
            written[run.name] = golden("asr.train", run, [*SMALL, f"head={head}"], commands)
        texts = [f"text.{split}=[data/mini/{split}.jsonl]" for split in ("train", "valid")]
        small = ["token_model.dim=32", f"recognizer={run}", *texts]
        written["language model"] = golden("asr.train_lm", Path(folder) / "lm", small, WAYS["one process"])
    Path(sys.argv[1]).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
