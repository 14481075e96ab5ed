"""Diverse beam search (Vijayakumar et al. 2016, "Diverse Beam Search", algorithm 1, with Hamming diversity).

The beam is cut into groups, which take a step one after the other. A token costs a group ``diversity`` for every time
that an earlier group chose it in the same step (the paper's lambda; section 4.2). What it costs stays in the scores
that the group goes on with.
"""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from headway.decode.extension import Extensions, Ranked, extend_best

__all__ = ["extend_diverse"]


def extend_diverse(
    scores: Float[Tensor, "B G W"], ranked: Ranked, count: int, diversity: float, width: int
) -> Extensions:
    """The ``count`` best extensions of each group, of which the first ``width`` are what it chose.

    Every row must rank ``count`` tokens more than all groups together choose, so that what is not ranked is worse than
    ``count`` tokens which cost nothing.
    """
    groups: list[Extensions] = []
    taken = ranked.tokens.new_empty(len(scores), 0)  # (B, N): what earlier groups chose
    for group in range(scores.size(1)):
        mine = Ranked(*(x[:, group : group + 1] for x in (ranked.gains, ranked.own, ranked.tokens)))
        times = (mine.tokens.unsqueeze(-1) == taken.view(len(taken), 1, 1, 1, -1)).sum(-1)
        found = extend_best(
            scores[:, group : group + 1], dataclasses.replace(mine, gains=mine.gains - diversity * times), count
        )
        chosen = found.tokens.masked_fill(found.scores == -torch.inf, -1)[:, 0, :width]
        taken = torch.cat([taken, chosen], dim=1)
        groups.append(found)
    return Extensions(
        *(torch.cat([getattr(found, name) for found in groups], 1) for name in ("scores", "parents", "tokens", "own"))
    )
