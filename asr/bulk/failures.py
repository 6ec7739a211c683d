"""Search by bisection for the utterances whose recognition raises an error."""

from collections.abc import Callable, Sequence

from asr.data.manifest import Utterance
from asr.errors import StoreError, is_out_of_memory, one_line


def isolated_failures(
    recognise: Callable[[Sequence[Utterance]], object], utterances: Sequence[Utterance]
) -> dict[str, str]:
    """Find the utterances that cannot be recognised even alone; map the id of each to the reason.

    The results of `recognise` are not used, so the texts of a part do not depend on how failures were found.

    Args:
        recognise: raises an error if one of the utterances cannot be recognised.
        utterances: utterances for which `recognise` raises an error.

    Raises:
        StoreError, MemoryError: raised by `recognise`; no single utterance causes these errors.
    """
    failures: dict[str, str] = {}
    stack = [list(utterances)]
    while stack:
        suspects = stack.pop()
        try:
            if suspects:
                recognise(suspects)
        except Exception as error:
            if isinstance(error, StoreError) or is_out_of_memory(error):
                raise
            if len(suspects) == 1:
                failures[suspects[0].id] = one_line(f"{type(error).__name__}: {error}")
                continue
            half = len(suspects) // 2
            stack += [suspects[half:], suspects[:half]]
    return failures
