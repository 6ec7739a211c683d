"""LibriSpeech (Panayotov et al. 2015, OpenSLR 12): from the archives to manifests.

corpus.py    published facts: totals, archives, checksums; and the folders of the subsets
reader.py    the original folder layout -> utterances and problems
download.py  the archives, over HTTP, resumed and verified
unpack.py    an archive -> a subset folder, safely, and completely or not at all
prepare.py   the command: python -m recipes.librispeech.prepare
language_models.py   the n-gram models (OpenSLR 11): python -m recipes.librispeech.language_models
"""
