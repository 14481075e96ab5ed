"""The output projection, and the best tokens by it without a softmax over the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.decode.ranking import Best, top
from headway.nn.sentence_buffers import SentenceBuffers
from headway.text.tokenizer import PAD

__all__ = ["SentenceVocabulary", "TorchSentenceVocabulary", "TorchVocabulary", "Vocabulary"]

_BLOCK = 64  # tokens that are ranked by the greatest of them first
_PART = 128 * _BLOCK  # tokens whose logits are computed at a time: with 256 rows, 8 MiB, which a cache holds
_AT_ONCE = 1 << 19  # logits that are ranked at once; 2 MiB
_LOG2_E = math.log2(math.e)
_LEAST = torch.finfo(torch.float32).min


@runtime_checkable
class Vocabulary(Protocol):
    """The output projection of rows (R, D), which are as their preparer keeps them."""

    def logits(self, hidden: Any) -> Float[Tensor, "R V"]:
        """All logits, in float32."""

    def best(self, hidden: Any, count: int, forbidden: Sequence[int], end: int) -> Best:
        """As :func:`~headway.decode.ranking.best_of` of the logits."""


@runtime_checkable
class SentenceVocabulary(Protocol):
    """The output projection of each sentence's own tokens (:class:`~headway.engine.shortlist.Shortlist`).

    What is gathered for a sentence has a slot for each token, or several, and zeros in slots that it does not need.
    """

    def gather(self, tokens: Int[Tensor, "B U"]) -> SentenceBuffers:
        """The weights of each sentence's tokens, which are sorted and end in zeros."""

    def best(self, hidden: Any, gathered: SentenceBuffers, count: int, forbidden: Sequence[int], end: int) -> Best:
        """The best of each row, among its sentence's tokens, whose probabilities sum to 1; fewer where these are."""


class TorchSentenceVocabulary:
    """That by batched products, in ``dtype``."""

    def __init__(self, projection: nn.Linear, dtype: torch.dtype) -> None:
        bias: Tensor | None = projection.bias
        self._weight = projection.weight.detach().to(dtype)
        self._bias = (projection.weight.new_zeros(len(self._weight)) if bias is None else bias.detach()).float()

    def gather(self, tokens: Int[Tensor, "B U"]) -> SentenceBuffers:
        """Tokens, weights and biases."""
        return SentenceBuffers([tokens.unsqueeze(2), self._weight[tokens], self._bias[tokens].unsqueeze(2)], heads=1)

    def best(
        self,
        hidden: Float[Tensor, "R D"],
        gathered: SentenceBuffers,
        count: int,
        forbidden: Sequence[int],
        end: int,
    ) -> Best:
        """See :meth:`SentenceVocabulary.best`."""
        gathered.settle()
        tokens, weight, bias = gathered.tensors
        rows = torch.unflatten(hidden, 0, (len(tokens), -1))
        logits = (rows @ weight.transpose(1, 2)).float() + bias.transpose(1, 2)
        listed = tokens.transpose(1, 2).expand(logits.shape)
        log_probs = logits.masked_fill_(listed == PAD, -math.inf).log_softmax(2).flatten(0, 1)
        listed = listed.flatten(0, 1)
        ending = log_probs.masked_fill(listed != end, -math.inf).amax(1)
        excluded = torch.tensor(forbidden, dtype=torch.long, device=listed.device)
        found, places = top(log_probs.masked_fill(torch.isin(listed, excluded), -math.inf), min(count, listed.size(1)))
        return Best(found, listed.gather(1, places), ending)


class TorchVocabulary:
    """The output projection, in parts of the vocabulary; ``linear`` makes a layer of a weight and a bias."""

    def __init__(
        self, projection: nn.Linear, linear: Callable[[Tensor, Tensor | None], Callable[[Tensor], Tensor]]
    ) -> None:
        self._linear = linear
        self._size, self._device = projection.weight.size(0), projection.weight.device
        # A GPU has no cache that a part would stay in.
        part = self._size if self._device.type == "cuda" else _PART
        self._starts = range(0, self._size, part)
        bias: Tensor | None = projection.bias  # PyTorch's annotations leave out that there may be none
        self._parts = [
            self._part(projection.weight[start : start + part], None if bias is None else bias[start : start + part])
            for start in self._starts
        ]
        self._forbidden: dict[tuple[tuple[int, ...], int, int], Tensor | None] = {}

    def _part(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        missing = -len(weight) % _BLOCK  # rows that make the last block whole; they are ruled out where it is ranked
        if missing:
            weight = F.pad(weight, (0, 0, 0, missing))
            bias = None if bias is None else F.pad(bias, (0, missing))
        return self._linear(weight, bias)

    def logits(self, hidden: Float[Tensor, "R D"]) -> Float[Tensor, "R V"]:
        """All logits, in float32."""
        return torch.cat([part(hidden).float() for part in self._parts], dim=1)[:, : self._size]

    def best(self, hidden: Float[Tensor, "R D"], count: int, forbidden: Sequence[int], end: int) -> Best:
        """As :func:`~headway.decode.ranking.best_of` of the logits; ties between more than ``count`` blocks are cut."""
        forbidden = tuple(forbidden)
        sums: list[Tensor] = []  # of exponentials, as logarithms
        values: list[Tensor] = []
        tokens: list[Tensor] = []
        ending = None
        for start, logits in self._pieces(hidden):
            ruled_out = self._ruled_out(forbidden, start, logits.size(1))
            if 0 <= end - start < logits.size(1):
                ending = logits[:, end - start].clone()
            if self._size - start < logits.size(1):
                logits[:, self._size - start :].fill_(-math.inf)
            if ruled_out is not None:
                sums.append(logits[:, ruled_out])  # they are not chosen, but have their share of the probability
                logits.index_fill_(1, ruled_out, -math.inf)
            blocks = torch.unflatten(logits, 1, (-1, _BLOCK))
            maxima, chosen = blocks.amax(2).topk(min(count, blocks.size(1)), dim=1)
            chosen = chosen.sort(1).values.unsqueeze(2)  # by index, so that ties stay in order, and padding comes last
            values.append(blocks.gather(1, chosen.expand(-1, -1, _BLOCK)).flatten(1))
            tokens.append((chosen * _BLOCK + self._offsets(start, logits.device)).flatten(1))
            largest = maxima[:, :1].clamp(min=_LEAST)  # -inf, where a part has no token left, would make NaN
            powers = logits.sub_(largest).mul_(_LOG2_E).exp2_()  # in half the time of exp, which is MKL's
            sums.append(powers.sum(1, keepdim=True).log_().add_(largest))
        assert ending is not None
        normalizer = torch.cat(sums, dim=1).logsumexp(1, keepdim=True)
        found, places = top(torch.cat(values, dim=1), min(count, self._size))
        return Best(found - normalizer, torch.cat(tokens, dim=1).gather(1, places), ending - normalizer.squeeze(1))

    def _pieces(self, hidden: Float[Tensor, "R D"]) -> Iterator[tuple[int, Float[Tensor, "R _"]]]:
        """The logits with the first token of each piece: a part each, or all in one where a cache holds that.

        Few rows are ranked in no time, and what counts is in how many calls.
        """
        computed = (part(hidden).float() for part in self._parts)
        if len(hidden) * self._size <= _AT_ONCE:
            yield 0, torch.cat(list(computed), dim=1)
        else:
            yield from zip(self._starts, computed, strict=True)

    def _offsets(self, start: int, device: torch.device) -> Tensor:
        return torch.arange(start, start + _BLOCK, device=device)

    def _ruled_out(self, forbidden: tuple[int, ...], start: int, size: int) -> Tensor | None:
        """The forbidden tokens of a piece, each once, counted from its first."""
        key = (forbidden, start, size)
        if key not in self._forbidden:
            inside = sorted({token - start for token in forbidden if start <= token < start + size})
            self._forbidden[key] = torch.tensor(inside, device=self._device) if inside else None
        return self._forbidden[key]
