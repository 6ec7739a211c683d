"""The recipes that are compared: a toolkit, and overrides of asr's settings, which the other toolkits read, too."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

ASR, NEMO, TRANSFORMERS = "asr", "NeMo", "transformers"
PUBLISHED = {  # what the recipes of the table `recommended` are meant for
    ASR: "asr.train without overrides: two hours of synthetic speech",
    NEMO: "examples/asr/conf/conformer/conformer_ctc_char.yaml: LibriSpeech on several GPUs",
    TRANSFORMERS: "examples/pytorch/speech-recognition, single GPU CTC: fine-tuning of a pre-trained model",
}
RATES, BATCH_SECONDS = ("1e-3", "3e-3"), (10, 20, 40, 80)  # the trials of the table `tuned`
OPTIMIZERS = {  # and the rates of their trials
    **dict.fromkeys(("adamw", "muon"), ("1.5e-3", "3e-3", "6e-3")),
    "scaled_adam": ("2.25e-2", "4.5e-2", "9e-2"),
}
OPTIMIZER_BATCH_SECONDS = (20, 40)


class Recipe(NamedTuple):
    """A training.

    Args:
        toolkit: `ASR`, `NEMO` or `TRANSFORMERS`.
        name: name of the row.
        overrides: overrides of asr.train. NeMo and transformers take from them batches, learning rate, its schedule,
            weight decay, speeds, size of the encoder, an optimizer other than AdamW and, NeMo only, the intermediate
            loss.
        is_published: whether a peer uses the settings of its published recipe instead.
    """

    toolkit: str
    name: str
    overrides: Sequence[str] = ()
    is_published: bool = False


def recommended() -> list[Recipe]:
    """Return each toolkit's recipe, as published."""
    return [Recipe(toolkit, "as published", is_published=True) for toolkit in PUBLISHED]


def equal() -> list[Recipe]:
    """Return recipes with equal settings: plain CTC, with an intermediate loss, which transformers lacks, with Muon."""
    rows = {
        "CTC": ("ctc", "adamw", PUBLISHED),
        "CTC, intermediate loss": ("ctc_intermediate", "adamw", (ASR, NEMO)),
        "CTC, asr's Muon": ("ctc", "muon", PUBLISHED),
    }
    return [
        Recipe(toolkit, name, [f"head={head}", f"optimizer={optimizer}"])
        for name, (head, optimizer, toolkits) in rows.items()
        for toolkit in toolkits
    ]


def finetuned() -> list[Recipe]:
    """Return asr's and NeMo's recipes for fine-tuning the model in the overrides, init.from; NeMo's with its script."""
    return [
        Recipe(ASR, "experiment=finetune", ["experiment=finetune"]),
        Recipe(NEMO, "speech_to_text_finetune.yaml", ["experiment=finetune"], is_published=True),
    ]


def trials(toolkit: str, rates: Sequence[str] = RATES, batch_seconds: Sequence[int] = BATCH_SECONDS) -> list[Recipe]:
    """Return the trials of learning rate and batch size of a toolkit, with its recommended head and optimizer."""
    recommended = ["head=ctc_intermediate", "optimizer=muon"] if toolkit == ASR else ["head=ctc", "optimizer=adamw"]
    return [
        Recipe(
            toolkit,
            f"rate {rate}, batches of {seconds} s",
            [*recommended, f"optimizer.lr={rate}", f"data.batch_seconds={seconds}"],
        )
        for rate, seconds in product(rates, batch_seconds)
    ]


def optimizer_trials(optimizer: str) -> list[Recipe]:
    """Return the trials of one of asr's optimizers: learning rate, batch size, and no sorted epoch at the start."""
    rates = OPTIMIZERS[optimizer]
    grid = [(rate, seconds, 1) for rate, seconds in product(rates, OPTIMIZER_BATCH_SECONDS)]
    return [
        Recipe(
            ASR,
            f"{optimizer}, rate {rate}, batches of {seconds} s" + ("" if sorted_epochs else ", none sorted"),
            [
                f"optimizer={optimizer}",
                f"optimizer.lr={rate}",
                f"data.batch_seconds={seconds}",
                f"data.sorted_epochs={sorted_epochs}",
            ],
        )
        for rate, seconds, sorted_epochs in [*grid, (rates[1], OPTIMIZER_BATCH_SECONDS[0], 0)]
    ]
