"""Recordings with texts in any of several formats, and the settings of a short training on them.

It may import base, components, core and apps/web, but no other app. A format has one file here; `formats.py` lists
them. asr.finetune needs it, and so do recipes.convert, recipes.common_voice and recipes.ljspeech. Without it asr.train
fine-tunes a model on manifests (`init.from`), with settings that the user chooses.
"""
