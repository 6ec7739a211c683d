"""Names of the files in a folder saved by transformers."""

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # in transformers 5, this file contains the preprocessor's config as a section
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"  # of older versions
VOCAB = "vocab.json"  # ids of characters, in place of tokenizer.json
GENERATION = "generation_config.json"  # only for transducers; names the start token of the search
NEEDED = (CONFIG, WEIGHTS)
READ = (*NEEDED, TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS, VOCAB, PREPROCESSOR, PROCESSOR)
