"""python -m asr.tune MODEL MANIFEST: choose the weights of the search on a dev set, calibrate confidence, keep both."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli.command import (
    add_decoding,
    audio_progress,
    check_used,
    complain,
    complain_of,
    decoder,
    inference,
    model_parser,
    place,
    run_command,
)
from asr.errors import InputError

if TYPE_CHECKING:
    from asr.evaluation.tuning import Confidence, EncodedUtterance, Values
    from asr.evaluation.word_errors import ErrorCounts
    from asr.recognition.recognizer import Recognizer


def main(arguments: Sequence[str] | None = None) -> int:
    """Tune; the status is 1 if an utterance could not be read, which then counts for nothing."""
    parser = model_parser(
        "tune",
        "Find LM weight and word insertion bonus on a dev set that was not trained on, calibrate the words' confidence "
        "there, "
        "and write both into the model's bundle, with the language model and the other settings of the search.",
        model="a run folder, or a bundle",
    )
    parser.add_argument("manifest", metavar="MANIFEST", help="JSONL, one utterance a line")
    add_decoding(parser)
    options = parser.parse_args(arguments)
    from asr.checkpoint.bundle import check_replaceable, give_back, read_bundle, replace_bundle
    from asr.checkpoint.load import BUNDLE, bundle_folder, bundle_recognizer, decoder_settings, with_values
    from asr.data.manifest import read_good_lines
    from asr.evaluation.tuning import encode
    from asr.text.normalize import get_normalizer

    if Path(options.model).suffix == ".ckpt":
        raise InputError(
            f"{options.model}: what is tuned must be a bundle, or a run folder with one; it is a checkpoint."
        )
    how = inference(options)
    for folder in (Path(options.model), Path(options.model) / BUNDLE):
        give_back(folder)  # if an earlier tuning was killed while it wrote
    folder = bundle_folder(Path(options.model))
    bundle = read_bundle(folder)
    settings = decoder_settings(bundle, decoder(options))
    tuned = replace(bundle, config=bundle.config | {"decode": settings})
    if lost := bundle.attached.keys() - tuned.attached.keys():
        kept = ", ".join(sorted(lost))
        raise InputError(f"{folder}: tuning must keep the decoder's files ({kept}); leave out --decode greedy.")
    check_replaceable(folder, tuned, instead_of=bundle)  # before the search, which may take hours
    recognizer = bundle_recognizer(tuned, folder)
    check_used(recognizer, options)
    place(recognizer, options)
    utterances, errors = read_good_lines(options.manifest)
    for error in errors:
        complain(str(error))
    with audio_progress("running the net", utterances) as advance:
        dev_set, rejected = encode(recognizer, utterances, how, advance)
    for rejection in rejected:
        complain_of(rejection.utterance.id, rejection.reason)
    normalize = get_normalizer(bundle.config["normalizer"])
    if not any(normalize(encoded.utterance.text) for encoded in dev_set):
        raise InputError(f"{options.manifest}: a dev set must hold texts, and audio that can be read; it holds none.")
    values = _tune_search(recognizer, dev_set)
    settings = with_values(settings, values)
    confidence = _tune_confidence(recognizer, dev_set, values)
    replace_bundle(
        folder,
        replace(
            tuned,
            config=tuned.config | {"decode": settings},
            files=bundle.files | confidence.calibration.files(),
            card=_card(bundle.card, options.manifest, settings["name"], values, confidence),
        ),
        instead_of=bundle,
    )
    print(f"{folder}: written")
    problems = len(rejected) + len(errors)
    if problems:
        complain(f"{problems} of {problems + len(dev_set)} could not be tuned on: see above.")
    return 1 if problems else 0


def _tune_search(recognizer: "Recognizer", dev_set: "Sequence[EncodedUtterance]") -> dict[str, float]:
    """Search for the values that the decoder can tune, if there are any; return them as its settings."""
    from asr.evaluation.tuning import search_values

    if not recognizer.decode.tunable:
        print("no language model (--lm): no weights to find")
        return {}

    def on_trial(values: "Values", counts: "ErrorCounts") -> None:
        print(f"{_named(values)}: WER {100 * counts.rate:6.2f} %, {counts.errors} errors", flush=True)

    best = search_values(recognizer, dev_set, on_trial)
    print(f"taken: {_named(best)}")
    return best


def _named(values: "Values") -> str:
    return ", ".join(f"{_spelled(name)} {value:5.2f}" for name, value in values.items())


def _spelled(name: str) -> str:
    return name.replace("_", " ").replace("lm", "LM")


def _tune_confidence(recognizer: "Recognizer", dev_set: "Sequence[EncodedUtterance]", values: "Values") -> "Confidence":
    from asr.evaluation.tuning import fit_confidence

    confidence = fit_confidence(recognizer, dev_set, values)
    said = f"confidence: {100 * confidence.right:.1f} % of {confidence.num_words} words are right"
    means = f"it said {100 * confidence.before:.1f} %, and says {100 * confidence.after:.1f} % when calibrated"
    auc = "not defined" if math.isnan(confidence.auc) else f"{confidence.auc:.3f}"
    print(f"{said}; {means}; AUC {auc}")
    return confidence


def _card(card: str, manifest: str, search: str, values: "Values", confidence: "Confidence") -> str:
    """Add what was tuned to a model card, in place of what an earlier tuning said."""
    taken = ", ".join(f"{_spelled(name)} {value:g}" for name, value in values.items()) or "nothing to tune in it"
    words = f"confidence calibrated on {confidence.num_words} words"
    told = f"Tuned on {Path(manifest).name}: {search} search, {taken}; {words}."
    kept = [line for line in card.rstrip().splitlines() if not line.startswith("Tuned on ")]
    return "\n".join([*kept, "", told, ""]).replace("\n\n\n", "\n\n")


if __name__ == "__main__":
    run_command(main)
