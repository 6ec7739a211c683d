"""The path from a manifest's line to a loss, and from an audio file to a text.

Core may import the contract and base. It imports no component: `build.py` finds them by group and name. It imports no
app: commands give it the functions of an app, or continue without them (`cli/apps.py`). Without core there is neither
training nor recognition. docs/guide/design.md walks through it; a folder imports only from those above it in this list:

    data/         manifest lines to utterances, examples, batches (which add the padding), each epoch's plan
    recognition/  the model (encoder and head), and the recogniser (model and decoder): audio to transcripts, with times
                  and confidences of words; chunks, streams, alignment, output formats
    build.py      builds the components that a config names, and connects them
    decoder_choice.py  the decoder that a command means: the model's, changed by what the user gives
    evaluation/   word errors, their kinds, confidence intervals, and significance tests of two models
    checkpoint/   asr's own file format of a recogniser, the bundle; checkpoints of a run
    hub/          models by a path or an address: download, and names of other toolkits' files
    run/          a run: its folder and its settings, its initial weights, resuming, its bundle
    cli/          code that commands share
    training/     Lightning: the training step (`task.py`), whose gradients `gradients.py` divides by the units of all
                  ranks; data loaders, checkpoints, callbacks (moving average, early stopping), multiple processes;
                  Hydra's command line; the interface of what is trained (`objective.py`)
    objective/    a recogniser as what is trained: losses, validation, tests of its bundle. Other objectives are in apps
                  and plugins, <package>/objective/<name>.py; speech.py has what those on speech share
"""
