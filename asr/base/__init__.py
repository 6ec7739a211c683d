"""What knows no speech model: files, audio, texts, settings, and fast forms of operations.

Base may import the contract (`asr.interfaces`, `asr.errors`, `asr.lengths`) and nothing else of asr. All other floors
stand on it: without it nothing runs. A folder imports only from folders above it in this list:

    system/          atomic writing of files, processes, devices
    settings/        rules for settings, frozen dataclasses from mappings, the files of conf/, plugins
    storage/         files by path or URL, and byte ranges of them, such as an utterance in a tar shard; object
                     stores with retries (`client.py`), their cache on a disk
    audio/           audio files of any format to waveforms (S,)
    text/            text normalisation, words of tokens, letters of languages, untrusted text, numbers
    language_model/  n-gram models: estimation, checks, queries; stored neural models
    kernels/         optimised operations, each beside a plain implementation
    onnx/            files and sessions of ONNX programs
"""
