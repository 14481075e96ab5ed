"""Ranking of next tokens: the most probable tokens of each row of logits, and the best extensions of a beam.

**Top tokens.** A search needs the few most probable tokens of each row, in order. They are found in blocks: each of the
``count`` largest values is in one of the ``count`` blocks with the largest maxima, so only these blocks are sorted.
Log-probabilities are taken from a log-softmax, which PyTorch computes in one pass over each row. It takes three
quarters of the time of ``logsumexp`` (PyTorch 2.13, AVX2, one thread, 128 rows of 8,000).

**Ties.** Among equal values, the lowest index comes first, on every device and for every division of a row into blocks.
PyTorch's ``topk`` guarantees no order of equal values, so values are compared by integer keys that contain the index.
NaN comes before all other values, so that damaged weights are detected.

**Extensions.** Plain and diverse beam search extend the hypotheses of a beam by one token. B sequences have G groups of
W hypotheses each; groups are searched separately. Sampling and constraints choose from the same candidates in other
ways (:mod:`headway.decode.sampling`, :mod:`headway.decode.constraints`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

_FEW = 64  # up to this number of values, sorting is faster than building keys
_BLOCK = 64  # number of tokens per block, near the square root of (usual vocabulary size / beam size)
_FEW_BANNED = 8  # up to this many banned tokens, ranking and then dropping them is faster than copying the logits


@dataclass(frozen=True)
class NextTokens:
    """The most probable next tokens of each row, best first, and the log-probability of EOS, in nats.

    Probabilities are over the whole vocabulary. Banned tokens are left out. If fewer than C tokens are left, the
    remaining entries have log-probability -inf.
    """

    tokens: Int[Tensor, "R C"]
    log_probs: Float[Tensor, "R C"]
    eos_log_prob: Float[Tensor, " R"]


def merge_rows(where: Bool[Tensor, " R"], one: NextTokens, other: NextTokens) -> NextTokens:
    """Return rows of ``one`` where ``where`` is True and rows of ``other`` elsewhere, padded to the larger width."""
    width, columns = max(one.tokens.size(1), other.tokens.size(1)), where.unsqueeze(1)
    first, second = (
        NextTokens(
            F.pad(tokens.tokens, (0, width - tokens.tokens.size(1))),
            F.pad(tokens.log_probs, (0, width - tokens.tokens.size(1)), value=-torch.inf),
            tokens.eos_log_prob,
        )
        for tokens in (one, other)
    )
    return NextTokens(
        torch.where(columns, first.tokens, second.tokens),
        torch.where(columns, first.log_probs, second.log_probs),
        torch.where(where, first.eos_log_prob, second.eos_log_prob),
    )


def top_tokens(logits: Float[Tensor, "R V"], count: int, banned: Sequence[int], eos: int) -> NextTokens:
    """Return the ``count`` most probable tokens of each row that are not ``banned``, or all if there are fewer."""
    logits = logits.float()
    log_probs = logits.log_softmax(-1)
    count = min(count, logits.size(1))
    if not banned:
        tokens = topk_ordered(logits, count)[1]
        return NextTokens(tokens, log_probs.gather(1, tokens), log_probs[:, eos])
    excluded = torch.tensor(list(banned), device=logits.device)
    if len(banned) > _FEW_BANNED:
        tokens = topk_ordered(logits.index_fill(1, excluded, -torch.inf), count)[1]
    else:
        tokens = topk_ordered(logits, min(count + len(banned), logits.size(1)))[1]
        # A stable sort moves the banned tokens to the end and keeps the order of the others.
        order = _is_in(tokens, excluded).to(torch.uint8).sort(dim=1, stable=True).indices
        tokens = tokens.gather(1, order[:, :count])
    values = log_probs.gather(1, tokens).masked_fill(_is_in(tokens, excluded), -torch.inf)
    return NextTokens(tokens, values, log_probs[:, eos])


def _is_in(tokens: Int[Tensor, "R C"], some: Int[Tensor, " F"]) -> Bool[Tensor, "R C"]:
    return (tokens.unsqueeze(2) == some).any(2)


def topk_ordered(values: Float[Tensor, "*b N"], count: int) -> tuple[Float[Tensor, "*b C"], Int[Tensor, "*b C"]]:
    """Return the ``count`` largest values of the last dimension and their indices, in descending order.

    Among equal values, the lowest index comes first.
    """
    size = values.size(-1)
    if size <= 4 * _BLOCK * count:
        indices = _top_indices(values, count)
        return values.gather(-1, indices), indices
    whole = size // _BLOCK
    maxima = torch.unflatten(values[..., : whole * _BLOCK], -1, (whole, _BLOCK)).amax(-1)
    if size % _BLOCK:
        maxima = torch.cat([maxima, values[..., whole * _BLOCK :].amax(-1, keepdim=True)], dim=-1)
    # Blocks are sorted by index, so that ties stay in order.
    blocks = _top_indices(maxima, min(count, maxima.size(-1))).sort(-1).values
    inside = (blocks.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=values.device)).flatten(-2)
    candidates = values.gather(-1, inside.clamp(max=size - 1)).masked_fill(inside >= size, -torch.inf)
    order = _top_indices(candidates, count)
    return candidates.gather(-1, order), inside.gather(-1, order)


def _top_indices(values: Float[Tensor, "*b N"], count: int) -> Int[Tensor, "*b C"]:
    """Return the indices of the ``count`` largest values. Ties are broken by unique integer keys with the value in the
    high bits and the index in the low bits."""
    size = values.size(-1)
    if count == 1:
        return values.argmax(-1, keepdim=True)  # returns the first of equal values, and NaN before all other values
    if size <= _FEW:
        return values.sort(dim=-1, descending=True, stable=True).indices[..., :count]  # this order also puts NaN first
    bits = (values.float() + 0.0).view(torch.int32)  # -0 becomes 0
    bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # these integers have the same order as the floats
    bits = bits.masked_fill(values.isnan(), 0x7FFFFFFF)
    keys = (bits.long() << 32) | torch.arange(size - 1, -1, -1, device=values.device)
    return size - 1 - (keys.topk(count, dim=-1).values & 0xFFFFFFFF)


@dataclass(frozen=True)
class TokenScores:
    """The tokens that may extend each hypothesis, with their scores.

    ``gains`` are added to the hypothesis's score; ``log_probs`` are the model's own log-probabilities. The two differ
    if rules change the ranking.
    """

    gains: Float[Tensor, "B G W C"]
    log_probs: Float[Tensor, "B G W C"]
    tokens: Int[Tensor, "B G W C"]

    def with_only_eos(
        self, eos: int, eos_log_probs: Float[Tensor, "B G W"], at_limit: Bool[Tensor, " B"]
    ) -> TokenScores:
        """Return a copy in which sequences marked by ``at_limit`` have only EOS, with the given log-probabilities."""
        full = at_limit.view(-1, 1, 1)
        gains, log_probs = (x.masked_fill(full.unsqueeze(3), -torch.inf) for x in (self.gains, self.log_probs))
        tokens = self.tokens.clone()
        for values in (gains, log_probs):
            values[..., 0] = torch.where(full, eos_log_probs, values[..., 0])
        tokens[..., 0].masked_fill_(full, eos)
        return TokenScores(gains, log_probs, tokens)


@dataclass(frozen=True)
class Extensions:
    """The chosen extensions of each group, best first.

    Attributes:
        scores: Total score; -inf marks an empty slot.
        parents: Index, within its group, of the hypothesis that is extended.
        tokens: The new token.
        log_probs: The model's own log-probability of the token.
        nodes: The state of the constraints after the token; None if no sequence has constraints.
    """

    scores: Float[Tensor, "B G C"]
    parents: Int[Tensor, "B G C"]
    tokens: Int[Tensor, "B G C"]
    log_probs: Float[Tensor, "B G C"]
    nodes: Int[Tensor, "B G C"] | None = None

    def first(self, count: int) -> Extensions:
        """Return the first ``count`` extensions of each group, which are the best if extensions are sorted by score."""
        scores, parents, tokens, log_probs = (
            x[..., :count] for x in (self.scores, self.parents, self.tokens, self.log_probs)
        )
        return Extensions(scores, parents, tokens, log_probs, None if self.nodes is None else self.nodes[..., :count])

    def best(self, count: int) -> Extensions:
        """Return the ``count`` best extensions of each group."""
        scores, order = topk_ordered(self.scores, count)
        parents, tokens, log_probs = (x.gather(2, order) for x in (self.parents, self.tokens, self.log_probs))
        nodes = None if self.nodes is None else self.nodes.gather(2, order)
        return Extensions(scores, parents, tokens, log_probs, nodes)


def extend_best(scores: Float[Tensor, "B G W"], candidates: TokenScores, count: int) -> Extensions:
    """Return the ``count`` best extensions of each group; if there are fewer, the rest have score -inf."""
    width = candidates.tokens.size(3)
    every = (scores.unsqueeze(3) + candidates.gains).flatten(2)
    totals, order = topk_ordered(every, min(count, every.size(2)))
    if (missing := count - order.size(2)) > 0:
        totals, order = F.pad(totals, (0, missing), value=-torch.inf), F.pad(order, (0, missing))
    tokens, log_probs = (x.flatten(2).gather(2, order) for x in (candidates.tokens, candidates.log_probs))
    return Extensions(totals, order // width, tokens, log_probs)


def extend_diverse(
    scores: Float[Tensor, "B G W"], candidates: TokenScores, count: int, diversity: float, width: int
) -> Extensions:
    """Return the ``count`` best extensions of each group. The first ``width`` of them are the group's choice.

    This is diverse beam search (Vijayakumar et al. 2016, algorithm 1) with Hamming diversity. The groups are extended
    one after another. A token's score is reduced by ``diversity`` (the paper's lambda) each time an earlier group
    chooses it in this step. The group's scores keep the reduction.

    Each row must have ``count`` more candidates than all groups choose together. Any token that is not a candidate is
    then worse than at least ``count`` candidates whose scores are not reduced.
    """
    groups: list[Extensions] = []
    taken = candidates.tokens.new_empty(len(scores), 0)  # (B, N): the choices of earlier groups
    for group in range(scores.size(1)):
        every = candidates.gains, candidates.log_probs, candidates.tokens
        gains, log_probs, tokens = (x[:, group : group + 1] for x in every)
        times = (tokens.unsqueeze(-1) == taken.view(len(taken), 1, 1, 1, -1)).sum(-1)
        penalized = TokenScores(gains - diversity * times, log_probs, tokens)
        extensions = extend_best(scores[:, group : group + 1], penalized, count)
        chosen = extensions.tokens.masked_fill(extensions.scores == -torch.inf, -1)[:, 0, :width]
        taken = torch.cat([taken, chosen], dim=1)
        groups.append(extensions)
    names = ("scores", "parents", "tokens", "log_probs")
    return Extensions(*(torch.cat([getattr(extensions, name) for extensions in groups], 1) for name in names))
