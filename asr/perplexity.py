"""python -m asr.perplexity MODEL LM TEXT...: perplexity of texts under language models over MODEL's tokens."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from asr.base.text.table import lay_out
from asr.core.cli.command import run_command
from asr.core.cli.parser import CommandParser

if TYPE_CHECKING:
    from asr.apps.language_models.text_perplexity import TextPerplexity
    from asr.apps.language_models.text_set import Sentences
    from asr.base.language_model.kneser_ney import Array
    from asr.interfaces import Tokenizer

BATCH_TOKENS = 4000  # maximum number of tokens of a padded batch


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each text and language model."""
    options = _read_options(arguments)
    from asr.apps.language_models.text_perplexity import mixed_log_probs, perplexity_of
    from asr.apps.language_models.text_set import read_sentences
    from asr.base.text.normalize import get_normalizer
    from asr.core.build import build_tokenizer
    from asr.core.checkpoint.load import read_model
    from asr.core.hub.download import path_of

    recognizer = read_model(path_of(options.model))
    tokenizer = build_tokenizer(recognizer.config)
    tokenizer.load(recognizer.files)
    normalize = get_normalizer(recognizer.config["normalizer"])
    paths = [*options.texts, *([options.dev] if options.dev else [])]
    texts = {path: read_sentences([Path(path)], normalize, tokenizer, path) for path in paths}
    models = [_load(lm, tokenizer) for lm in (options.lm, *options.interpolate)]
    names = (options.lm, *options.interpolate)
    weights = _fit_weights(models, texts[options.dev], names, options.dev) if options.dev else None
    rows: list[tuple[str, ...]] = [("text", "model", "sentences", "words", "perplexity per word", "95 %")]
    for path in options.texts:
        log_probs = [model(texts[path]) for model in models]
        rows += [
            _row(path, name, perplexity_of(each, texts[path])) for name, each in zip(names, log_probs, strict=True)
        ]
        if weights is not None:
            import numpy as np

            mixed = mixed_log_probs(np.stack(log_probs), weights)
            rows.append(_row(path, "interpolated", perplexity_of(mixed, texts[path])))
    print("\n".join(lay_out(rows)))
    return 0


def _read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(
        prog="python -m asr.perplexity",
        description="Print the perplexity per word of texts under language models over a recogniser's tokens, with a "
        "95 % interval (bootstrap over sentences). The end of a sentence counts as a word, as in KenLM.",
    )
    parser.add_argument("model", metavar="MODEL", help="recogniser whose normaliser and tokenizer are used")
    parser.add_plugins()
    parser.add_argument("lm", metavar="LM", help="model of asr.train_lm, or of asr.ngram --tokens MODEL")
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="one sentence per line, also .gz; or a manifest")
    parser.add_argument(
        "--interpolate",
        metavar="LM",
        nargs="+",
        default=[],
        help="further language models; print the perplexity of each model, and of the mixture of all models",
    )
    parser.add_argument("--dev", metavar="TEXT", help="another text, on which EM fits the mixture's weights")
    options = parser.parse_args(arguments)
    if bool(options.interpolate) != bool(options.dev):
        given = "--dev" if options.dev else "--interpolate"
        parser.error(f"--interpolate and --dev must be given together; got {given} alone.")
    if options.dev in options.texts:
        parser.error(f"--dev must not be one of the measured texts; got {options.dev}.")
    return options


def _load(path: str, tokenizer: "Tokenizer") -> "Callable[[Sentences], Array]":
    """Load a language model; return a function that computes log p of each token of sentences and of their ends."""
    import torch

    from asr.apps.language_models.text_perplexity import neural_log_probs, ngram_log_probs
    from asr.base.language_model.kenlm import NgramModel
    from asr.base.language_model.stored import is_token_model
    from asr.core.build import load_token_model
    from asr.core.data.batch_plan import BatchBounds

    if is_token_model(Path(path)):
        model, bounds = load_token_model(path, tokenizer, "LM"), BatchBounds(BATCH_TOKENS, BATCH_TOKENS)
        return lambda text: neural_log_probs(model, text, bounds, torch.device("cpu"))
    ngram = NgramModel(path)
    return lambda text: ngram_log_probs(ngram, tokenizer.names, text)


def _fit_weights(
    models: "Sequence[Callable[[Sentences], Array]]", dev: "Sentences", names: Sequence[str], path: str
) -> "Array":
    """Find the weights of the mixture that maximise a text's likelihood, and print them."""
    import numpy as np

    from asr.apps.language_models.interpolation import fit_weights

    weights = fit_weights(np.exp(np.stack([model(dev) for model in models])))
    shares = ", ".join(f"{name} {weight:.3f}" for name, weight in zip(names, weights, strict=True))
    print(f"weights of the mixture, by EM on {path}: {shares}")
    return weights


def _row(path: str, name: str, result: "TextPerplexity") -> tuple[str, ...]:
    from asr.core.evaluation.perplexity import written

    ends = "-" if result.interval is None else "{} to {}".format(*map(written, result.interval))
    return path, name, str(result.sentences), str(result.words), written(result.per_word), ends


if __name__ == "__main__":
    run_command(main)
