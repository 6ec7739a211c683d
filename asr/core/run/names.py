"""Names of the files in a run folder, in the order in which a run writes them."""

LOG = "train.log"
FITTED = "fitted"  # folder: files of fitted tokenizer and features
CONFIG = "config.yaml"
METRICS = "metrics.csv"
EVENTS = "events.jsonl"
EXAMPLES = "examples.jsonl"
FAULTS = "faults"  # folder: batches whose loss is not finite
PROFILE = "profile.txt"  # tables from debug=profile
TRACE = "trace.json"  # each operation of debug=profile
RESULTS = "results.json"
COUNTS = "counts.json"  # errors of each test utterance
COMPARISON = "comparison.json"  # results before and after training, in a run that starts from a model
SHARES = "shares.json"  # losses for each share of the initial model, and the chosen share, from asr.finetune
REPORT = "report.html"
DOCTOR = "doctor.html"  # report of asr.doctor, which runs before the training

# Prefixes of columns in metrics.csv, for splits with several manifests; the manifest's name follows.
HOURS_OF, LOSS_OF = "train/hours/", "train/loss/"
VALID_LOSS_OF, VALID_WER_OF = "valid/loss/", "valid/wer/"
LORA, FULL = METHODS = "lora", "full"  # ways of fine-tuning: an adapter, or all weights
