"""Characters as tokens."""

from types import MappingProxyType


class Letters:
    """Each character of the training texts is a token; 0 is the blank."""

    piece_scores = MappingProxyType({})
    takes_words = False

    def __init__(self):
        self.pieces = [""]

    @property
    def vocab_size(self):
        return len(self.pieces)

    @property
    def names(self):
        return self.pieces

    def fit(self, texts):
        self.pieces = ["", *sorted({letter for text in texts for letter in text})]

    def encode(self, text):
        return [self.pieces.index(letter) for letter in text if letter in self.pieces]

    def decode(self, tokens):
        return "".join(self.pieces[token] for token in tokens)

    def files(self):
        return {"letters.txt": "".join(self.pieces).encode()}

    def load(self, files):
        self.pieces = ["", *files["letters.txt"].decode()]

    def extend(self, pieces):
        self.pieces = [*self.pieces, *pieces]
