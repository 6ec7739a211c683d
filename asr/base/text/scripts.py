"""Scripts with rules of their own, as character classes for regular expressions."""

import re

HEBREW = "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u05d0-\u05ea\u05ef-\u05f2"  # letters and marks
# Scripts in which a zero width joiner or non-joiner changes letters: Arabic to Mandaic, those of India, Myanmar, Khmer,
# Mongolian, and the smaller ones of South Asia and Africa.
JOINING = (
    "\u0600-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u180d\u180f-\u18af\u1900-\u1c4f\u1cd0-\u1cff\ua800-\uabff"
    "\U00010ac0-\U00011fff\U0001e900-\U0001e95f"
)
VIRAMA = "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca"  # a joiner after one changes even a last letter
# Scripts written without spaces between words: Thai, Lao, Myanmar, Khmer, the Tai scripts, kana, and Han.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u3005-\u3007\u3031-\u3035\u3040-\u30fa"
    "\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f"
    "\U0001aff0-\U0001b16f\U00020000-\U000323af"
)
# A note on results for which `without_spaces` is true.
NO_WORDS = (
    "The references are in a script that is written without spaces between words, so the WER counts whole phrases and "
    "means nothing: compare the CER."
)

_UNSPACED_LETTER, _LETTER = re.compile(f"[{UNSPACED}]"), re.compile(r"[^\W\d_]")


def without_spaces(text: str) -> bool:
    """Return whether more than half of the letters belong to scripts that are written without spaces."""
    unspaced = sum(map(str.isalpha, _UNSPACED_LETTER.findall(text)))
    return 2 * unspaced > len(_LETTER.findall(text))
