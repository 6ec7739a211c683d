"""Names of the files in a folder saved by transformers."""

import re
from collections.abc import Collection

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
# Files of weights in the order of transformers, which uses the first that exists; an index lists several files.
INDEX = ".index.json"
FORMS = (WEIGHTS, f"{WEIGHTS}{INDEX}", "pytorch_model.bin", f"pytorch_model.bin{INDEX}")
SHARD = re.compile(r"(model|pytorch_model)-\d{5}-of-\d{5}\.(safetensors|bin)", re.ASCII)
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # in transformers 5, this file contains the preprocessor's config as a section
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"  # of older versions
VOCAB = "vocab.json"  # ids of characters, in place of tokenizer.json
GENERATION = "generation_config.json"  # only for transducers; names the start token of the search
NEEDED = (CONFIG, WEIGHTS)
CONFIGS = (CONFIG, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS, VOCAB, PREPROCESSOR, PROCESSOR)


def weights_form(names: Collection[str]) -> str | None:
    """Return which of the files of weights transformers reads, or their index; None: there are none."""
    return next((form for form in FORMS if form in names), None)


def wanted(names: Collection[str]) -> list[str]:
    """Return the files of a folder that a recogniser needs: configs, and one form of the weights."""
    form = weights_form(names)
    is_sharded = form is not None and form.endswith(INDEX)
    end = form.removesuffix(INDEX).rpartition(".")[2] if form else ""
    return [
        name
        for name in names
        if name in (*CONFIGS, form) or (is_sharded and SHARD.fullmatch(name) and name.endswith(f".{end}"))
    ]
