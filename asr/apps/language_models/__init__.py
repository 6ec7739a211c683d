"""Training of neural language models, their perplexity, larger or mixed n-gram models, tuning of a decoder's weights.

It may import base, components, core and apps/web, but no other app. Its objective and conf/ are found like those of
core. asr.train_lm, asr.perplexity, asr.ngram and asr.tune need it. Without it decoders still read language models,
whose estimation and queries are in asr/base/language_model, and use the weights that the user gives.
"""
