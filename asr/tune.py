"""python -m asr.tune MODEL MANIFEST...: tune the decoder's weights on dev sets, and calibrate confidence."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from asr.base.text.numbers import counted, rate
from asr.base.text.printable import printable
from asr.core.cli.command import (
    audio_progress,
    characters,
    complain,
    complain_of,
    inference,
    model_parser,
    move_to_device,
    run_command,
)
from asr.core.decoder_choice import add_decoding, check_used, of_options, with_decoder, with_values
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.apps.language_models.selection import Array, HeldOut
    from asr.apps.language_models.tuning import Confidence, EncodedUtterance, Values
    from asr.base.text.word_errors import ErrorCounts
    from asr.core.recognition.inference import Inference
    from asr.core.recognition.recognizer import Recognizer

UNCHANGED = "unchanged"  # description of the search on a model card


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune; the status is 1 if utterances are unreadable, but all other utterances are used."""
    parser = model_parser(
        "tune",
        "Tune LM weight and word insertion bonus on dev sets that were not used for training, estimate the gain on "
        "other speech, and calibrate the words' confidence. Write the results to the model's bundle, with the language "
        "model and the other settings of the decoder.",
        model="a run folder, or a bundle",
    )
    parser.add_argument(
        "manifests", metavar="MANIFEST", nargs="+", help="JSONL, one utterance per line; several manifests are joined"
    )
    parser.add_argument(
        "--attach",
        choices=("if-certain", "always"),
        default="if-certain",
        help="if-certain (default): attach LM and weights only if the gain on held-out speech is certain",
    )
    add_decoding(parser)
    options = parser.parse_args(arguments)
    from asr.base.text.normalize import get_normalizer
    from asr.core.checkpoint.bundle import check_replaceable, give_back, read_bundle, replace_bundle
    from asr.core.checkpoint.load import (
        BUNDLE,
        bundle_folder,
        bundle_recognizer,
        check_recognises,
    )

    if Path(options.model).suffix == ".ckpt":
        raise InputError(f"{options.model}: MODEL must be a bundle or a run folder with one; it is a checkpoint.")
    inference_options = inference(options)
    for folder in (Path(options.model), Path(options.model) / BUNDLE):
        give_back(folder)  # after an earlier tuning that was killed while writing
    folder = bundle_folder(Path(options.model))
    bundle = check_recognises(read_bundle(folder), folder)
    tuned = replace(bundle, config=with_decoder(bundle.config, of_options(options)))
    if lost := bundle.attached.keys() - tuned.attached.keys():
        must = f"{folder}: tuning must keep the decoder's files ({', '.join(sorted(lost))})"
        raise InputError(f"{must}; leave out --decode {options.decode}.")
    check_replaceable(folder, tuned, instead_of=bundle)  # before the search, which may take hours
    recognizer = bundle_recognizer(tuned, folder, characters=characters(options))
    check_used(recognizer, options)
    move_to_device(recognizer, options)
    dev_sets, num_problems = _read(options.manifests, recognizer, inference_options)
    dev_set = [encoded for encoded_utterances in dev_sets.values() for encoded in encoded_utterances]
    normalize = get_normalizer(bundle.config["normalizer"])
    if not any(normalize(encoded.utterance.text) for encoded in dev_set):
        names = ", ".join(options.manifests)
        raise InputError(f"{names}: a dev set must have texts and readable audio; it has none.")
    choice = _tune_search(recognizer, dev_sets, options.attach == "always")
    if choice is None:  # the bundle keeps its decoder
        tuned = bundle
        recognizer = move_to_device(bundle_recognizer(bundle, folder, characters=characters(options)), options)
    values = choice.values if choice else {}
    settings = with_values(tuned.config["decode"], values)
    confidence = _tune_confidence(recognizer, dev_set, values)
    description = choice.description if choice else UNCHANGED
    replace_bundle(
        folder,
        replace(
            tuned,
            config=tuned.config | {"decode": settings},
            files=bundle.files | confidence.calibration.files(),
            card=_card(bundle.card, options.manifests, f"{settings['name']} search, {description}", confidence),
        ),
        instead_of=bundle,
    )
    print(f"{folder}: {_done(recognizer, choice)}")
    if num_problems:
        complain(f"{num_problems} of {num_problems + len(dev_set)} utterances were not used; see the errors above.")
    return 1 if num_problems else 0


def _read(
    manifests: Sequence[str], recognizer: "Recognizer", inference_options: "Inference"
) -> "tuple[dict[str, list[EncodedUtterance]], int]":
    """Run the encoder over each dev set; return encoded utterances, and the number of unreadable utterances."""
    from asr.apps.language_models.tuning import encode
    from asr.core.data.index_cache import listed_utterances

    dev_sets, num_problems = {}, 0
    for manifest in manifests:
        utterances, errors = listed_utterances(manifest, recognizer.model.labels.names)
        for error in errors:
            complain(str(error))
        with audio_progress(f"encoding {Path(manifest).name}", utterances) as on_progress:
            dev_sets[manifest], rejected = encode(recognizer, utterances, inference_options, on_progress)
        for rejection in rejected:
            complain_of(rejection.utterance.id, rejection.reason)
        num_problems += len(errors) + len(rejected)
    return dev_sets, num_problems


class Choice(NamedTuple):
    """Chosen values of the decoder's settings, and their description for the model card."""

    values: "Values"
    description: str


def _tune_search(
    recognizer: "Recognizer", dev_sets: "dict[str, list[EncodedUtterance]]", always: bool
) -> Choice | None:
    """Tune the decoder's settings and print the expected gain; None: the decoder stays unchanged."""
    from asr.apps.language_models.selection import choose, expected_gain, fewest_errors
    from asr.apps.language_models.tuning import search_values

    if not recognizer.decode.tunable:
        print("no language model (--lm): no weights to tune")
        return Choice({}, UNCHANGED)

    def on_trial(values: "Values", counts: "ErrorCounts") -> None:
        print(f"{_named(values)}: WER {rate(counts.rate):>6} %, {counted(counts.errors, 'error')}", flush=True)

    dev_set = [encoded for encoded_utterances in dev_sets.values() for encoded in encoded_utterances]
    search = search_values(recognizer, dev_set, on_trial)
    trials = search.trials
    best, chosen = fewest_errors(trials), choose(trials)
    if always and not trials.strength[chosen]:
        chosen = best
    smallest = "the smallest LM weight within one standard error of the fewest errors"
    why = "the fewest errors" if chosen == best else smallest
    print(f"fewest errors: {_named(search.values[best])}: {trials.words[best].sum():.0f}")
    print(f"best choice: {_named(search.values[chosen])}: {trials.words[chosen].sum():.0f}, {why}")
    _print_each(dev_sets, trials.words[0], trials.words[chosen])
    gain = expected_gain(trials)
    expected = _spelled_gain(gain)
    print(f"expected on unseen speech like the dev set, by cross-validation: {expected}")
    if gain.is_certain or always:
        return Choice(search.values[chosen], f"{_named(search.values[chosen])}; expected on unseen speech: {expected}")
    print(
        "The gain is not certain, so the decoder is not changed. More dev utterances may make it certain; "
        "--attach always stores these values anyway."
    )
    return None


def _print_each(dev_sets: "dict[str, list[EncodedUtterance]]", before: "Array", after: "Array") -> None:
    """Print the errors of each dev set before and after tuning, if there are several."""
    end = 0
    for manifest, encoded in dev_sets.items() if len(dev_sets) > 1 else ():
        begin, end = end, end + len(encoded)
        errors = f"{counted(int(before[begin:end].sum()), 'error')} before, {after[begin:end].sum():.0f} after"
        print(f"{printable(manifest)}: {errors}")


def _spelled_gain(gain: "HeldOut") -> str:
    if not gain.before:
        return "no errors to remove"
    change = 100 * (gain.after / gain.before - 1)
    interval = "too few utterances for an interval"
    if gain.interval is not None:
        interval = f"95 %: {100 * gain.interval[0]:+.1f} to {100 * gain.interval[1]:+.1f}"
    return f"{gain.after:.1f} errors instead of {gain.before:.0f}, {change:+.1f} % ({interval})"


def _done(recognizer: "Recognizer", choice: Choice | None) -> str:
    """Return the final message about the bundle.

    Args:
        recognizer: recogniser of the new bundle.
        choice: chosen values; None: the decoder stays unchanged.
    """
    from asr.apps.language_models.tuning import LM_WEIGHT

    if LM_WEIGHT not in recognizer.decode.tunable:
        return "confidence calibrated; no language model attached"
    if choice is None:
        return "confidence calibrated; language model unchanged"
    return "language model attached, confidence calibrated"


def _named(values: "Values") -> str:
    return ", ".join(f"{_spelled(name)} {value:5.2f}" for name, value in values.items())


def _spelled(name: str) -> str:
    return name.replace("_", " ").replace("lm", "LM")


def _tune_confidence(recognizer: "Recognizer", dev_set: "Sequence[EncodedUtterance]", values: "Values") -> "Confidence":
    from asr.apps.language_models.tuning import fit_confidence

    confidence = fit_confidence(recognizer, dev_set, values)
    words = f"confidence: {100 * confidence.right:.1f} % of {confidence.num_words} words are correct"
    means = f"mean confidence {100 * confidence.before:.1f} %, {100 * confidence.after:.1f} % after calibration"
    auc = "not defined" if math.isnan(confidence.auc) else f"{confidence.auc:.3f}"
    print(f"{words}; {means}; AUC {auc}")
    return confidence


def _card(card: str, manifests: Sequence[str], search: str, confidence: "Confidence") -> str:
    """Add a line about the tuning to a model card; it replaces an earlier line."""
    names = ", ".join(Path(manifest).name for manifest in manifests)
    line_of_tuning = f"Tuned on {names}: {search}; confidence calibrated on {confidence.num_words} words."
    lines = [line for line in card.rstrip().splitlines() if not line.startswith("Tuned on ")]
    return "\n".join([*lines, "", line_of_tuning, ""]).replace("\n\n\n", "\n\n")


if __name__ == "__main__":
    run_command(main)
