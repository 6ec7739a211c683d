"""Bulk jobs of asr.transcribe: hours of audio in parts, by any number of processes or on a Ray cluster.

It may import base, components, core and apps/web, but no other app. `asr.transcribe --parts` needs it: a job's folder,
its parts, its record of failures, and its page. Without it asr.transcribe has no --parts and none of the options of a
job; recordings, folders and manifests are transcribed as before.
"""
