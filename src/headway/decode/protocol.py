"""What search needs of a model, and what it returns.

A model starts from a batch of sources and then advances by one token a row. Rows of one sentence (its beams) are
neighbours, equally many for each sentence. The state can be reordered, repeated and shrunk by
:meth:`SearchState.select`, and grown by :meth:`SearchState.join`.

More abilities are optional. A :class:`RankingModel` finds the best tokens itself, where it can do so in less than
a whole row of logits takes (:func:`best_of` does it for the others). A :class:`RestrictedModel` has
only some tokens for each sentence. An :class:`AttendingModel`
also tells what it attended to, for the coverage penalty.

A model that is no ``torch.nn.Module`` and not on the CPU says where it is by an attribute ``device``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeGuard, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headway.decode.ranking import Best, best_of

__all__ = [
    "Attended",
    "AttendingModel",
    "Best",
    "Hypothesis",
    "RankingModel",
    "RestrictedModel",
    "SearchModel",
    "SearchState",
    "StateT",
    "attends",
    "best_of",
    "device_of",
    "length_penalty",
]


@runtime_checkable
class SearchState(Protocol):
    """What a model keeps between steps for R rows over B sentences."""

    def select(self, rows: Int[Tensor, " R2"], sentences: Int[Tensor, " B2"] | None = None) -> None:
        """Row i continues what row ``rows[i]`` was; only ``sentences`` stay (None: all)."""

    def join(self, other: Any) -> None:
        """Append the rows and sentences of another state."""


StateT = TypeVar("StateT", bound=SearchState)


@runtime_checkable
class SearchModel(Protocol[StateT]):
    """A model that predicts one token at a time."""

    def start(self, source: Int[Tensor, "B S"]) -> StateT:
        """Begin with one row for each source, before the begin symbol."""

    def advance(self, state: StateT, tokens: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """Append one token to each row and return the logits of the next."""


@runtime_checkable
class RankingModel(SearchModel[StateT], Protocol[StateT]):
    """A model that ranks the next tokens itself."""

    def best(self, state: StateT, tokens: Int[Tensor, " R"], count: int, forbidden: Sequence[int]) -> Best:
        """Append one token to each row and return the ``count`` best next ones, as :func:`best_of` of its logits."""


@runtime_checkable
class RestrictedModel(RankingModel[StateT], Protocol[StateT]):
    """A model that ranks among some tokens for each sentence, where logits are of all."""

    def restrict(self, state: StateT, logits: Float[Tensor, "R V"], whole: Sequence[bool]) -> Float[Tensor, "R V"]:
        """``logits`` of a step with -inf for other tokens, but for the sentences that have the ``whole`` vocabulary."""


@runtime_checkable
class Attended(Protocol):
    """A step's outcome with what it attended to."""

    @property
    def logits(self) -> Float[Tensor, "R V"]:
        """Of the next token."""

    @property
    def attention(self) -> Float[Tensor, "R S"]:
        """The share of each source position in the attention; rows sum to 1."""


@runtime_checkable
class AttendingModel(SearchModel[StateT], Protocol[StateT]):
    """A model that tells what it attends to."""

    def advance_attending(self, state: StateT, tokens: Int[Tensor, " R"]) -> Attended:
        """Like ``advance``, with the attention."""


def attends(model: SearchModel[Any]) -> TypeGuard[AttendingModel[Any]]:
    """Whether it tells what it attends to; of a class that can, a model that cannot says so by ``attends = False``."""
    return isinstance(model, AttendingModel) and getattr(model, "attends", True)


@dataclass(frozen=True)
class Hypothesis:
    """A finished target.

    Attributes:
        tokens: Without begin and end symbol.
        log_probability: log P(target | source) in nats by the model, the end symbol included.
        score: What hypotheses are ranked by, greater is better: the log-probability of what follows the forced
            prefix, after penalties on repetition, over the length penalty, plus the coverage penalty.
        token_log_probabilities: One for each token and one for the end symbol; their sum is ``log_probability``. They
            are the model's own whatever rules, penalties and temperatures the search had.
        finished: False where it was ended by force at the limit, the model preferring to go on.
        unmet: Indices of the request's ``include`` constraints that do not occur.
    """

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    token_log_probabilities: tuple[float, ...] = ()
    finished: bool = True
    unmet: tuple[int, ...] = ()


def length_penalty(length: int, alpha: float, normalization: Literal["gnmt", "average"] = "gnmt") -> float:
    """What log-probabilities are divided by: (5 + length)^alpha / (5 + 1)^alpha (Wu et al. 2016, section 7, equation
    14), or length^alpha.

    ``length`` counts the tokens of a hypothesis with its end symbol. alpha = 0 ranks by probability; the paper uses
    0.6 with the first.
    """
    base = (5 + length) / 6 if normalization == "gnmt" else length
    return float(base**alpha)


def device_of(model: object) -> torch.device:
    """Where a model is: its parameters' device, else its attribute ``device``, else the CPU."""
    if isinstance(model, nn.Module):
        return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return torch.device(getattr(model, "device", "cpu"))
