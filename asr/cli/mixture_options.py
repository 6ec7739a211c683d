"""The options of asr.ngram beside its texts: a dev text, a mixture of the texts' models, extra words."""

import argparse
import os

from asr.cli.command import complain, finite
from asr.errors import InputError

WORDS_PROBABILITY = 0.01  # a word in a hundred; what suits a dev text best can be found by its perplexity


def add_mixture(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("texts of several domains, and names")
    dev = "print the perplexity of this text and its rate of unknown words; a file such as TEXT, of other sentences"
    group.add_argument("--dev", metavar="DEV", help=dev)
    mixture = "mix a model of each TEXT, with the weights that make DEV most likely; else one model of all texts"
    group.add_argument("--interpolate", action="store_true", help=mixture)
    words = "words that the model gets if the texts lack them, names for instance: a file such as TEXT"
    group.add_argument("--words", metavar="WORDS", help=words)
    share = f"of the words that --words adds, together, as unigrams (default {WORDS_PROBABILITY})"
    group.add_argument("--words-probability", type=finite, metavar="P", help=share)


def check_mixture(options: argparse.Namespace) -> None:
    """Check what was given of these options, and set the default of `words_probability`."""
    texts, dev, words, probability = options.texts, options.dev, options.words, options.words_probability
    if options.interpolate and dev is None:
        must = "--interpolate must go with --dev, a text that the weights are fitted to"
        raise InputError(f"{must}; got none. Give sentences of the domain that is to be recognised.")
    if options.interpolate and len(texts) < 2:
        raise InputError(f"--interpolate must have two texts or more; got {texts[0]} alone. Leave --interpolate out.")
    if words is None and probability is not None:
        must = "--words-probability must go with --words"
        raise InputError(f"{must}; got {probability:g} without. Give a file of words, or leave it out.")
    if words is not None and options.tokens is not None:
        must = "--words must go with a model of words"
        raise InputError(f"{must}; got --tokens {options.tokens}, for a model of tokens. Leave one of them out.")
    options.words_probability = WORDS_PROBABILITY if probability is None else probability
    if not 0 < options.words_probability < 1:
        must = "--words-probability must be above 0 and below 1"
        raise InputError(f"{must}; got {probability:g}. Give the share of these words in the texts to be recognised.")
    for text in texts:
        if dev is not None and os.path.isfile(dev) and os.path.isfile(text) and os.path.samefile(dev, text):
            complain(f"--dev should be of sentences that no model is made of; {dev} is a text, too: trust no result.")
