"""Names of the files in a folder saved by transformers."""

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # in transformers 5 the preprocessor's config is a section of it
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"  # of a transducer: the start token of its search
NEEDED = (CONFIG, WEIGHTS, TOKENIZER)
READ = (*NEEDED, PREPROCESSOR, PROCESSOR)
