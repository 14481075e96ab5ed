"""Score functions, which measure how well a query matches a key, before the mask and softmax.

    scaled_dot     q . k / sqrt(K)                      Vaswani et al. 2017, equation 1
    dot            q . k                                Luong et al. 2015, section 3.1
    general        q^T W k                              Luong et al. 2015, section 3.1
    additive       v^T tanh(W q + U k)                  Bahdanau et al. 2015, appendix A.1.2
    feed_forward   v^T max(0, W q + U k + b)            the paper's feed-forward layer (equation 2) applied to [q; k]
    cosine         g q . k / (|q| |k|)                  Henry et al. 2020; g, an inverse temperature, is learned

Each head has its own parameters. The two functions with a hidden layer need no output bias, because adding a constant
to all scores does not change the softmax. If queries and keys come from learned linear projections without a bias,
``general`` is no more expressive than ``dot``. It is intended for vectors without such projections, as in recurrent
models.

A score function has two steps: :meth:`ScoreFunction.prepare` computes the part that depends only on the keys, and
:meth:`ScoreFunction.compare` compares queries with prepared keys. Keys are therefore prepared only once if queries
arrive one at a time. Calling the module performs both steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headway.errors import ConfigError
from headway.kinds import KindRegistry
from headway.nn.arguments import Size, check_floats

ScoreKind = Literal["scaled_dot", "dot", "additive", "general", "cosine", "feed_forward"]

_HIDDEN = 64  # largest default hidden size, limited because each (T, S) pair has its own hidden layer
_LARGEST = 1 << 24  # maximum number of hidden units in memory at a time (64 MiB in float32)
_SCALE = 10.0  # initial scale of a cosine: a temperature of 0.1 (Liu et al. 2022)


def make_score(kind: str, width: int, num_heads: int = 1, *, hidden: int | None = None) -> ScoreFunction:
    """Return the score function ``kind`` for ``num_heads`` heads whose queries and keys have ``width`` units.

    ``hidden`` is the hidden layer's width in additive and feed_forward. None means ``width``, but at most 64.

    Raises:
        ConfigError: There is no score function with this name.
    """
    if kind not in SCORES:
        raise ConfigError(f"{kind!r} is not a score function", accepted=" or ".join(map(repr, SCORES)))
    score = SCORES[kind](width, num_heads, hidden or min(width, _HIDDEN))
    score.kind, score.width = kind, width
    return score


def register_score(kind: str, make: ScoreFactory) -> None:
    """Register a score function, so that recipes and model folders can use it as ``model.score``.

    Models that use it train and search in plain PyTorch, and cannot be exported. Register the function again before
    loading such a model in another process.

    Args:
        kind: Name of the score function.
        make: A subclass of :class:`ScoreFunction`, or a function that returns an instance. It is called with the number
            of units in queries and keys, the number of heads, and the width of a hidden layer.

    Raises:
        ConfigError: The name is already registered for a different function.
    """
    SCORES.register(kind, make)


class ScoreFunction(nn.Module):
    """Base class of the score functions listed in the module's docstring.

    Attributes:
        kind: Name of the score function.
        width: Number of units in queries and keys.
    """

    kind: str
    width: int

    def forward(self, query: Float[Tensor, "B H T K"], key: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H T S"]:
        """Return the score of every query with every key."""
        heads, width = self.sizes
        check_floats("query", query, "batch", heads, "queries", width)
        check_floats("key", key, *query.shape[:2], "keys", query.size(-1))
        return self.compare(query, self.prepare(key))

    @property
    def sizes(self) -> tuple[Size, Size]:
        """The expected number of heads, and the width of their queries and keys. Words stand for any number."""
        return "heads", "width"

    def prepare(self, key: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H S _"]:
        """Return the keys in the form that :meth:`compare` needs. Each prepared key depends on only one key."""
        return key

    def compare(self, query: Float[Tensor, "B H T K"], keys: Float[Tensor, "B H S _"]) -> Float[Tensor, "B H T S"]:
        """Return the score of every query with every prepared key."""
        raise NotImplementedError


class _DotScore(ScoreFunction):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def compare(self, query: Float[Tensor, "B H T K"], keys: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H T S"]:
        return (query * self.scale) @ keys.transpose(-2, -1)


class _GeneralScore(ScoreFunction):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.weight = _matrices(num_heads, width, width)

    @property
    def sizes(self) -> tuple[Size, Size]:
        return _sizes(self.weight)

    def prepare(self, key: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H S K"]:
        return key @ self.weight.transpose(-2, -1)

    def compare(self, query: Float[Tensor, "B H T K"], keys: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H T S"]:
        return query @ keys.transpose(-2, -1)


class _CosineScore(ScoreFunction):
    """The cosine score. The logarithm of its scale is learned, so the scale stays positive. Zero vectors score 0."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((num_heads,), math.log(_SCALE)))

    @property
    def sizes(self) -> tuple[Size, Size]:
        return _sizes(self.log_scale)[0], "width"

    def prepare(self, key: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H S K"]:
        return _normalized(key)

    def compare(self, query: Float[Tensor, "B H T K"], keys: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H T S"]:
        scale = self.log_scale.exp().view(-1, 1, 1)
        return (_normalized(query) * scale) @ keys.transpose(-2, -1)


def _normalized(x: Float[Tensor, "*b K"]) -> Float[Tensor, "*b K"]:
    """Return unit vectors. They are computed in float32 or float64, because float16 would round the epsilon to zero."""
    return F.normalize(x if x.dtype == torch.float64 else x.float(), dim=-1).to(x.dtype)


class _AdditiveScore(ScoreFunction):
    """v^T tanh(W q + U k), with a hidden layer of shape (B, H, T, S, hidden).

    If the hidden layer is too large, queries are processed in parts, and it is recomputed for the gradient.
    """

    def __init__(self, width: int, num_heads: int, hidden: int) -> None:
        super().__init__()
        self.query = _matrices(num_heads, width, hidden)
        self.key = _matrices(num_heads, width, hidden)
        self.vector = _matrices(num_heads, hidden, 1)

    @property
    def sizes(self) -> tuple[Size, Size]:
        """The expected number of heads, and the width of their queries and keys."""
        return _sizes(self.query)

    def activation(self, summed: Float[Tensor, "B H T S _"]) -> Float[Tensor, "B H T S _"]:
        """Apply the hidden layer's activation in place."""
        return summed.tanh_()

    def prepare(self, key: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H S _"]:
        return key @ self.key

    def compare(self, query: Float[Tensor, "B H T K"], keys: Float[Tensor, "B H S _"]) -> Float[Tensor, "B H T S"]:
        queries = query @ self.query
        at_once = max(1, _LARGEST // max(1, keys.numel()))
        if queries.size(2) <= at_once:
            return self._pairs(queries, keys)
        parts = torch.split(queries, at_once, dim=2)
        # The random state need not be preserved, because ``_pairs`` draws no random numbers.
        scores = [checkpoint(self._pairs, part, keys, use_reentrant=False, preserve_rng_state=False) for part in parts]
        return torch.cat(scores, dim=2)

    def _pairs(self, queries: Float[Tensor, "B H T _"], keys: Float[Tensor, "B H S _"]) -> Float[Tensor, "B H T S"]:
        hidden = self.activation(queries.unsqueeze(3) + keys.unsqueeze(2))
        scores = hidden.flatten(2, 3) @ self.vector
        return scores.view(hidden.shape[:-1])


class _FeedForwardScore(_AdditiveScore):
    """v^T max(0, W q + U k + b)."""

    def __init__(self, width: int, num_heads: int, hidden: int) -> None:
        super().__init__(width, num_heads, hidden)
        self.bias = nn.Parameter(torch.zeros(num_heads, 1, hidden))

    def prepare(self, key: Float[Tensor, "B H S K"]) -> Float[Tensor, "B H S _"]:
        projected = super().prepare(key)
        return projected + self.bias.to(projected.dtype)  # keeps the hidden layer in autocast's data type

    def activation(self, summed: Float[Tensor, "B H T S _"]) -> Float[Tensor, "B H T S _"]:
        return summed.relu_()


def _sizes(weight: Tensor) -> tuple[Size, Size]:
    """Return the first two sizes of a weight. A weight for one head broadcasts to any number of heads."""
    heads, *width = weight.shape
    return "heads" if heads == 1 else heads, width[0] if width else "width"


def _matrices(num_heads: int, inputs: int, outputs: int) -> nn.Parameter:
    """Return one matrix per head, each initialized Xavier-uniformly for its own shape."""
    bound = math.sqrt(6 / (inputs + outputs))
    return nn.Parameter(torch.empty(num_heads, inputs, outputs).uniform_(-bound, bound))


ScoreFactory = Callable[[int, int, int], ScoreFunction]
SCORES: KindRegistry[ScoreFactory] = KindRegistry(
    "model.score",
    {
        "scaled_dot": lambda width, _heads, _units: _DotScore(width**-0.5),
        "dot": lambda _width, _heads, _units: _DotScore(1.0),
        "additive": _AdditiveScore,
        "general": lambda width, num_heads, _units: _GeneralScore(width, num_heads),
        "cosine": lambda _width, num_heads, _units: _CosineScore(num_heads),
        "feed_forward": _FeedForwardScore,
    },
)
