"""Examination of a corpus and of a training plan before the training: audio, texts, memory, time, learning rate.

It may import base, components, core and apps/web, but no other app. asr.doctor, asr.plan and asr.finetune need it.
Without it asr.train does not try the largest batches before the first step, and cannot find the longest batch that fits
into the memory: `data.batch_seconds` must be a number instead of auto.
"""
