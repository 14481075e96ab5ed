"""Rules on the next token: plain functions on logits or log-probabilities, which the search composes.

Prefixes have shape (R, T), are right-aligned, and are padded with -1 on the left. A rule sets the log-probability of a
forbidden token to -inf. The rest are not renormalized, so the other tokens keep the model's log-probabilities. Only the
repetition penalty changes other values: it changes the logits before they are normalized.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

_NOTHING = -1  # pads a prefix
_ANY = -2  # pads a shorter banned sequence; matches any token
_NEVER = -3  # pads a shorter list of sequences; matches no token


def penalize_repetition(
    logits: Float[Tensor, "R V"], prefixes: Int[Tensor, "R T"], penalty: float
) -> Float[Tensor, "R V"]:
    """Lower the logits of tokens that occur in the prefix (Keskar et al. 2019, section 4.1).

    Positive logits are divided by ``penalty``. Unlike in the paper, negative logits are multiplied by it.
    """
    return torch.where(_marked(logits, prefixes), torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def ban_tokens(log_probs: Float[Tensor, "R V"], tokens: Sequence[int]) -> Float[Tensor, "R V"]:
    """Forbid the given tokens in every row."""
    if not tokens:
        return log_probs
    return log_probs.index_fill(1, torch.tensor(list(tokens), device=log_probs.device), -torch.inf)


def ban_repeated_ngrams(log_probs: Float[Tensor, "R V"], prefixes: Int[Tensor, "R T"], n: int) -> Float[Tensor, "R V"]:
    """Forbid every token that would complete an n-gram already contained in the prefix."""
    if prefixes.size(1) < n:
        return log_probs
    grams = prefixes.unfold(1, n, 1)  # (R, T - n + 1, n)
    recent = prefixes[:, prefixes.size(1) - n + 1 :].unsqueeze(1)
    again = ((grams[..., :-1] == recent) & (grams[..., :-1] != _NOTHING)).all(2)
    return log_probs.masked_fill(_marked(log_probs, grams[..., -1].masked_fill(~again, _NOTHING)), -torch.inf)


def ban_eos(log_probs: Float[Tensor, "R V"], too_short: Bool[Tensor, " R"], eos: int) -> Float[Tensor, "R V"]:
    """Forbid the token ``eos`` in the rows that are ``too_short`` to end."""
    log_probs = log_probs.clone()
    log_probs[:, eos].masked_fill_(too_short, -torch.inf)
    return log_probs


def force_tokens(log_probs: Float[Tensor, "R V"], forced_tokens: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
    """Set the log-probability of each row's forced token to 0, and of all other tokens to -inf.

    -1 in ``forced_tokens`` leaves a row unchanged.
    """
    sure = torch.full_like(log_probs, -torch.inf).masked_fill(_marked(log_probs, forced_tokens.unsqueeze(1)), 0.0)
    return torch.where((forced_tokens >= 0).unsqueeze(1), sure, log_probs)


class BannedSequences:
    """Token sequences that must not occur in the targets: one list for each of B sentences."""

    def __init__(self, sequences: Sequence[Sequence[tuple[int, ...]]], device: torch.device) -> None:
        most = max(map(len, sequences), default=0)
        longest = max((len(one) for several in sequences for one in several), default=0)
        width = max(longest, 2)  # at least 2, so that each sequence has a non-empty prefix
        rows = [[[_ANY] * (width - len(one)) + [*one] for one in several] for several in sequences]
        padded = [row + [[_NEVER] * width] * (most - len(row)) for row in rows]
        table = torch.tensor(padded, dtype=torch.long, device=device).view(len(rows), most, width)
        self._prefixes, self._last_tokens = table[:, :, :-1], table[:, :, -1]  # (B, P, K - 1) and (B, P)

    def ban(self, log_probs: Float[Tensor, "R V"], prefixes: Int[Tensor, "R T"]) -> Float[Tensor, "R V"]:
        """Forbid every token that would complete a banned sequence."""
        if not self._last_tokens.numel():
            return log_probs
        rows_per_sequence = log_probs.size(0) // self._last_tokens.size(0)
        reach = self._prefixes.size(2)
        recent = F.pad(prefixes, (reach, 0), value=_NOTHING)[:, -reach:].unsqueeze(1)  # (R, 1, K - 1)
        heads, last = (
            self._prefixes.repeat_interleave(rows_per_sequence, 0),
            self._last_tokens.repeat_interleave(rows_per_sequence, 0),
        )
        begun = ((heads == recent) | (heads == _ANY)).all(2)
        return log_probs.masked_fill(_marked(log_probs, last.masked_fill(~begun, _NOTHING)), -torch.inf)


def _marked(values: Float[Tensor, "R V"], tokens: Int[Tensor, "R N"]) -> Bool[Tensor, "R V"]:
    """Return a mask that is True at the given tokens of each row; negative tokens are ignored."""
    marks = torch.zeros(values.size(0), values.size(1) + 1, dtype=torch.bool, device=values.device)
    return marks.scatter_(1, tokens.masked_fill(tokens < 0, values.size(1)), True)[:, :-1]
