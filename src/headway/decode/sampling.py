"""Reproducible sampling of tokens.

A token is drawn by the Gumbel-max trick (Gumbel 1954; Maddison et al. 2014): if g is standard Gumbel noise for each
token, then argmax(log p + g) is distributed according to p. The noise depends only on the request's key, the index of
the draw, the position and the token. A request therefore draws the same text in any batch, in any order and on any
device, except that rounding may change a choice if two sums are nearly equal. No random generator is used, because its
state would depend on the batch.

The noise is computed by a 32-bit integer hash (MurmurHash3's finalizer, Appleby 2011, applied twice), which is as fast
as reading the tokens from memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.decode.ranking import Extensions, TokenScores
from headway.decode.request import Request, Sampling


def sampling_keys(request: Request, sampling: Sampling, num_draws: int) -> list[int]:
    """Return a 63-bit key for each of a request's draws."""

    read = request.source if request.first_token is None else (*request.source, request.first_token)
    seed = sampling.seed if request.seed is None else request.seed

    def key(number: int) -> int:
        text = repr((seed, 0, read, number))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1

    return [key(number) for number in range(num_draws)]


def draw_tokens(
    scores: Float[Tensor, "B G 1"],
    candidates: TokenScores,
    keys: Sequence[Sequence[int]],
    positions: Sequence[int],
    sampling: Sampling,
) -> Extensions:
    """Draw one token for each of the G draws of B sentences.

    ``keys`` contains a key for each draw, and ``positions`` contains the position of each sentence.
    ``candidates`` must already be limited to the ``top_k`` best tokens, or contain all tokens.
    """
    gains, log_probs, tokens = (x.squeeze(2) for x in (candidates.gains, candidates.log_probs, candidates.tokens))
    steps = [[_step_key(key, position) for key in several] for several, position in zip(keys, positions, strict=True)]
    logits = filter_logits(gains / sampling.temperature, sampling.top_p, sampling.min_p)
    noisy = logits + gumbel_noise(torch.tensor(steps, dtype=torch.int32, device=tokens.device), tokens)
    places = noisy.argmax(2, keepdim=True)
    chosen = log_probs.gather(2, places)
    none_left = (logits.gather(2, places) == -torch.inf) & ~chosen.isnan()  # keep NaN, so that it is reported
    totals = (scores + chosen.nan_to_num(nan=torch.nan, neginf=0.0)).masked_fill(none_left, -torch.inf)
    return Extensions(totals, torch.zeros_like(places), tokens.gather(2, places), chosen)


def filter_logits(logits: Float[Tensor, "*b C"], top_p: float, min_p: float) -> Float[Tensor, "*b C"]:
    """Return ``logits`` with -inf for the tokens that the filters exclude.

    ``top_p`` (nucleus sampling, Holtzman et al. 2020) keeps the smallest set of most probable tokens whose total
    probability reaches ``top_p``. ``min_p`` (Nguyen et al. 2024) keeps the tokens whose probability is at least
    ``min_p`` times the largest probability.
    """
    if top_p < 1:
        # Sort logits, not probabilities, because different logits may round to equal probabilities.
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        left_out = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
        left_out.scatter_(-1, order[..., :1], False)  # keep the best token even if rounding would exclude it
        logits = logits.masked_fill(left_out, -torch.inf)
    if min_p > 0:
        probabilities = logits.softmax(-1)
        logits = logits.masked_fill(probabilities < min_p * probabilities.amax(-1, keepdim=True), -torch.inf)
    return logits


def gumbel_noise(keys: Int[Tensor, "B G 2"], tokens: Int[Tensor, "B G C"]) -> Float[Tensor, "B G C"]:
    """Return standard Gumbel noise for each token, computed from two 32-bit keys per row."""
    first, second = keys.unsqueeze(2).unbind(3)
    hashed = _mixed(_mixed((tokens.to(torch.int32) * _signed(0x9E3779B9)) ^ first) + second)
    # Convert 31 bits to a number in (0, 1). log1p distinguishes the smallest numbers, which yield the largest noise.
    uniform = (((hashed >> 1) & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    return -torch.log(-torch.log1p(-uniform.clamp(max=1 - 2.0**-24)))


def _step_key(key: int, position: int) -> list[int]:
    """Return two 32-bit keys for one position of one draw."""
    digest = hashlib.blake2b(key.to_bytes(8) + position.to_bytes(4), digest_size=8).digest()
    return [int.from_bytes(half, signed=True) for half in (digest[:4], digest[4:])]


def _mixed(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Apply MurmurHash3's finalizer to 32-bit integers, whose products wrap around."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _signed(0x85EBCA6B)
    x = (x ^ ((x >> 13) & 0x7FFFF)) * _signed(0xC2B2AE35)
    return x ^ ((x >> 16) & 0xFFFF)


def _signed(constant: int) -> int:
    """Return the signed 32-bit integer with the same bits."""
    return constant - (1 << 32) if constant >= 1 << 31 else constant
