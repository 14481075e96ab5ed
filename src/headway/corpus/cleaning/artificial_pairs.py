"""Bad pairs made from good ones: what the scores of a corpus are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_KEPT = (0.4, 0.7)  # share of the words of a truncated target

Pairs = list[tuple[str, str]]


def random_pairs(pairs: Sequence[tuple[str, str]]) -> Pairs:
    """Return the sources with other targets, of nearly the same lengths."""
    order = np.argsort([len(target) for _, target in pairs], kind="stable")
    others = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))
    return [(source, pairs[others[number]][1]) for number, (source, _) in enumerate(pairs)]


def truncated_pairs(pairs: Sequence[tuple[str, str]], seed: int = 1) -> Pairs:
    """Return pairs with targets, and with sources, whose last words are missing. Very short texts are left out."""
    shares = np.random.default_rng(seed).uniform(*_KEPT, size=len(pairs))
    truncated: Pairs = []
    for (source, target), share in zip(pairs, shares.tolist(), strict=True):
        for side, words in enumerate((source.split(), target.split())):
            kept = " ".join(words[: round(share * len(words))])
            if kept and len(words) > 2:
                truncated.append((kept, target) if side == 0 else (source, kept))
    return truncated
