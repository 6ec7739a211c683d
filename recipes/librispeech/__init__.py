"""LibriSpeech (Panayotov et al. 2015, OpenSLR 12): from the archives to manifests.

corpus.py    published totals, archives and checksums; finds the folders of the subsets
reader.py    reads the original folder layout; returns utterances and problems
download.py  downloads the archives over HTTP, resumes interrupted downloads, and verifies checksums
unpack.py    unpacks an archive to a subset folder: safely, and completely or not at all
prepare.py   the command: python -m recipes.librispeech.prepare
language_models.py   the n-gram models (OpenSLR 11): python -m recipes.librispeech.language_models
"""
