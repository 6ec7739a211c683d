"""The format number of a bundle's config. Formats up to 10 were never released and are not read."""

import logging
from typing import Any

from asr.errors import InputError, shown

FORMAT = 11  # format number that this version writes; the first public one, and no number is ever used again
KEY = "format"  # key of the format number in a config
RESCORING = "lm_rescoring"  # a removed decoder: a search, `first`, whose hypotheses a neural language model rescored
RESCORING_MODEL = "language-model.safetensors"  # name of that language model's file in a bundle; it is ignored

logger = logging.getLogger(__name__)


def of_today(config: dict[str, Any], where: object) -> dict[str, Any]:
    """Check the format number of a config, and remove it; `lm_rescoring` is replaced by its search."""
    number = config.get(KEY, 0)
    if type(number) is not int or number != FORMAT:
        must = f"{where}: the format of a model must be {FORMAT}; got {shown(number)}"
        is_older = type(number) is int and 0 <= number < FORMAT
        cure = "Convert it: python -m recipes.convert.bundle OLD NEW" if is_older else "A newer asr may read it"
        raise InputError(f"{must}. {cure}.")
    today = {key: value for key, value in config.items() if key != KEY}
    if isinstance(decode := config.get("decode"), dict) and decode.get("name") == RESCORING:
        logger.warning("%s: decode=%s was removed; its search is used, without the neural rescoring", where, RESCORING)
        return today | {"decode": decode.get("first")}
    return today
