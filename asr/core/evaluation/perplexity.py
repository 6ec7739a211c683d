"""Perplexity of a loss."""

import math

MAX_LOSS = 80.0  # natural logarithm per word; perplexities up to exp(80) = 5.5e34 are exact, also in float32


def of_loss(loss: float) -> float:
    """Return the perplexity exp(loss), or a finite lower bound of it for a loss above `MAX_LOSS`.

    Texts without spaces have larger losses, because each line is a word. The bound grows with the loss, so that the
    best checkpoint has the lowest value.
    """
    return math.exp(min(loss, MAX_LOSS)) * (1 + math.log(max(loss, MAX_LOSS) / MAX_LOSS))


def written(value: float, digits: int = 1) -> str:
    """Write a perplexity with this number of decimals, or with an exponent if it is large."""
    most = of_loss(MAX_LOSS)
    if value >= most:
        return f"at least {most:.1e}"
    return f"{value:.{digits}f}" if value < 1e9 else f"{value:.{digits}e}"
