"""asr COMMAND ..., or python -m asr COMMAND ...: run a command. Without a COMMAND, list the commands."""

import platform
import runpy
import signal
import sys
from difflib import get_close_matches

from asr import __version__

COMMANDS = {
    "Train": {
        "doctor": "check a corpus and a training plan before training",
        "plan": "print the batches that asr.train would train on",
        "train": "train a recogniser; report its word error rate",
        "finetune": "train a model further on a folder of recordings; report what it gains and forgets",
        "training_report": "write the report of a run, even before the run ends",
        "runs": "print a table of runs, with the significance of their differences",
        "average": "average checkpoints of a run, and write a bundle",
        "merge": "merge an adapter (adapter=lora) into its base model, and write a bundle",
        "check": "check the components of a package of your own",
        "shards": "pack a corpus into tar files, with an index that training reads",
    },
    "Use": {
        "transcribe": "recognise audio files, folders of them, manifests, and speech as it is spoken",
        "evaluate": "report the word error rate of a model on manifests",
        "model": "print a model's parts, sizes, names of weights, tokens and features",
        "compare": "test whether one of two models is better, or the difference is chance",
        "align": "compute the times of words in reference texts; cut long recordings into segments",
        "serve": "transcribe on a web page and an HTTP endpoint",
    },
    "Language models": {
        "ngram": "build an n-gram language model from text",
        "train_lm": "train a neural language model over a recogniser's tokens",
        "perplexity": "measure how well a language model predicts texts",
        "tune": "tune the decoder's weights on dev sets, and calibrate confidence",
    },
    "Other formats": {
        "convert": "convert models from NeMo and transformers, and to their formats",
        "export": "write a model as ONNX, as a page for the browser, or for a hub",
    },
}


def main() -> None:
    """Run the command that the first argument names; without arguments, print the list of commands.

    A command is the module asr.<command>. It runs as under `python -m`, so that processes that it starts run it too.
    """
    arguments = sys.argv[1:]
    names = [name for commands in COMMANDS.values() for name in commands]
    if arguments and arguments[0] in names:
        del sys.argv[1]
        runpy.run_module(f"asr.{arguments[0]}", run_name="__main__", alter_sys=True)
        return
    if arguments == ["--version"]:
        print(versions())
        return
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a closed pipe (`| head`) ends this process silently
    if arguments and not {"-h", "--help"} & {*arguments}:
        similar = get_close_matches(arguments[0], names, n=1)
        hint = f"Did you mean {similar[0]}?" if similar else "Run asr without arguments for the list."
        sys.exit(f"error: the command must be one of {len(names)}; got {arguments[0]!r}. {hint}")
    print(
        "asr COMMAND --help, or python -m asr.COMMAND --help, prints the options of a command; docs/guide has examples."
    )
    for title, commands in COMMANDS.items():
        print(f"\n{title}")
        for name, about in commands.items():
            print(f"  asr {name:16} {about}")


def versions() -> str:
    """Return the versions that a report of a fault needs."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"asr {__version__}, Python {platform.python_version()}, torch {torch.__version__}, {device}"


if __name__ == "__main__":
    main()
