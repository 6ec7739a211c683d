"""Neural language models over the tokens of a recogniser."""
