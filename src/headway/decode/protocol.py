"""What search needs of a model, and what it returns.

A model starts from a batch of sources and then advances by one token a row. Rows of one sentence (its beams) are
neighbours, equally many for each sentence. The state can be reordered, repeated and shrunk by
:meth:`SearchState.select`, and grown by :meth:`SearchState.join`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["Hypothesis", "SearchModel", "SearchState", "StateT", "length_penalty"]


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


@dataclass(frozen=True)
class Hypothesis:
    """A finished target: tokens without begin and end symbol, log P(target | source) in nats, the score to rank by."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float


def length_penalty(length: int, alpha: float) -> float:
    """(5 + length)^alpha / (5 + 1)^alpha (Wu et al. 2016, section 7, equation 14), by which log-probabilities are
    divided.

    ``length`` counts the tokens of a hypothesis with its end symbol. alpha = 0 ranks by probability; the paper uses
    0.6.
    """
    return float(((5 + length) / 6) ** alpha)
