"""Fifty sentences in European languages, which show whether a tokenizer returns the texts that it is given."""

from collections.abc import Callable
from typing import NamedTuple

from asr.core.data.round_trip import changed_by
from asr.errors import InputError, shown
from asr.interfaces import Tokenizer

SENTENCES = (
    "the quick brown fox jumps over the lazy dog",
    "she sells sea shells by the sea shore",
    "it's ten o'clock, isn't it?",
    "In 2025 we sold 1,204 tickets.",
    "The train at 7:45 costs $12.50.",
    "Call 555-0199 before 5 p.m.",
    "Dr. Smith's e-mail is smith@example.org.",
    'Chapter 3, page 42: "Who\'s there?"',
    "They grew by 3.5% in the first half of 1998.",
    "He said: 'No!' - and left at once.",
    "wir fahren am Montag nach München",
    "Der Zug um 14:20 Uhr fällt aus.",
    "Größe 38 kostet 49,90 Euro.",
    "straße, süß, öl und übermut",
    "où est la gare, s'il vous plaît ?",
    "Ça coûte 15 euros et 20 centimes.",
    "l'été dernier, nous étions à Orléans",
    "¿Dónde está la estación de tren?",
    "El niño tiene 7 años y mañana cumple 8.",
    "mañana iremos a la montaña",
    "Perché non è venuto nessuno?",
    "La città ha 120000 abitanti.",
    "não há pão na padaria",
    "São 9 horas da manhã.",
    "het café is om 8 uur open",
    "De trein vertrekt over 10 minuten.",
    "zażółć gęślą jaźń",
    "W 1989 roku wszystko się zmieniło.",
    "příliš žluťoučký kůň úpěl ďábelské ódy",
    "Stojí to 300 korun.",
    "ďakujem, to stačí",
    "árvíztűrő tükörfúrógép",
    "A vonat 6 órakor indul.",
    "în 5 minute ajungem la gară",
    "Știu că plouă și bate vântul.",
    "smörgåsbord på fredag klockan 18",
    "blåbærsyltetøy koster 40 kroner",
    "rødgrød med fløde",
    "hyvää yötä, nähdään huomenna",
    "tere hommikust, õpetaja",
    "ačiū už pagalbą",
    "labrīt, kā jums klājas?",
    "съешь ещё этих мягких французских булок",
    "Зимой 2024 года приехало 15 человек.",
    "їжак під ялинкою",
    "утре ще вали дъжд",
    "ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "Φεύγει στις 9 από την Αθήνα.",
    "čađavi žižak i lješnjak",
    "danes je lep dan, čeprav dežuje",
)


class RoundTrip(NamedTuple):
    """Result of encoding and decoding the sentences.

    Args:
        covered: number of sentences whose characters the tokenizer covers.
        changed: pairs of a covered sentence and the different text that its tokens spell.
    """

    covered: int
    changed: list[tuple[str, str]]


def round_trip(tokenizer: Tokenizer, normalize: Callable[[str], str]) -> RoundTrip:
    """Encode and decode the normalised sentences that the tokenizer covers."""
    covered = [sentence for sentence in map(normalize, SENTENCES) if tokens_of(tokenizer, sentence) is not None]
    changes = [(sentence, changed_by(tokenizer, sentence)) for sentence in covered]
    return RoundTrip(len(covered), [(sentence, text) for sentence, text in changes if text is not None])


def tokens_of(tokenizer: Tokenizer, sentence: str) -> list[int] | None:
    """Return the tokens of a sentence; None if the tokenizer does not cover a character."""
    try:
        return tokenizer.encode(sentence)
    except InputError:
        return None


def described(result: RoundTrip) -> str:
    """Return a sentence on the texts that the tokenizer changes; "" if there are none."""
    if not result.changed:
        return ""
    sentence, text = result.changed[0]
    share = f"{len(result.changed)} of {result.covered} sentences in this model's characters"
    return f"The tokenizer changes {share}, such as {shown(sentence)}, which becomes {shown(text)}."
