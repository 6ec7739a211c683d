"""Estimate an n-gram language model with modified Kneser-Ney smoothing from the ids of a text; write it as ARPA.

A text of any size is counted in bounded memory: blocks of the text become sorted runs in an unnamed temporary file,
which the system deletes even after a crash; then the runs are merged. The distinct n-grams are in memory.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
OnProgress = Callable[[int], object]

SPECIAL = ("<unk>", "<s>", "</s>")
UNK, BOS, EOS = range(3)  # ids of SPECIAL; the ids of words follow
FALLBACK = (0.5, 1.0, 1.5)  # discounts if counts of counts yield none, as in lmplz --discount_fallback
MEMORY = 1 << 30  # bytes
_BYTES_PER_VALUE = 40  # peak memory while counting, for each int64 of a window
_LINES = 1 << 16  # number of lines to write at once
_NO_PROBABILITY = -99.0  # log10 of zero in ARPA files, for <s>, which is never predicted


@dataclass(frozen=True, slots=True)
class NGrams:
    """The n-grams of one order, sorted by their words' ids.

    Args:
        keys: (N,) row of the n-gram's context in the next lower order, times vocab_size, plus the id of its last word.
            For order 1: the ids.
        log_probs: (N,) log10 of the probabilities.
        backoffs: (N,) log10 of the back-off weights; 0 where the n-gram is not a context.
        kept: (N,) False for pruned n-grams.
        discounts: subtracted from counts of 1, of 2, and of 3 or more.
        fallback: whether the discounts are FALLBACK because the counts of counts yield none.
    """

    keys: Array
    log_probs: Array
    backoffs: Array
    kept: Array
    discounts: tuple[float, ...]
    fallback: bool


def estimate(
    ids: Array,
    vocab_size: int,
    order: int,
    *,
    thresholds: Sequence[int],
    unknown_words: bool = False,
    memory: int = MEMORY,
    on_progress: OnProgress = lambda count: None,
) -> list[NGrams]:
    """Estimate an interpolated model with modified Kneser-Ney smoothing.

    *Source*: Chen and Goodman, "An empirical study of smoothing techniques for language modeling", 1998, section 4.1.6
    and equation 26. As in KenLM's lmplz (Heafield et al. 2013): n-grams that begin with <s> use their plain counts in
    lower orders too, because no word precedes them; unigrams are interpolated with the uniform distribution over all
    words, </s> and <unk>; the probability of pruned n-grams goes to the backoff of their context.

    Args:
        ids: (I,) all sentences, concatenated, each as BOS, words, EOS; may be a memory map.
        vocab_size: greater than each id; every id from EOS + 1 should occur.
        order: length of the longest n-grams.
        thresholds: (order,) n-grams with at most this count are pruned. The first threshold is 0 and the others do
            not decrease, so that contexts and suffixes of remaining n-grams also remain.
        unknown_words: whether <unk> represents all words that are not in the text. If so, <unk> alone receives the
            probability mass that discounting takes from the unigrams (KenLM's --interpolate_unigrams 0). Otherwise
            this mass is distributed uniformly over all words including <unk>.
        memory: bytes for counting.
        on_progress: called with the number of ids counted since the last call.

    Returns:
        The n-grams of order 1, 2, and so on.
    """
    bits = max(vocab_size - 1, 1).bit_length()
    with tempfile.TemporaryFile(prefix="asr-ngram-") as file:
        blocks = _count(ids, order, bits, memory, file, on_progress)
        keys, counts = _tables(blocks, order, vocab_size)
    ends = suffixes(keys, vocab_size)
    model: list[NGrams] = []
    uniform = 1 / (vocab_size - 1)  # <s> is never predicted
    lower = np.where(np.arange(vocab_size) == UNK, 1.0, 0.0) if unknown_words else np.full(vocab_size, uniform)
    for number, adjusted in enumerate(_adjusted(keys, counts, ends, vocab_size)):
        discounts = _discounts(adjusted)
        if unknown_words and number == 0 and discounts and discounts[-1] >= 3:
            discounts = None  # a discount of 3 or more would leave a word of count 3 without probability
        is_kept = np.ones(len(adjusted), bool) if number == 0 else counts[number] > thresholds[number]
        taken = np.where(
            is_kept, np.array([0, *(discounts or FALLBACK)])[np.minimum(adjusted, 3).astype(np.int8)], adjusted
        )
        contexts = keys[number] // vocab_size
        totals = np.bincount(contexts, adjusted, len(lower))
        weights = np.divide(np.bincount(contexts, taken, len(lower)), totals, out=np.ones(len(lower)), where=totals > 0)
        if model:
            np.log10(weights, out=model[-1].backoffs)
        adjusted = adjusted - taken
        adjusted /= totals[contexts]
        adjusted += weights[contexts] * (lower[ends[number]] if number else lower)
        lower = adjusted
        with np.errstate(divide="ignore"):  # <s> has probability 0 here; its log-probability is set below
            log_probs = np.log10(lower)
        model.append(
            NGrams(keys[number], log_probs, np.zeros(len(is_kept)), is_kept, discounts or FALLBACK, not discounts)
        )
    model[0].log_probs[BOS] = _NO_PROBABILITY
    return model


# Counting. A window is `order` consecutive ids, packed into columns of int64. After EOS, all ids of a window are EOS.


def _count(
    ids: Array, order: int, bits: int, memory: int, file: BinaryIO, on_progress: OnProgress
) -> Iterator[tuple[Array, Array]]:
    """Count windows; yield them sorted, in blocks: ids (N, order) and the count of each window (N,)."""
    width = -(-order // (63 // bits)) + 1  # number of columns: the packed ids, and the count
    rows = max(memory // (_BYTES_PER_VALUE * (width + 1)), 2)
    ends = [0]
    for start in range(0, len(ids), rows):
        piece = np.asarray(ids[start : start + rows + order - 1], np.int64)
        windows = _windows(piece, min(rows, len(ids) - start), order, bits)
        file.write(_distinct(windows, None).data)
        ends.append(file.tell() // (8 * width))
        on_progress(len(windows))
    file.flush()
    counted = np.memmap(file, np.int64, "r", shape=(ends[-1], width))
    runs = [counted[start:end] for start, end in pairwise(ends)]
    for block in _merge(runs, max(rows // (order + len(runs)), 1)):
        yield _unpack(block[:, :-1], order, bits), block[:, -1]


def _windows(ids: Array, number: int, order: int, bits: int) -> Array:
    """Pack the windows at the first `number` positions: (number, columns)."""
    padded = np.concatenate([ids, np.full(order, EOS)])
    word = padded[:number]
    columns = []
    for distance in range(order):
        if distance:
            word = np.where(word == EOS, EOS, padded[distance : distance + number])
        if distance % (63 // bits) == 0:
            columns.append(word.copy())
        else:
            columns[-1] <<= bits
            columns[-1] |= word
    return np.stack(columns, axis=1)


def _unpack(windows: Array, order: int, bits: int) -> Array:
    """Return the ids (N, order) of packed windows."""
    words = np.empty((len(windows), order), np.int64)
    for column, packed in enumerate(np.array_split(np.arange(order), range(63 // bits, order, 63 // bits))):
        for word in packed:
            words[:, word] = (windows[:, column] >> (bits * (packed[-1] - word))) & ((1 << bits) - 1)
    return words


def _distinct(windows: Array, counts: Array | None) -> Array:
    """Sort windows, and sum the counts (None: all 1) of equal windows: (N, columns + 1)."""
    if counts is None and windows.shape[1] == 1:
        windows = np.sort(windows, axis=0)
    else:
        by_window = np.lexsort(windows.T[::-1])
        windows, counts = windows[by_window], None if counts is None else counts[by_window]
    first = np.flatnonzero(np.concatenate([[True], (windows[1:] != windows[:-1]).any(axis=1)]))
    sums = np.diff(first, append=len(windows)) if counts is None else np.add.reduceat(counts, first)
    return np.concatenate([windows[first], sums[:, None]], axis=1)


def _merge(runs: Sequence[Array], rows: int) -> Iterator[Array]:
    """Merge sorted runs (N, columns + 1), with at most `rows` rows of each in memory at once."""
    while runs:
        heads = [run[:rows] for run in runs]
        # All remaining rows of a run are greater than the last row of its head.
        whole = [head for head, run in zip(heads, runs, strict=True) if len(head) < len(run)]
        bound = min((tuple(head[-1, :-1]) for head in whole), default=None)
        numbers = [len(head) if bound is None else _not_above(head[:, :-1], bound) for head in heads]
        taken = np.concatenate([head[:number] for head, number in zip(heads, numbers, strict=True)])
        yield taken if len(runs) == 1 else _distinct(taken[:, :-1], taken[:, -1])
        runs = [run[number:] for run, number in zip(runs, numbers, strict=True) if number < len(run)]


def _not_above(windows: Array, bound: Sequence[int]) -> int:
    """Return the number of sorted windows that are at most `bound`."""
    start, stop = 0, len(windows)
    for column, limit in enumerate(bound):
        inside = windows[start:stop, column]
        start, stop = (start + int(np.searchsorted(inside, limit, side)) for side in ("left", "right"))
    return stop


# Conversion of windows to n-grams. Element n - 1 of each list belongs to order n.


def _tables(blocks: Iterator[tuple[Array, Array]], order: int, vocab_size: int) -> tuple[list[Array], list[Array]]:
    """Return keys (as in `NGrams`) and counts of the n-grams of each order."""
    unigrams = np.zeros(vocab_size)
    keys: list[list[Array]] = [[] for _ in range(order)]
    counts: list[list[Array]] = [[] for _ in range(order)]
    unfinished = np.zeros(order)  # counts of the last n-grams of a block, which may also be in the next block
    sizes = [0] * order
    last = np.full((1, order), -1)
    for words, number in blocks:
        new = np.logical_or.accumulate(words != np.concatenate([last, words[:-1]]), axis=1)
        last = words[-1:]
        rows = words[:, 0]  # of each window's n-gram of the current order
        np.add.at(unigrams, rows, number)
        for n in range(1, order):
            real = words[:, n - 1] != EOS  # no word follows EOS
            first = new[:, n] & real
            keys[n].append(rows[first] * vocab_size + words[first, n])
            begun = np.cumsum(first)
            sums = np.bincount(begun[real], number[real], len(keys[n][-1]) + 1)
            sums[0] += unfinished[n]
            counts[n].append(sums[:-1])
            unfinished[n] = sums[-1]
            rows = sizes[n] + begun - 1
            sizes[n] += len(keys[n][-1])
    joined = [np.concatenate(parts) for parts in keys[1:]]
    summed = [np.concatenate([*parts, unfinished[n : n + 1]])[1:] for n, parts in enumerate(counts) if n]
    return [np.arange(vocab_size), *joined], [unigrams, *summed]


def suffixes(keys: Sequence[Array], vocab_size: int) -> list[Array]:
    """Return the row of each n-gram's suffix (without its first word) in the next lower order; 0 for unigrams."""
    ends = [np.zeros(vocab_size, np.int64)]
    for lower, own in pairwise(keys):
        contexts, words = np.divmod(own, vocab_size)
        ends.append(np.searchsorted(lower, ends[-1][contexts] * vocab_size + words))
    return ends


def _adjusted(
    keys: Sequence[Array], counts: Sequence[Array], ends: Sequence[Array], vocab_size: int
) -> Iterator[Array]:
    """Yield Kneser-Ney's counts of each order.

    For n-grams of the highest order, and n-grams that begin with <s>, the count is the frequency. For other n-grams, it
    is the number of different words that precede them. The unigram <s> is never predicted, so its count is 0.
    """
    start, stop = BOS, BOS + 1  # the n-grams that begin with <s>
    for n in range(len(keys)):
        if n + 1 < len(keys):
            adjusted = np.bincount(ends[n + 1], minlength=len(keys[n])).astype(float)
            adjusted[start:stop] = counts[n][start:stop]
            start, stop = np.searchsorted(keys[n + 1], [start * vocab_size, stop * vocab_size])
        else:
            adjusted = counts[n]
        yield adjusted if n else np.where(np.arange(vocab_size) == BOS, 0, adjusted)


def _discounts(adjusted: Array) -> tuple[float, ...] | None:
    """Return Chen and Goodman's discounts for counts of 1, of 2, and of 3 or more; None where they are undefined."""
    n1, n2, n3, n4 = (float(np.count_nonzero(adjusted == count)) for count in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return None
    y = n1 / (n1 + 2 * n2)
    discounts = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    return discounts if min(discounts) > 0 else None


# Writing of ARPA files.


def write_arpa(
    model: Sequence[NGrams], words: Sequence[str], file: BinaryIO, on_progress: OnProgress = lambda count: None
) -> None:
    """Write a model as an ARPA file.

    Args:
        model: from `estimate`.
        words: words by id, SPECIAL first.
        file: output file.
        on_progress: called with the number of n-grams written since the last call.
    """
    spellings = np.array(words, object)
    header = [f"ngram {n}={np.count_nonzero(grams.kept)}" for n, grams in enumerate(model, start=1)]
    file.write("\n".join(["\\data\\", *header, ""]).encode())
    for n, grams in enumerate(model, start=1):
        highest = n == len(model)
        line = "%.6f\t" + " ".join(["%s"] * n) + ("" if highest else "\t%.6f") + "\n"
        file.write(f"\n\\{n}-grams:\n".encode())
        all_rows = np.flatnonzero(grams.kept)
        for start in range(0, len(all_rows), _LINES):
            rows = all_rows[start : start + _LINES]
            columns = [grams.log_probs[rows], *_spell(model[:n], rows, spellings)]
            columns += [] if highest else [grams.backoffs[rows]]
            lines = map(line.__mod__, zip(*(column.tolist() for column in columns), strict=True))
            file.write("".join(lines).encode())
            on_progress(len(rows))
    file.write(b"\n\\end\\\n")


def _spell(model: Sequence[NGrams], rows: Array, spellings: Array) -> list[Array]:
    """Return the words of the given n-grams of the highest order: all first words, all second words, and so on."""
    columns = []
    for grams in reversed(model):
        rows, words = np.divmod(grams.keys[rows], len(spellings))
        columns.append(spellings[words])
    return columns[::-1]
