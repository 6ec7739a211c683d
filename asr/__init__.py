"""Speech recognition: train a Conformer-CTC, transcribe audio, report word error rates.

The stages an utterance passes through, in order:

    manifest.py             a line of JSON names a stretch of audio and its text
    corpus.py               the manifests of a corpus, made if they can be and are not there
    data/training.py        what can be trained on, and the plan of each epoch:
        data/sampler.py         which utterances are padded together, on which rank
    data/dataset.py         one utterance, no padding:
        audio.py                decode, mix down, resample      -> waveform (S,)
        augment/                speed before the features, masks behind them
        features/               log-mel filterbank, normalised  -> features (T, F)
        text.py, tokenizer/     normalised text                 -> tokens (U,)
    data/batch.py           collate, the padding boundary       -> Batch
    encoder/                subsampling and blocks              -> encoder_out (B, T', D)
    head/                   CTC                                 -> log_probs (B, T', V), losses (B,)
    decode/                 log_probs                           -> token ids -> hypotheses
        greedy.py, beam.py      the best path, or a search with language model, lexicon and hotwords
    alignment.py            log_probs, token ids                -> frames of each token
    transcript.py           words, times, confidence, alternatives
    score.py                errors of words and characters      -> ErrorCounts -> WER, CER
    scored.py               an utterance with its errors        -> a line of NAME.utterances.jsonl, and back
    analysis.py             all of them: rates, breakdowns, confusions, calibration
        bootstrap.py, reliability.py    how sure the rates are, and the words
    comparison.py           the same utterances by two models   -> difference, p-value
    report/                 pages that a person reads: of an evaluation, of a comparison, of a training run
        web/                    what all pages are made of: style, charts, table, player

What holds them together:

    interfaces.py           the shape of each part, on one screen
    build.py                config to objects: the only wiring
    recognizer.py           all parts in one object; the one path from audio to text and its errors
    long_form.py            recordings of any length, in windows or from silence to silence
    bundle.py, checkpoint.py    a recogniser on disk, and back
    task.py, data/module.py Lightning: the training step, the loaders of each epoch
    saving.py, resume.py    when a checkpoint is written, and how a run goes on from one
    launch.py               one process or many
    run.py, run_folder.py   the run folder
    progress.py, metrics.py, examples.py    what a person sees of a run
    server/                 the page and the HTTP endpoint of asr.serve
    train.py, training_report.py, plan.py, average.py, ngram.py, tune.py, evaluate.py, compare.py, transcribe.py,
    align.py, serve.py      the commands: python -m asr.<command>
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asr.checkpoint import load_recognizer

__all__ = ["load_recognizer"]


def __getattr__(name: str) -> Any:
    """Import `load_recognizer` when it is first asked for: torch takes seconds."""
    if name == "load_recognizer":
        from asr.checkpoint import load_recognizer

        return load_recognizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
