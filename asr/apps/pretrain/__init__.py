"""Objectives on speech without texts, which pre-train an encoder: BEST-RQ.

It may import base, components, core and apps/web, but no other app. Its objectives and conf/ are found like those of
core, without an option. Without it `objective=best_rq` of asr.train is refused; its encoders still load.
"""
