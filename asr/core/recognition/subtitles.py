"""Subtitles: words are grouped into cues that can be read, as broadcasters require.

*Source*: the limits of the BBC's subtitle guidelines and of Netflix's timed text style guide for English: at most two
lines of 42 characters, one to seven seconds, 17 characters a second, and breaks where a clause or the voice pauses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from asr.core.recognition.transcript import Transcript, Word

MAX_LINES = 2
MAX_LINE_CHARACTERS = 42  # a longer word gets a separate line, because words are not split
MAX_CUE_MILLISECONDS = 7000
MIN_CUE_MILLISECONDS = 1000  # unless the next cue begins earlier
MAX_PAUSE_MILLISECONDS = 800  # a longer pause begins a new cue
CHARACTERS_A_SECOND = 17  # that can be read; a cue remains for this time, unless the next cue begins earlier
PAUSE_MILLISECONDS = 400  # a break at a pause as long as this, or at the end of a sentence, costs nothing
# Last characters of words; the escapes are an ellipsis, dashes, and the marks of Chinese and Japanese.
SENTENCE_ENDS = tuple(".?!\u2026\u3002\uff1f\uff01")
CLAUSE_ENDS = tuple(",;:\u2013\u2014\uff0c\u3001\uff1b\uff1a")
# Costs of a cue, of a break within a phrase, and of each second that a cue is too short to be seen or to be read. On 75
# minutes of speech, half or twice of each changes the share of cues that break a rule by at most four points.
CUE_COST, BREAK_COST, SECOND_COST = 1.0, 4.0, 4.0
UNEVEN_COST = 1 / MAX_LINE_CHARACTERS  # of each character by which the two lines of a cue differ in length


@dataclass(frozen=True, slots=True)
class Cue:
    """Words that a subtitle shows together.

    Args:
        words: words of the transcript, in order.
        lines: the words, broken into lines.
        start: when the cue appears, in milliseconds.
        end: when it disappears, in milliseconds.
    """

    words: Sequence[Word]
    lines: list[str]
    start: int
    end: int


def milliseconds(seconds: float) -> int:
    """Round a time to milliseconds."""
    return round(seconds * 1000)


def side_by_side(words: Sequence[Word]) -> list[tuple[int, int]]:
    """Adjust the times of words so that words do not overlap and each lasts at least a millisecond.

    A word ends no later than the next word begins. Words that begin together get equal shares of the time until the
    last of them ends or the next word begins, whichever is earlier. If this time is shorter than one millisecond per
    word, it is extended, and the following words start later.

    Returns:
        Start and end of each word, in milliseconds.
    """
    starts = [milliseconds(word.start) for word in words]
    intervals: list[tuple[int, int]] = []
    floor = 0
    while len(intervals) < len(words):
        first = after = len(intervals)
        start = max(starts[first], floor)
        while after < len(words) and starts[after] <= start:
            after += 1
        count = after - first
        end = max(milliseconds(word.end) for word in words[first:after])
        if after < len(words):
            end = min(end, starts[after])
        floor = max(end, start + count)
        bounds = [start + (floor - start) * number // count for number in range(count + 1)]
        intervals += pairwise(bounds)
    return intervals


def cues(transcript: Transcript) -> list[Cue]:
    """Group the words into cues with the smallest sum of costs, within the limits at the top of this file."""
    return Grouping(transcript).cues()


class Grouping:
    """The possible cues of a transcript and their costs."""

    def __init__(self, transcript: Transcript) -> None:
        self.words = transcript.words
        self.times = side_by_side(self.words)
        self.duration = milliseconds(transcript.duration)
        self.breaks = [0.0, *(self._break_cost(number) for number in range(1, len(self.words)))]

    def cues(self) -> list[Cue]:
        """Return the best cues, found by dynamic programming over the number of words before a cue."""
        costs, firsts = (
            [0.0],
            [0],
        )  # for each number of words: cost of the best cues, and first word of the last of them
        for after in range(1, len(self.words) + 1):
            first = after - 1
            best, best_first = costs[first] + self.cost(first, after), first
            while first > 0 and self.fits(first - 1, after):
                first -= 1
                if (cost := costs[first] + self.cost(first, after)) < best:
                    best, best_first = cost, first
            costs.append(best)
            firsts.append(best_first)
        bounds = [len(self.words)]
        while bounds[-1]:
            bounds.append(firsts[bounds[-1]])
        return [self._cue(first, after) for first, after in pairwise(reversed(bounds))]

    def fits(self, first: int, after: int) -> bool:
        """Return whether words from `first` up to `after` may be one cue; if not, no earlier `first` may be, either."""
        return (
            self.times[first + 1][0] - self.times[first][1] <= MAX_PAUSE_MILLISECONDS
            and self.times[after - 1][1] - self.times[first][0] <= MAX_CUE_MILLISECONDS
            and len(filled_lines(self.words[first:after])) <= MAX_LINES
        )

    def cost(self, first: int, after: int) -> float:
        """Return the cost of a cue of the words from `first` up to `after`, and of the break before it."""
        start, end = self._shown(first, after)
        seconds = (end - start) / 1000
        unread = max(0.0, self._characters(first, after) / CHARACTERS_A_SECOND - seconds)
        unseen = max(0.0, MIN_CUE_MILLISECONDS / 1000 - seconds)
        return CUE_COST + self.breaks[first] + SECOND_COST * max(unread, unseen)

    def _break_cost(self, number: int) -> float:
        """Return the cost of a break before a word."""
        text, pause = self.words[number - 1].text, self.times[number][0] - self.times[number - 1][1]
        if text.endswith(SENTENCE_ENDS):
            return 0.0
        share = 1 - min(1.0, pause / PAUSE_MILLISECONDS)
        return BREAK_COST * (min(share, 0.25) if text.endswith(CLAUSE_ENDS) else share)

    def _characters(self, first: int, after: int) -> int:
        return sum(len(word.text) for word in self.words[first:after]) + after - first - 1

    def _shown(self, first: int, after: int) -> tuple[int, int]:
        """Return when a cue appears and disappears."""
        start, end = self.times[first][0], self.times[after - 1][1]
        room = self.times[after][0] if after < len(self.words) else max(self.duration, end)
        wanted = max(MIN_CUE_MILLISECONDS, round(1000 * self._characters(first, after) / CHARACTERS_A_SECOND))
        end = max(end, min(start + wanted, room))
        return start, min(end, start + MAX_CUE_MILLISECONDS)  # a single word can exceed this maximum

    def _cue(self, first: int, after: int) -> Cue:
        words = self.words[first:after]
        return Cue(words, self._lines(first, after), *self._shown(first, after))

    def _lines(self, first: int, after: int) -> list[str]:
        """Break the words of a cue into lines: into two of similar lengths, or where the voice pauses."""
        words = self.words[first:after]
        lines = filled_lines(words)
        if len(lines) != MAX_LINES or max(map(len, lines)) > MAX_LINE_CHARACTERS:
            return lines
        choices = []
        for number in range(1, len(words)):
            upper, lower = (" ".join(word.text for word in part) for part in (words[:number], words[number:]))
            if max(len(upper), len(lower)) <= MAX_LINE_CHARACTERS:
                cost = self.breaks[first + number] + UNEVEN_COST * abs(len(upper) - len(lower))
                choices.append((cost, [upper, lower]))
        return min(choices)[1]


def filled_lines(words: Sequence[Word]) -> list[str]:
    """Break words into lines of at most MAX_LINE_CHARACTERS, filling each line."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word.text) <= MAX_LINE_CHARACTERS:
            lines[-1] += " " + word.text
        else:
            lines.append(word.text)
    return lines
