"""Names of the files of a `.nemo` archive."""

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
SAFETENSORS = "model.safetensors"  # in a folder, this file may contain the weights instead
TOKENIZER = "tokenizer.model"  # end of a file name; in an archive, the name begins with a hash
VOCABULARY = "vocab.txt"  # pieces
SCORES = "tokenizer.vocab"  # pieces and their scores


def is_wanted(name: str) -> bool:
    """Whether a recogniser needs the file with this name."""
    return name in (CONFIG, WEIGHTS, SAFETENSORS) or name.endswith(TOKENIZER)
