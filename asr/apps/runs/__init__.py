"""A table of run folders: state, settings that differ, error rates, and the significance of their differences.

It may import base, components, core and apps/web, but no other app. Only asr.runs needs it. It reads the files that
asr.train writes into a run folder, and changes none of them.
"""
