"""Names of the files in a folder saved by transformers."""

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # in transformers 5, this file contains the preprocessor's config as a section
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"  # only for transducers; names the start token of the search
NEEDED = (CONFIG, WEIGHTS)
READ = (*NEEDED, TOKENIZER, PREPROCESSOR, PROCESSOR)
