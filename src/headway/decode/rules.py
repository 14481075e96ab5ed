"""Rules on what may come next: plain functions on the numbers of a row, composed by the search.

Prefixes are (R, T), right-aligned, with -1 where a row is shorter. A token that a rule forbids gets log-probability
-inf; the others keep theirs (nothing is normalised again), so scores stay log-probabilities of the model. Only the
repetition penalty changes the numbers themselves, before they are normalised.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

__all__ = ["BannedSequences", "ban_repeated_ngrams", "ban_short", "ban_tokens", "force_tokens", "penalize_repetition"]

_NOTHING = -1  # where a prefix has no token
_ANY = -2  # where a banned sequence has none: matches whatever is there
_NEVER = -3  # in place of a sequence: matches nothing


def penalize_repetition(
    logits: Float[Tensor, "R V"], prefixes: Int[Tensor, "R T"], penalty: float
) -> Float[Tensor, "R V"]:
    """Divide the logits of tokens that the prefix holds by ``penalty``, or multiply them where they are negative
    (Keskar et al. 2019, section 4.1, in the form that also lowers negative logits)."""
    return torch.where(_marked(logits, prefixes), torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def ban_tokens(log_probs: Float[Tensor, "R V"], tokens: Sequence[int]) -> Float[Tensor, "R V"]:
    """Forbid tokens in every row."""
    if not tokens:
        return log_probs
    return log_probs.index_fill(1, torch.tensor(list(tokens), device=log_probs.device), -torch.inf)


def ban_repeated_ngrams(log_probs: Float[Tensor, "R V"], prefixes: Int[Tensor, "R T"], n: int) -> Float[Tensor, "R V"]:
    """Forbid every token that would end a sequence of ``n`` tokens which the prefix holds already."""
    if prefixes.size(1) < n:
        return log_probs
    grams = prefixes.unfold(1, n, 1)  # (R, T - n + 1, n)
    recent = prefixes[:, prefixes.size(1) - n + 1 :].unsqueeze(1)
    again = ((grams[..., :-1] == recent) & (grams[..., :-1] != _NOTHING)).all(2)
    return log_probs.masked_fill(_marked(log_probs, grams[..., -1].masked_fill(~again, _NOTHING)), -torch.inf)


def ban_short(log_probs: Float[Tensor, "R V"], short: Bool[Tensor, " R"], end: int) -> Float[Tensor, "R V"]:
    """Forbid the end symbol in the rows that are too ``short`` to end."""
    log_probs = log_probs.clone()
    log_probs[:, end].masked_fill_(short, -torch.inf)
    return log_probs


def force_tokens(log_probs: Float[Tensor, "R V"], forced: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
    """Where a row has a forced token (not -1), it is sure: log-probability 0, and -inf for all others."""
    sure = torch.full_like(log_probs, -torch.inf).masked_fill(_marked(log_probs, forced.unsqueeze(1)), 0.0)
    return torch.where((forced >= 0).unsqueeze(1), sure, log_probs)


class BannedSequences:
    """Token sequences that must not occur, for each of B sentences its own."""

    def __init__(self, sequences: Sequence[Sequence[tuple[int, ...]]], device: torch.device) -> None:
        most = max(map(len, sequences), default=0)
        self.reach = max((len(one) - 1 for several in sequences for one in several), default=0)
        heads = [[self._head(one) for one in several] for several in sequences]
        never = [_NEVER] * max(self.reach, 1)
        self.heads = torch.tensor(
            [row + [never] * (most - len(row)) for row in heads], dtype=torch.long, device=device
        )  # (B, P, K - 1)
        self.last = torch.tensor(
            [[one[-1] for one in several] + [_NOTHING] * (most - len(several)) for several in sequences],
            dtype=torch.long,
            device=device,
        )

    def _head(self, sequence: tuple[int, ...]) -> list[int]:
        head = list(sequence[:-1])
        return [_ANY] * (max(self.reach, 1) - len(head)) + head

    def ban(self, log_probs: Float[Tensor, "R V"], prefixes: Int[Tensor, "R T"]) -> Float[Tensor, "R V"]:
        """Forbid every token that would complete a sequence."""
        if not self.last.numel():
            return log_probs
        each = log_probs.size(0) // self.last.size(0)
        reach = self.heads.size(2)
        recent = F.pad(prefixes, (reach, 0), value=_NOTHING)[:, -reach:].unsqueeze(1)  # (R, 1, K - 1)
        heads, last = self.heads.repeat_interleave(each, 0), self.last.repeat_interleave(each, 0)
        begun = ((heads == recent) | (heads == _ANY)).all(2)
        return log_probs.masked_fill(_marked(log_probs, last.masked_fill(~begun, _NOTHING)), -torch.inf)


def _marked(values: Float[Tensor, "R V"], tokens: Int[Tensor, "R N"]) -> Bool[Tensor, "R V"]:
    """True at the tokens of each row; -1 marks none."""
    marks = torch.zeros(values.size(0), values.size(1) + 1, dtype=torch.bool, device=values.device)
    return marks.scatter_(1, tokens.masked_fill(tokens < 0, values.size(1)), True)[:, :-1]
