"""Which tokens translate which, learned from parallel text: IBM model 1 (Brown et al. 1993, section 4.1).

Every target token comes from one source token of its sentence, or from none, each equally likely beforehand; t(e | f)
is the probability that token f becomes e. Expectation maximisation finds the table under which the text is most
probable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from jaxtyping import Int32

__all__ = ["translation_table"]

_MOST_PAIRS = 32_000_000  # of tokens, which take 2 GB; a text that has more is read in part
_LONGEST = 250_000  # pairs of a sentence; what has more (500 tokens and 500) is no sentence
_ITERATIONS = 5  # after which the table hardly changes any more

Ids = npt.NDArray[np.int64]


def translation_table(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], source_size: int, target_size: int, each: int
) -> Int32[npt.NDArray[np.int32], "F C"]:
    """For each token of the source vocabulary the ``each`` most probable target tokens, best first, and zeros after.

    Args:
        sources: A parallel text's tokens, without those that begin, end or fill. Of a long text some sentences are
            read, evenly chosen.
        targets: The same of its translations.
        source_size: Tokens in the source vocabulary.
        target_size: Tokens in that of the targets.
        each: The table's width.
    """
    sizes = np.array([(len(source) + 1) * len(target) for source, target in zip(sources, targets, strict=True)])
    short = np.flatnonzero(sizes <= _LONGEST)
    part = min(1.0, _MOST_PAIRS / max(1, int(sizes[short].sum())))
    chosen = short[np.linspace(0, max(0, len(short) - 1), int(len(short) * part)).astype(int)]
    nothing = [source_size]  # the empty word
    keys = [
        np.add.outer(np.array(targets[at], dtype=np.int64), np.array([*sources[at], *nothing]) * target_size).ravel()
        for at in chosen
    ]
    if not keys:
        return np.zeros((source_size, each), dtype=np.int32)
    choices = np.concatenate([np.full(len(targets[at]), len(sources[at]) + 1) for at in chosen])
    place = np.repeat(np.arange(len(choices), dtype=np.int32), choices)  # the target token that each pair explains
    pairs, pair = np.unique(np.concatenate(keys), return_inverse=True)
    del keys
    origin = pairs // target_size
    probability = np.ones(len(pairs))
    for _ in range(_ITERATIONS):
        share = probability[pair]
        share /= np.bincount(place, share)[place]
        counts = np.bincount(pair, share, minlength=len(pairs))
        probability = counts / np.bincount(origin, counts)[origin]
    return _best_of_each(pairs % target_size, origin, probability, source_size, each)


def _best_of_each(
    tokens: Ids, origin: Ids, probability: npt.NDArray[np.float64], source_size: int, each: int
) -> Int32[npt.NDArray[np.int32], "F C"]:
    order = np.lexsort((tokens, -probability, origin))
    tokens, origin = tokens[order], origin[order]
    rank = np.arange(len(origin)) - np.searchsorted(origin, origin)
    kept = (rank < each) & (origin < source_size)
    table = np.zeros((source_size, each), dtype=np.int32)
    table[origin[kept], rank[kept]] = tokens[kept]
    return table
