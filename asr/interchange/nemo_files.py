"""Names of the files of a `.nemo` archive."""

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
SAFETENSORS = "model.safetensors"  # in a folder the weights may be called so, too
TOKENIZER = "tokenizer.model"  # the end of a name: an archive puts a hash before it
VOCABULARY = "vocab.txt"


def is_wanted(name: str) -> bool:
    """Tell by its name whether a file is one that a recogniser is made of."""
    return name in (CONFIG, WEIGHTS, SAFETENSORS) or name.endswith(TOKENIZER)
