"""The protocol between search and models.

A model starts from the sources of some sequences and then advances all of them by one token per step. The rows of a
sequence (its beams) are neighbors, and all sequences have equally many. The state belongs to one search, not to the
model, so several threads may search with one model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.decode.ranking import NextTokens, top_tokens

StateT = TypeVar("StateT")


class Step:
    """A model's prediction of the next token of each row. Models with a faster ranking override :meth:`top_k`.

    Attributes:
        attention: How much each row attends to each source position; rows sum to 1. None unless the step was asked for
            it, or if the model has no attention.
    """

    def __init__(self, logits: Float[Tensor, "R V"], attention: Float[Tensor, "R S"] | None = None) -> None:
        self._logits = logits
        self.attention = attention

    def logits(self) -> Float[Tensor, "R V"]:
        """Return the logits of all tokens."""
        return self._logits

    def top_k(self, k: int, banned: Sequence[int], eos: int) -> NextTokens:
        """Return the ``k`` most probable tokens of each row that are not ``banned``, and the log-probability of EOS."""
        return top_tokens(self.logits(), k, banned, eos)

    def allowed(self) -> Bool[Tensor, "B V"] | None:
        """Return which tokens each sequence's shortlist contains; :meth:`top_k` is limited to them. None: no limit."""
        return None


@runtime_checkable
class SearchModel(Protocol[StateT]):
    """A model that predicts one token at a time."""

    @property
    def device(self) -> torch.device:
        """The device of its inputs and outputs."""

    @property
    def max_length(self) -> int | None:
        """The longest sequence that it can read or write, in tokens with EOS; None means no limit."""

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> StateT:
        """Encode the sources and begin decoding, with ``beams`` rows for each."""

    def admit(self, state: StateT, sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and add them to ``state``, behind the others and with as many rows each."""

    def step(self, state: StateT, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next; with ``attention``, also report what is attended to."""

    def select(self, state: StateT, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence, and keep only ``sequences``; None keeps all.

        Rows stay grouped by sequence, equally many for each; their number may change.
        """
