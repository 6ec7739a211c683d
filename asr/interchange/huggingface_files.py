"""Names of the files of a folder that transformers saves."""

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
PREPROCESSOR = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # where transformers 5 has the preprocessor's, as a section
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION = "generation_config.json"  # of a transducer: the token that its search starts with
NEEDED = (CONFIG, WEIGHTS, TOKENIZER)
READ = (*NEEDED, PREPROCESSOR, PROCESSOR)
