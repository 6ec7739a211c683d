"""python -m asr: list the commands."""

import signal
import sys

COMMANDS = {
    "Train": {
        "doctor": "look over a corpus and a plan to train on it, before any training",
        "plan": "print the batches that asr.train would train on",
        "train": "train a recogniser; report its word error rate",
        "training_report": "make the page of a run that is still going on",
        "average": "make a bundle of several checkpoints of a run",
        "merge": "make a bundle of an adapter (adapter=lora) and the model that it was trained from",
        "shards": "pack a corpus into tar files, with an index that training reads",
    },
    "Use": {
        "transcribe": "recognise audio files, folders of them, manifests, and speech as it is spoken",
        "evaluate": "report the word error rate of a model on manifests",
        "compare": "tell whether one of two models is better, or had luck",
        "align": "find when each word of reference texts is said; cut long recordings into segments",
        "serve": "a page and an HTTP endpoint that transcribe",
    },
    "Language models": {
        "ngram": "build an n-gram language model from text",
        "train_lm": "train a neural language model over a recogniser's tokens",
        "perplexity": "measure how well a language model predicts texts",
        "tune": "choose the weights of the search on dev sets, and calibrate confidence",
    },
    "Other formats": {
        "convert": "models of NeMo and transformers to and from asr's",
        "export": "write a model as ONNX, as a page for the browser, or for a hub",
    },
}


def main() -> None:
    """Print the list; the status is 2 for an argument, which would be of no command."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that has gone ends it quietly
    print("python -m asr.COMMAND --help says more of each; docs/guide has examples.")
    for title, commands in COMMANDS.items():
        print(f"\n{title}")
        for name, about in commands.items():
            print(f"  asr.{name:16} {about}")
    if {"-h", "--help"}.isdisjoint(sys.argv[1:]) and sys.argv[1:]:
        sys.exit(f"error: a command is a module of its own: python -m asr.{sys.argv[1]}")


if __name__ == "__main__":
    main()
