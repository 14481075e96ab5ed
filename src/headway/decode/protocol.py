"""The protocol that a model implements to be searched.

A search starts a model with the sources of some sequences, and then advances all sequences by one token per step. The
rows of a sequence (its beams) are adjacent, and all sequences have the same number of rows. The state belongs to a
search, not to the model, so several threads can search the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.decode.ranking import NextTokens, top_tokens
from headway.errors import BundleError, ConfigError, HeadwayError

StateT = TypeVar("StateT")


class Step:
    """A model's prediction of the next token of each row. Models that can rank tokens faster override :meth:`top_k`.

    Attributes:
        attention: Attention weights of each row over the source positions, which sum to 1. None if they were not
            requested or the model has no attention.
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
        """Return a mask of the tokens in each sequence's shortlist, or None without shortlists.

        :meth:`top_k` returns only these tokens.
        """
        return None


@runtime_checkable
class SearchModel(Protocol[StateT]):
    """A model that predicts one token at a time."""

    @property
    def device(self) -> torch.device:
        """The device of the model's inputs and outputs."""

    @property
    def max_length(self) -> int | None:
        """Maximum length of a source or target, including EOS. None means no limit."""

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> StateT:
        """Encode the sources and begin decoding, with ``beams`` rows per source."""

    def admit(self, state: StateT, sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and append them to ``state``, with the same number of rows per source."""

    def step(self, state: StateT, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next. ``attention`` also requests the attention weights.

        In the first step of a sequence, all its rows have the same token, so computing one of them is enough.
        """

    def reorder_rows(
        self, state: StateT, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None
    ) -> None:
        """Reorder the rows: row i continues the old row ``rows[i]``, which belongs to the same sequence.

        Only the given ``sequences`` are kept. None keeps all. Rows stay grouped by sequence. All sequences have the
        same number of rows, but the number may change.
        """


@runtime_checkable
class ExplainsNaN(Protocol):
    """A search model that can predict NaN although its weights are finite."""

    def explain_nan(self, state: Any) -> str | None:
        """Return why predictions after ``state`` are NaN despite finite weights, or None if there is no such reason."""


def nan_error(model: object, state: object) -> HeadwayError:
    """Return the exception to raise for NaN probabilities."""
    reason = model.explain_nan(state) if isinstance(model, ExplainsNaN) else None
    if reason is not None:
        return ConfigError(reason)
    return BundleError("the model's probabilities are NaN: its weights are damaged")
