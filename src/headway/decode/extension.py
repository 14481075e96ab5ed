"""How the prefixes of a step are extended: the data that the ways to choose share, and the plain beam's choice."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.decode.ranking import top

__all__ = ["Extensions", "Ranked", "extend_best"]


@dataclass(frozen=True)
class Ranked:
    """The tokens to choose from after each of W prefixes in each of G groups of B sentences.

    ``gains`` are what a token adds to the prefix's score, ``own`` the model's own log-probabilities; they differ where
    rules rank otherwise than the model does.
    """

    gains: Float[Tensor, "B G W C"]
    own: Float[Tensor, "B G W C"]
    tokens: Int[Tensor, "B G W C"]

    def only(self, end: int, log_probs: Float[Tensor, "B G W"], full: Bool[Tensor, " B"]) -> Ranked:
        """The same, but that the ``full`` sentences can only end, at these log-probabilities."""
        full = full.view(-1, 1, 1)
        gains, own = (x.masked_fill(full.unsqueeze(3), -torch.inf) for x in (self.gains, self.own))
        tokens = self.tokens.clone()
        for values in (gains, own):
            values[..., 0] = torch.where(full, log_probs, values[..., 0])
        tokens[..., 0].masked_fill_(full, end)
        return Ranked(gains, own, tokens)


@dataclass(frozen=True)
class Extensions:
    """The chosen extensions of each group, best first: scores (-inf: none), the prefix of the group that each extends,
    its token, and the model's own log-probability of that.

    ``nodes`` tell how far each is with its sentence's constraints; None where no sentence has any.
    """

    scores: Float[Tensor, "B G C"]
    parents: Int[Tensor, "B G C"]
    tokens: Int[Tensor, "B G C"]
    own: Float[Tensor, "B G C"]
    nodes: Int[Tensor, "B G C"] | None = None

    def with_scores(self, scores: Float[Tensor, "B G C"]) -> Extensions:
        """The same with other scores."""
        return dataclasses.replace(self, scores=scores)

    def best(self, count: int) -> Extensions:
        """The ``count`` best of them."""
        scores, places = top(self.scores, count)
        parents, tokens, own = (x.gather(2, places) for x in (self.parents, self.tokens, self.own))
        return Extensions(scores, parents, tokens, own, None if self.nodes is None else self.nodes.gather(2, places))


def extend_best(scores: Float[Tensor, "B G W"], ranked: Ranked, count: int) -> Extensions:
    """The ``count`` best extensions of each group; places that none is left for have score -inf."""
    width = ranked.tokens.size(3)
    totals, places = top((scores.unsqueeze(3) + ranked.gains).flatten(2), min(count, scores.size(2) * width))
    if (missing := count - places.size(2)) > 0:
        totals, places = F.pad(totals, (0, missing), value=-torch.inf), F.pad(places, (0, missing))
    return Extensions(
        totals,
        places // width,
        ranked.tokens.flatten(2).gather(2, places),
        ranked.own.flatten(2).gather(2, places),
    )
