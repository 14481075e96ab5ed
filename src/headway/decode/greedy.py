"""Greedy search: take the most probable token at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from headway.decode.protocol import Hypothesis, SearchModel, StateT, length_penalty

__all__ = ["greedy_search"]


@torch.inference_mode()
def greedy_search(
    model: SearchModel[StateT],
    source: Int[Tensor, "B S"],
    limits: Sequence[int],
    *,
    begin: int,
    end: int,
    alpha: float = 0.6,
    forbidden: Sequence[int] = (),
) -> list[Hypothesis]:
    """One hypothesis for each source. ``limits`` are their maximum lengths in tokens, the end symbol not counted.

    At its limit a hypothesis is ended by force, at the end symbol's probability. Finished sentences leave the batch.
    ``forbidden`` tokens are never chosen.
    """
    state = model.start(source)
    waiting = list(range(len(limits)))  # the sentence of each row
    tokens: list[list[int]] = [[] for _ in limits]
    totals = [0.0] * len(limits)
    newest = torch.full((len(limits),), begin, device=source.device)
    while waiting:
        log_probs = model.advance(state, newest).float().log_softmax(-1)
        log_probs[:, list(forbidden)] = -torch.inf
        step = len(tokens[waiting[0]])
        full = torch.tensor([limits[sentence] <= step for sentence in waiting], device=source.device)
        newest = log_probs.argmax(-1).masked_fill(full, end)
        gains = log_probs.gather(1, newest.unsqueeze(1)).squeeze(1)
        going = []
        for row, (sentence, token, gain) in enumerate(zip(waiting, newest.tolist(), gains.tolist(), strict=True)):
            totals[sentence] += gain
            if token != end:
                tokens[sentence].append(token)
                going.append(row)
        if len(going) < len(waiting):
            waiting = [waiting[row] for row in going]
            rows = torch.tensor(going, dtype=torch.long, device=source.device)
            newest = newest[rows]
            state.select(rows, rows)
    return [
        Hypothesis(tuple(ids), total, total / length_penalty(len(ids) + 1, alpha))
        for ids, total in zip(tokens, totals, strict=True)
    ]
