"""Reports as HTML pages: of a training run, an evaluation, also in noise and in rooms, and a comparison of two models.

It may import base, components, core and apps/web, but no other app. asr.training_report, asr.finetune and
asr.compare need it. Without it asr.evaluate has no `--report`, `--noise` and `--reverb`; asr.train and asr.train_lm
write no report.html, and log this; the run folder still has the files that the report shows, such as metrics.csv.
"""
