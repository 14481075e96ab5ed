"""Extend the hypotheses of a beam by one token: plain and diverse beam search.

B sequences have G groups of W hypotheses each; groups are searched separately. Sampling and constraints make their own
choice from the same data (:mod:`headway.decode.sampling`, :mod:`headway.decode.constraints`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.decode.topk import topk_ordered

__all__ = ["Extensions", "TokenScores", "extend_best", "extend_diverse"]


@dataclass(frozen=True)
class TokenScores:
    """The tokens to choose from after each hypothesis.

    ``gains`` are added to the hypothesis's score; ``log_probs`` are the model's own log-probabilities. They differ if
    rules change the ranking.
    """

    gains: Float[Tensor, "B G W C"]
    log_probs: Float[Tensor, "B G W C"]
    tokens: Int[Tensor, "B G W C"]

    def only_eos(self, eos: int, log_probs: Float[Tensor, "B G W"], full: Bool[Tensor, " B"]) -> TokenScores:
        """Return these scores, except that ``full`` sequences can only end, at the given log-probabilities of EOS."""
        full = full.view(-1, 1, 1)
        gains, own = (x.masked_fill(full.unsqueeze(3), -torch.inf) for x in (self.gains, self.log_probs))
        tokens = self.tokens.clone()
        for values in (gains, own):
            values[..., 0] = torch.where(full, log_probs, values[..., 0])
        tokens[..., 0].masked_fill_(full, eos)
        return TokenScores(gains, own, tokens)


@dataclass(frozen=True)
class Extensions:
    """The chosen extensions of each group, best first.

    Attributes:
        scores: Total score; -inf marks an empty place.
        parents: The index in its group of the hypothesis that is extended.
        tokens: The new token.
        log_probs: The model's own log-probability of the token.
        nodes: The state of the constraints after the token; None if no sequence has constraints.
    """

    scores: Float[Tensor, "B G C"]
    parents: Int[Tensor, "B G C"]
    tokens: Int[Tensor, "B G C"]
    log_probs: Float[Tensor, "B G C"]
    nodes: Int[Tensor, "B G C"] | None = None

    def best(self, count: int) -> Extensions:
        """Return the ``count`` best of them."""
        scores, order = topk_ordered(self.scores, count)
        parents, tokens, log_probs = (x.gather(2, order) for x in (self.parents, self.tokens, self.log_probs))
        return Extensions(
            scores, parents, tokens, log_probs, None if self.nodes is None else self.nodes.gather(2, order)
        )


def extend_best(scores: Float[Tensor, "B G W"], candidates: TokenScores, count: int) -> Extensions:
    """Return the ``count`` best extensions of each group; if there are fewer, the rest have score -inf."""
    width = candidates.tokens.size(3)
    totals, order = topk_ordered(
        (scores.unsqueeze(3) + candidates.gains).flatten(2), min(count, scores.size(2) * width)
    )
    if (missing := count - order.size(2)) > 0:
        totals, order = F.pad(totals, (0, missing), value=-torch.inf), F.pad(order, (0, missing))
    return Extensions(
        totals,
        order // width,
        candidates.tokens.flatten(2).gather(2, order),
        candidates.log_probs.flatten(2).gather(2, order),
    )


def extend_diverse(
    scores: Float[Tensor, "B G W"], candidates: TokenScores, count: int, diversity: float, width: int
) -> Extensions:
    """Return the ``count`` best extensions of each group, of which the first ``width`` are what the group chose.

    Diverse beam search (Vijayakumar et al. 2016, algorithm 1, with Hamming diversity): the groups take the step one
    after the other, and a token costs a group ``diversity`` (the paper's lambda) for every time that an earlier group
    chose it in this step. The cost stays in the group's scores.

    Each row must have ``count`` candidates more than all groups choose together, so that what is not among the
    candidates is worse than ``count`` tokens without a cost.
    """
    groups: list[Extensions] = []
    taken = candidates.tokens.new_empty(len(scores), 0)  # (B, N): the choices of earlier groups
    for group in range(scores.size(1)):
        of_group = (x[:, group : group + 1] for x in (candidates.gains, candidates.log_probs, candidates.tokens))
        own = TokenScores(*of_group)
        times = (own.tokens.unsqueeze(-1) == taken.view(len(taken), 1, 1, 1, -1)).sum(-1)
        own = dataclasses.replace(own, gains=own.gains - diversity * times)
        found = extend_best(scores[:, group : group + 1], own, count)
        chosen = found.tokens.masked_fill(found.scores == -torch.inf, -1)[:, 0, :width]
        taken = torch.cat([taken, chosen], dim=1)
        groups.append(found)
    names = ("scores", "parents", "tokens", "log_probs")
    return Extensions(*(torch.cat([getattr(found, name) for found in groups], 1) for name in names))
