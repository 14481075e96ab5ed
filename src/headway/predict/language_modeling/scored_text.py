"""The result of scoring a text, and the interface of models that score texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headway.errors import ConfigError


@dataclass(frozen=True)
class ScoredText:
    """The log-probabilities of a text's tokens, in nats.

    Attributes:
        tokens: The tokens as displayed.
        token_log_probabilities: The log-probability of each token, without EOS.
        eos_log_probability: The log-probability of EOS after the text. None for a model that does not predict EOS.
    """

    tokens: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]
    eos_log_probability: float | None

    @property
    def log_probability(self) -> float:
        """The log-probability of the text: the sum over its tokens and, if the model predicts it, EOS."""
        return math.fsum([*self.token_log_probabilities, self.eos_log_probability or 0.0])


@runtime_checkable
class TextScorer(Protocol):
    """A model that assigns log-probabilities, or pseudo-log-likelihoods, to the tokens of texts."""

    def score(self, texts: Sequence[str]) -> list[ScoredText]:
        """Score texts. The result for a text does not depend on the other texts, except for rounding."""


def refuse_single_text(texts: Iterable[str]) -> None:
    """Raise :class:`ConfigError` if ``texts`` is a single text, which would be treated as a list of characters."""
    if isinstance(texts, str):
        raise ConfigError("expected a list of texts, not a single text; pass a list: [text]")
