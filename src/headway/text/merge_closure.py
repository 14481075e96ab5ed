"""Find the tokens that byte-pair encoding needs to produce other tokens.

Merges never cross the borders of the resulting tokens. Byte-pair encoding therefore produces a token t of a text by the
same merges as it segments t by itself. A reduced vocabulary that contains the results of these merges segments a text
like the full vocabulary, provided that it contains all tokens of the segmentation: in each step, the first possible
merge of the full vocabulary is also the first possible merge of the reduced one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

RankFunction = Callable[[str, str], float | None]
"""Function that returns the rank of a merge (the lowest is applied first), or None if the pair cannot be merged."""


def symbols_of_merges(symbols: Sequence[str], rank: RankFunction) -> list[str]:
    """Return the symbols and all tokens into which byte-pair encoding merges them, in merge order."""
    current, made = list(symbols), list(symbols)
    while True:
        ranks = ((rank(*pair), place) for place, pair in enumerate(pairwise(current)))
        possible = [(value, place) for value, place in ranks if value is not None]
        if not possible:
            return made
        _, place = min(possible)
        current[place : place + 2] = ["".join(current[place : place + 2])]
        made.append(current[place])
