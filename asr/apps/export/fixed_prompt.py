"""A model whose prompt gets the same language for all recordings, because programs have no input for a label."""

from dataclasses import replace

import torch
from torch import nn

from asr.core.build import PROMPT
from asr.core.checkpoint.bundle import Bundle
from asr.core.data.labels import LABELS_FILE, LANGUAGE
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.interfaces import UNKNOWN_ID, Encoded, Prompt


class FixedPrompt(nn.Module):
    """Call a prompt with the same id of its label for all utterances; their conditions are not used."""

    def __init__(self, prompt: Prompt, number: int) -> None:
        super().__init__()
        self.prompt = prompt
        self.number = number

    @property
    def label(self) -> str:
        """Name of the label."""
        return self.prompt.label

    def forward(self, encoded: Encoded) -> Encoded:
        """Map `out` (B, T', D) to another `out` (B, T', D)."""
        return self.prompt(encoded._replace(conditions={self.label: torch.full_like(encoded.lengths, self.number)}))


def with_language(recognizer: Recognizer, bundle: Bundle, language: str | None) -> tuple[Recognizer, Bundle]:
    """Return a recogniser of one language, and its bundle, whose config has no prompt; None: of unknown language.

    A model without a prompt is returned as it is.
    """
    model = recognizer.model
    if model.prompt is None:
        if language is not None:
            must = "--language must be given with --to huggingface, or for a model with a prompt"
            raise InputError(f"{must}; this model has none. Leave it out.")
        return recognizer, bundle
    if language is not None:
        model.labels.check(LANGUAGE, language, "--language")
    number = UNKNOWN_ID if language is None else int(model.labels.conditions([{LANGUAGE: language}])[LANGUAGE])
    prompt = FixedPrompt(model.prompt, number)
    fixed = Model(model.normalize, model.tokenizer, model.features, model.encoder, model.head, prompt)
    config = {key: value for key, value in bundle.config.items() if key != PROMPT}
    files = {name: content for name, content in bundle.files.items() if name != LABELS_FILE}
    decoded = Recognizer(fixed.eval(), recognizer.decode, recognizer.calibration)
    return decoded, replace(bundle, config=config, files=files)
