"""The compiled functions of torchaudio, if it can be imported."""

import logging
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)


@cache
def torchaudio_functions() -> Any | None:
    """Return torchaudio.functional; None if torchaudio cannot be imported, for example beside a torch for another CUDA.

    The reason is logged once for each process.
    """
    try:
        import torchaudio.functional
    except (ImportError, OSError, RuntimeError) as error:  # it is absent, or its libraries do not fit torch's
        reason = " ".join(str(error).split())
        logger.warning("torchaudio cannot be used, so alignments and losses of transducers take longer: %s", reason)
        return None
    return torchaudio.functional
