"""Options of asr.ngram: dev text, interpolation of models, extra words."""

import argparse
import os

from asr.base.text.numbers import finite
from asr.core.cli.command import complain
from asr.errors import InputError

WORDS_PROBABILITY = 0.01  # one word in a hundred; the best value is the one with the lowest perplexity on a dev text


def add_mixture(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("texts of several domains, and names")
    dev = "print perplexity and rate of unknown words of this file, whose sentences are not in TEXT; format as for TEXT"
    group.add_argument("--dev", metavar="DEV", help=dev)
    mixture = "interpolate a model of each TEXT, with the weights that maximise the likelihood of DEV"
    group.add_argument("--interpolate", action="store_true", help=mixture)
    words = "add the words of this file, such as names, that the texts do not contain; format as for TEXT"
    group.add_argument("--words", metavar="WORDS", help=words)
    share = f"total unigram probability of the words added by --words (default {WORDS_PROBABILITY})"
    group.add_argument("--words-probability", type=finite, metavar="P", help=share)


def check_mixture(options: argparse.Namespace) -> None:
    """Check these options, and set the default of `words_probability`."""
    texts, dev, words, probability = options.texts, options.dev, options.words, options.words_probability
    if options.interpolate and dev is None:
        must = "--interpolate needs --dev, a text to fit the weights to"
        raise InputError(f"{must}; got none. Give sentences of the domain to be recognised.")
    if options.interpolate and len(texts) < 2:
        raise InputError(f"--interpolate needs at least two texts; got only {texts[0]}. Leave out --interpolate.")
    if words is None and probability is not None:
        must = "--words-probability needs --words"
        raise InputError(f"{must}; got {probability:g} without it. Add --words FILE, or leave out --words-probability.")
    if words is not None and options.tokens is not None:
        must = "--words must be given for a model of words"
        raise InputError(f"{must}; got --tokens {options.tokens}, a model of tokens. Leave one of them out.")
    options.words_probability = WORDS_PROBABILITY if probability is None else probability
    if not 0 < options.words_probability < 1:
        must = "--words-probability must be greater than 0 and less than 1"
        raise InputError(f"{must}; got {probability:g}. Give the share of these words in the texts to be recognised.")
    for text in texts:
        if dev is not None and os.path.isfile(dev) and os.path.isfile(text) and os.path.samefile(dev, text):
            complain(f"--dev should have other sentences than the texts; {dev} is one of the texts: trust no result.")
