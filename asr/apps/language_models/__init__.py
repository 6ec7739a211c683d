"""N-gram models with further words or mixed from several texts, and the tuning of a decoder's weights on dev sets.

It may import base, components, core and apps/web, but no other app. asr.ngram and asr.tune need it, and
`asr.perplexity --interpolate`. Without it decoders still read language models, whose estimation and queries are in
asr/base/language_model, and use the weights that the user gives.
"""
