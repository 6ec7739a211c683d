"""Corpora in tar files: writing shards with their index, and indexing the tar files of WebDataset and NeMo.

It may import base, components, core and apps/web, but no other app. Only asr.shards needs it. Training and evaluation
read an index and its shards without it, by asr/core/data/index.py and asr/base/storage.
"""
