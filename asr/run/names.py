"""The names of what lies in a run folder, in the order in which a run writes them."""

LOG = "train.log"
FITTED = "fitted"  # folder: what tokenizer and features learnt
CONFIG = "config.yaml"
METRICS = "metrics.csv"
EVENTS = "events.jsonl"
EXAMPLES = "examples.jsonl"
FAULTS = "faults"  # folder: batches whose loss is not finite
TRACE = "trace.json"  # of debug=profile
RESULTS = "results.json"
COMPARISON = "comparison.json"  # with the model that the run started from
REPORT = "report.html"
DOCTOR = "doctor.html"  # what asr.doctor found before the run

# Columns of metrics.csv of each manifest where a split has several; the manifest's name follows.
HOURS_OF, LOSS_OF = "train/hours/", "train/loss/"
VALID_LOSS_OF, VALID_WER_OF = "valid/loss/", "valid/wer/"
