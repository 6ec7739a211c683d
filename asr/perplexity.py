"""python -m asr.perplexity MODEL LM TEXT...: how well a language model over MODEL's tokens predicts texts."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from asr.cli.command import run_command
from asr.cli.table import lay_out

BATCH_TOKENS = 4000  # padded, through the net at once


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each text."""
    parser = argparse.ArgumentParser(
        prog="python -m asr.perplexity",
        description="Print the perplexity per word of texts by a language model over a recogniser's tokens, with its "
        "95 % interval, a bootstrap over sentences. The end of a sentence counts as a word, as KenLM counts.",
    )
    parser.add_argument("model", metavar="MODEL", help="recogniser, whose normaliser and tokenizer spell the texts")
    parser.add_argument("lm", metavar="LM", help="of asr.train_lm, or of asr.ngram --tokens MODEL")
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="a sentence a line; also .gz; a manifest (.jsonl)")
    options = parser.parse_args(arguments)
    import torch

    from asr.build import build_tokenizer, load_token_model
    from asr.checkpoint.load import read_model
    from asr.data.batch_plan import BatchBounds
    from asr.data.text_set import read_sentences
    from asr.evaluation.text_perplexity import measure, measure_ngram
    from asr.interchange.hub import path_of
    from asr.language_model.kenlm import NgramModel
    from asr.language_model.stored import is_token_model
    from asr.text.normalize import get_normalizer

    recognizer = read_model(path_of(options.model))
    tokenizer = build_tokenizer(recognizer.config)
    tokenizer.load(recognizer.files)
    normalize = get_normalizer(recognizer.config["normalizer"])
    texts = {path: read_sentences([Path(path)], normalize, tokenizer, path) for path in options.texts}
    if is_token_model(Path(options.lm)):
        model = load_token_model(options.lm, tokenizer, "LM")
        bounds = BatchBounds(BATCH_TOKENS, BATCH_TOKENS)
        results = {path: measure(model, text, bounds, torch.device("cpu")) for path, text in texts.items()}
    else:
        ngram = NgramModel(options.lm)
        results = {path: measure_ngram(ngram, tokenizer.pieces, text) for path, text in texts.items()}
    rows = [("text", "sentences", "words", "perplexity per word", "95 %")]
    for path, result in results.items():
        ends = "-" if result.interval is None else "{:.1f} to {:.1f}".format(*result.interval)
        rows.append((path, str(result.sentences), str(result.words), f"{result.per_word:.1f}", ends))
    print("\n".join(lay_out(rows)))
    return 0


if __name__ == "__main__":
    run_command(main)
