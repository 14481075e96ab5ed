"""The tokens that byte-pair encoding needs to produce other tokens.

Merges never cross the border of a token of the result. So byte-pair encoding makes the token t of a text from its
symbols by the same merges as from the text of t alone, and a vocabulary that has the results of these merges segments a
text in the same way as the whole vocabulary, if all tokens of that segmentation are in it: in each step, the first
possible merge of the whole vocabulary is also the first of those that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

Rank = Callable[[str, str], float | None]
"""Returns the rank of a merge, the lowest first, or None if the pair cannot be merged."""


def symbols_of_merges(symbols: Sequence[str], rank: Rank) -> list[str]:
    """Return the symbols, and all tokens that byte-pair encoding merges them into, in the order of the merges."""
    current, made = list(symbols), list(symbols)
    while True:
        ranks = ((rank(*pair), place) for place, pair in enumerate(pairwise(current)))
        possible = [(value, place) for value, place in ranks if value is not None]
        if not possible:
            return made
        _, place = min(possible)
        current[place : place + 2] = ["".join(current[place : place + 2])]
        made.append(current[place])
