"""The output projection, and its top tokens without a softmax over the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.decode.ranking import NextTokens, topk_ordered
from headway.engine.shortlist import ListedWeights
from headway.text.base import PAD

_BLOCK = 64  # tokens; blocks are ranked by their largest logits first
_CHUNK = 128 * _BLOCK  # tokens whose logits are computed at a time: 8 MiB for 256 rows, which fit a cache
_RANKED_TOGETHER = 1 << 19  # logits; 2 MiB
_LOG2_E = math.log2(math.e)
_LEAST = torch.finfo(torch.float32).min


@runtime_checkable
class OutputProjection(Protocol):
    """The output projection of rows (R, D), which are in the backend's representation."""

    def logits(self, hidden: Any) -> Float[Tensor, "R V"]:
        """Return all logits, in float32."""

    def top_k(self, hidden: Any, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return what :func:`~headway.decode.ranking.top_tokens` returns for the logits."""


@runtime_checkable
class ListedProjection(Protocol):
    """The output projection to each sequence's own shortlist (:class:`~headway.engine.shortlist.Shortlist`).

    The gathered weights of a sequence have one row per token, and are padded with zeros.
    """

    def gather(self, tokens: Int[Tensor, "B U"]) -> ListedWeights:
        """Return the weights of each sequence's tokens, which are sorted and followed by zeros."""

    def top_k(self, hidden: Any, listed: ListedWeights, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return each row's top tokens among its sequence's list, whose probabilities sum to 1."""


class TorchListedProjection:
    """The projection to shortlists by batched products in ``dtype``."""

    def __init__(self, projection: nn.Linear, dtype: torch.dtype) -> None:
        bias: Tensor | None = projection.bias
        self._weight = projection.weight.detach().to(dtype)
        self._bias = (projection.weight.new_zeros(len(self._weight)) if bias is None else bias.detach()).float()

    def gather(self, tokens: Int[Tensor, "B U"]) -> ListedWeights:
        """Return tokens, weights and biases."""
        return ListedWeights([tokens.unsqueeze(2), self._weight[tokens], self._bias[tokens].unsqueeze(2)])

    def top_k(
        self, hidden: Float[Tensor, "R D"], listed: ListedWeights, k: int, banned: Sequence[int], eos: int
    ) -> NextTokens:
        """Return each row's top tokens among its sequence's list."""
        listed.order()
        tokens, weight, bias = listed.tensors
        rows = torch.unflatten(hidden, 0, (len(tokens), -1))
        logits = (rows @ weight.transpose(1, 2)).float() + bias.transpose(1, 2)
        ids = tokens.transpose(1, 2).expand(logits.shape)
        log_probs = logits.masked_fill_(ids == PAD, -math.inf).log_softmax(2).flatten(0, 1)
        ids = ids.flatten(0, 1)
        eos_log_prob = log_probs.masked_fill(ids != eos, -math.inf).amax(1)
        excluded = torch.tensor(banned, dtype=torch.long, device=ids.device)
        found, order = topk_ordered(log_probs.masked_fill(torch.isin(ids, excluded), -math.inf), min(k, ids.size(1)))
        return NextTokens(ids.gather(1, order), found, eos_log_prob)


class TorchOutputProjection:
    """The output projection, in chunks of the vocabulary. ``linear`` makes a layer of a weight and a bias."""

    def __init__(
        self, projection: nn.Linear, linear: Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]]
    ) -> None:
        self._linear = linear
        self._size, self._device = projection.weight.size(0), projection.weight.device
        # A chunk does not stay in the cache of a GPU.
        chunk = self._size if self._device.type == "cuda" else _CHUNK
        self._starts = range(0, self._size, chunk)
        bias: Tensor | None = projection.bias  # may be None, unlike what PyTorch's annotations say
        self._chunks = [
            self._layer(projection.weight[start : start + chunk], None if bias is None else bias[start : start + chunk])
            for start in self._starts
        ]
        self._banned: dict[tuple[tuple[int, ...], int, int], Tensor | None] = {}

    def _layer(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        missing = -len(weight) % _BLOCK  # rows that complete the last block; they are excluded when it is ranked
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else F.pad(bias, (0, missing))
        return self._linear(weight, bias)

    def logits(self, hidden: Float[Tensor, "R D"]) -> Float[Tensor, "R V"]:
        """Return all logits, in float32."""
        return torch.cat([chunk(hidden).float() for chunk in self._chunks], dim=1)[:, : self._size]

    def top_k(self, hidden: Float[Tensor, "R D"], k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return what :func:`~headway.decode.ranking.top_tokens` returns, except for ties of more than ``k`` blocks."""
        banned = tuple(banned)
        sums: list[Tensor] = []  # of exponentials, as logarithms
        values: list[Tensor] = []
        tokens: list[Tensor] = []
        eos_logit = None
        for start, logits in self._logits_by_chunk(hidden):
            excluded = self._excluded(banned, start, logits.size(1))
            if 0 <= eos - start < logits.size(1):
                eos_logit = logits[:, eos - start].clone()
            if self._size - start < logits.size(1):
                logits[:, self._size - start :].fill_(-math.inf)
            if excluded is not None:
                sums.append(logits[:, excluded])  # they are not chosen, but keep their share of the probability
                logits.index_fill_(1, excluded, -math.inf)
            blocks = torch.unflatten(logits, 1, (-1, _BLOCK))
            maxima, chosen = blocks.amax(2).topk(min(k, blocks.size(1)), dim=1)
            chosen = chosen.sort(1).values.unsqueeze(2)  # by index: ties stay in order
            values.append(blocks.gather(1, chosen.expand(-1, -1, _BLOCK)).flatten(1))
            offsets = torch.arange(start, start + _BLOCK, device=logits.device)
            tokens.append((chosen * _BLOCK + offsets).flatten(1))
            largest = maxima[:, :1].clamp(min=_LEAST)  # a chunk without any remaining token would give NaN
            powers = logits.sub_(largest).mul_(_LOG2_E).exp2_()  # half the time of exp, which calls MKL
            sums.append(powers.sum(1, keepdim=True).log_().add_(largest))
        assert eos_logit is not None
        normalizer = torch.cat(sums, dim=1).logsumexp(1, keepdim=True)
        found, order = topk_ordered(torch.cat(values, dim=1), min(k, self._size))
        ids = torch.cat(tokens, dim=1).gather(1, order)
        return NextTokens(ids, found - normalizer, eos_logit - normalizer.squeeze(1))

    def _logits_by_chunk(self, hidden: Float[Tensor, "R D"]) -> Iterator[tuple[int, Float[Tensor, "R _"]]]:
        """Yield logits with their first token: chunk by chunk, or all together if they fit the cache.

        Ranking few rows takes almost no time, so the number of calls matters.
        """
        computed = (chunk(hidden).float() for chunk in self._chunks)
        if len(hidden) * self._size <= _RANKED_TOGETHER:
            yield 0, torch.cat(list(computed), dim=1)
        else:
            yield from zip(self._starts, computed, strict=True)

    def _excluded(self, banned: tuple[int, ...], start: int, size: int) -> Tensor | None:
        """Return the banned tokens from ``start`` to ``start + size``, sorted and relative to ``start``."""
        key = (banned, start, size)
        if key not in self._banned:
            inside = sorted({token - start for token in banned if start <= token < start + size})
            self._banned[key] = torch.tensor(inside, device=self._device) if inside else None
        return self._banned[key]
