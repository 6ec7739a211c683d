"""Models trained elsewhere, as a plugin: wav2vec 2.0, HuBERT, w2v-BERT 2.0, TurboCTC, LASR, icefall's Zipformers.

It may import base, components, core, apps/web and apps/convert, but no other app. Its components and conf/ are found
like those of asr/components, without an option; `convert.py` names the readers and writers. Without it asr.convert and
asr.export read and write only Parakeet and NeMo's models, and bundles with these components do not load.
"""
