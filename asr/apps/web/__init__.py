"""Parts of self-contained HTML pages: style, charts, scripts, recordings, and their assembly into one file.

The only app that other apps may import; it may import base, components and core. asr.doctor, asr.export, asr.serve,
the page at the end of a bulk job, and all of apps/report need it. Without it apps/report must be absent too; asr.train
and asr.train_lm then write no report.html, and
asr.compare, and `--report` of asr.evaluate, fail.
"""
