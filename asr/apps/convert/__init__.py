"""Conversion of models between asr and other toolkits: nemo/ reads and writes .nemo archives, huggingface/ folders.

It may import base, components, core and apps/web, but no other app. Files of strangers are read here without running
code; a damaged or unknown file is refused. asr.convert, `asr.export --to huggingface` and asr.finetune need it;
the last one converts its initial model if another toolkit wrote it. Other commands read only bundles, exported models
and checkpoints.
"""
