"""The options --noise, --snr, --noise-seed and --reverb, and a table of the results under these conditions."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asr.base.settings.rule import number, whole
from asr.base.text.numbers import finite, interval, rate
from asr.base.text.printable import printable
from asr.base.text.table import lay_out, short_name
from asr.core.cli.command import audio_progress
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.apps.report.robustness import Condition, Harder
    from asr.base.text.normalize import Normalizer
    from asr.core.data.manifest import Utterance
    from asr.core.evaluation.result import Evaluation
    from asr.core.recognition.inference import Inference
    from asr.core.recognition.recognizer import Recognizer

SNRS_DB = (20.0, 10.0, 5.0, 0.0)
CLEAN = "clean"
TITLES = ("manifest", "condition", "WER %", "95 % interval", "subst.", "ins.", "del.")


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    harder = parser.add_argument_group("robustness to noise and reverberation")
    harder.add_argument("--noise", metavar="PATH", help="folder or manifest of noise to mix in")
    harder.add_argument("--snr", metavar="DB", type=finite, nargs="+", help="signal-to-noise ratios (20 10 5 0)")
    harder.add_argument(
        "--reverb",
        metavar="SECONDS|PATH",
        help="reverberation time of simulated rooms, or a folder of impulse responses",
    )
    harder.add_argument("--noise-seed", metavar="N", type=int, help="seed of noise and rooms (0)")


def conditions(options: argparse.Namespace, sample_rate: int) -> "list[Condition]":
    """Make the conditions that the options describe; [] if none of the options is given."""
    from asr.apps.report.robustness import in_noise, in_rooms, in_simulated_rooms
    from asr.core.data.recordings import RecordingList

    made: list[Condition] = []
    if options.noise is not None:
        recordings = RecordingList(options.noise, "--noise")
        len(recordings)  # lists the files, so that errors are raised now
        made += in_noise(recordings, options.snr or SNRS_DB, sample_rate)
    if options.reverb is not None:
        try:
            seconds = float(options.reverb)
        except ValueError:
            responses = RecordingList(options.reverb, "--reverb")
            len(responses)
            made.append(in_rooms(responses, sample_rate))
        else:
            number(0.05, 1.5).check("--reverb", seconds)
            made.append(in_simulated_rooms(seconds, sample_rate))
    return made


def check_conditions(options: argparse.Namespace) -> None:
    """Check the options before the model is loaded."""
    if options.snr is not None and options.noise is None:
        raise InputError("--snr needs --noise; add --noise PATH, a folder of noise.")
    for snr_db in options.snr or ():
        number(-50, 100).check("--snr", snr_db)
    if options.noise_seed is not None:
        if options.noise is None and options.reverb is None:
            raise InputError("--noise-seed needs --noise or --reverb; add one of them.")
        whole(0).check("--noise-seed", options.noise_seed)


def evaluate_harder(
    harder: "Sequence[Condition]",
    seed: int,
    recognizer: "Recognizer",
    name: str,
    utterances: "Sequence[Utterance]",
    options: "Inference",
    normalize: "Normalizer | None",
) -> "list[Harder]":
    """Evaluate a manifest under each condition."""
    from asr.apps.report.robustness import evaluate_in

    results = []
    for condition in harder:
        with audio_progress(f"{name}, {condition.name}", utterances) as on_progress:
            results.append(evaluate_in(condition, seed, recognizer, name, utterances, options, on_progress, normalize))
    return results


def conditions_table(clean: "Mapping[str, Evaluation]", harder: "Mapping[str, Sequence[Harder]]") -> str:
    """Format the results as a table with one row per manifest and condition; clean results come first."""
    rows: list[tuple[str, ...]] = [TITLES]
    for name, evaluation in clean.items():
        every = [(CLEAN, evaluation), *((each.condition.name, each.evaluation) for each in harder[name])]
        for condition, result in every:
            figures = result.as_dict()
            edits = (str(figures[kind]) for kind in ("substitutions", "insertions", "deletions"))
            scores = rate(figures["wer"]), interval(figures["wer_interval"])
            rows.append((short_name(printable(name)), condition, *scores, *edits))
    note = "Noise level: ratio of the mean squares of utterance and noise. --noise-seed and the id determine the noise."
    return "\n".join([*lay_out(rows), "", note])
