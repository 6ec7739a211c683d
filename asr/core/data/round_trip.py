"""Check that a tokenizer returns the texts that it is given, because a model learns to write what its tokens spell."""

import logging

from asr.base.text.numbers import counted
from asr.core.data.utterances import Utterances
from asr.errors import InputError, shown
from asr.interfaces import Tokenizer

MAX_CHECKED = 2_000  # texts, evenly spaced; a tokenizer that changes texts changes all texts of a kind
ADVICE = (
    "The model would learn to write the changed texts. Spell these texts otherwise, such as numbers in words, or fit "
    "another tokenizer (tokenizer=sentencepiece)"
)

logger = logging.getLogger(__name__)


def changed_by(tokenizer: Tokenizer, text: str) -> str | None:
    """Return the text that the tokens of a normalised text spell, if it differs; None: it is equal, or not encodable.

    Texts that cannot be encoded are reported elsewhere.
    """
    try:
        decoded = tokenizer.decode(tokenizer.encode(text))
    except InputError:
        return None
    return None if decoded == text else decoded


def warn_of_changes(utterances: Utterances, tokenizer: Tokenizer) -> None:
    """Log a warning if the tokenizer changes training texts; up to `MAX_CHECKED` texts are checked.

    Args:
        utterances: the training set, with normalised texts.
        tokenizer: fitted tokenizer.
    """
    checked = utterances.sample(MAX_CHECKED)
    texts = zip(checked.ids, checked.texts, strict=True)
    changes = [(name, text, changed_by(tokenizer, text)) for name, text in texts]
    changed = [(name, text, decoded) for name, text, decoded in changes if decoded is not None]
    if changed:
        name, text, decoded = changed[0]
        share = f"{len(changed):,} of {counted(len(checked), 'text')} that were checked"
        example = f"such as {shown(text)}, which becomes {shown(decoded)} (id {name!r})"
        logger.warning("train: the tokenizer changes %s, %s. %s.", share, example, ADVICE)
