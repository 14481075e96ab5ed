"""Several models as one: their probabilities are averaged at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.decode.protocol import Attended, SearchModel, SearchState, attends, device_of
from headway.errors import ConfigError

__all__ = ["Ensemble", "EnsembleState"]


@dataclass(frozen=True)
class _Attended:
    logits: Float[Tensor, "R V"]
    attention: Float[Tensor, "R S"]


class EnsembleState:
    """The states of an ensemble's models, which do all things together."""

    def __init__(self, states: Sequence[SearchState]) -> None:
        self.states = list(states)

    def select(self, rows: Int[Tensor, " R2"], sentences: Int[Tensor, " B2"] | None = None) -> None:
        """See :meth:`SearchState.select`."""
        for state in self.states:
            state.select(rows, sentences)

    def join(self, other: EnsembleState) -> None:
        """See :meth:`SearchState.join`."""
        for state, theirs in zip(self.states, other.states, strict=True):
            state.join(theirs)


class Ensemble:
    """A search model whose probabilities are the mean of its members' (the arithmetic mean, weights all equal).

    The members are on one device and share their vocabularies, token by token; where these differ in size, the first
    step raises :class:`ConfigError`.
    """

    def __init__(self, models: Sequence[SearchModel[Any]]) -> None:
        if not models:
            raise ConfigError("an ensemble of no models: give at least one")
        self.models = list(models)
        self.device = device_of(models[0])
        self.one_thread = all(getattr(model, "one_thread", False) for model in models)

    @property
    def attends(self) -> bool:
        """Whether all members tell what they attend to."""
        return all(attends(model) for model in self.models)

    def start(self, source: Int[Tensor, "B S"]) -> EnsembleState:
        """See :meth:`SearchModel.start`."""
        return EnsembleState([model.start(source) for model in self.models])

    def advance(self, state: EnsembleState, tokens: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        """The logarithm of the mean probabilities."""
        return _mean([model.advance(one, tokens) for model, one in zip(self.models, state.states, strict=True)])

    def advance_attending(self, state: EnsembleState, tokens: Int[Tensor, " R"]) -> Attended:
        """The same with the mean of what the members attend to."""
        found = []
        for model, one in zip(self.models, state.states, strict=True):
            if not attends(model):
                raise ConfigError(f"this {type(model).__name__}, of the ensemble, does not tell what it attends to")
            found.append(model.advance_attending(one, tokens))
        attention = torch.stack([attended.attention.float() for attended in found]).mean(0)
        return _Attended(_mean([attended.logits for attended in found]), attention)

    def __call__(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """The logarithm of the mean probabilities after each target position, for :func:`score_targets`."""
        return _mean([model(source, target) for model in self.models])  # type: ignore[operator]


def _mean(logits: Sequence[Float[Tensor, "*b V"]]) -> Float[Tensor, "*b V"]:
    """Log of the mean of the softmaxes."""
    for other in logits[1:]:
        if other.size(-1) != logits[0].size(-1):
            raise ConfigError(
                f"the models of an ensemble have vocabularies of different sizes, {logits[0].size(-1)} and "
                f"{other.size(-1)} tokens; they must share one"
            )
    return torch.stack([one.float().log_softmax(-1) for one in logits]).logsumexp(0) - math.log(len(logits))
