"""A moving average of the weights, kept beside them while they train.

    shadow <- d shadow + (1 - d) weight        after each step s, with d = min(decay, (1 + s) / (10 + s))

The averaged iterate is less noisy than the last one (Polyak and Juditsky 1992), with exponentially fading weight here
because early iterates are poor. Its decay starts low so that the random initial weights are soon forgotten: the rule is
that of TensorFlow's ``ExponentialMovingAverage`` with ``num_updates``. Being a function of the step, it needs no state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headway.bundle import load_weights, named_weights

__all__ = ["MovingAverage"]


class MovingAverage:
    """The moving average of a model's weights; it starts as their copy."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._model = model
        self._weights = [_mine(parameter.detach()) for parameter in model.parameters()]
        self._shadows = [weight.clone() for weight in self._weights]

    @torch.no_grad()
    def update(self, step: int, moved: Bool[Tensor, ""]) -> None:
        """Follow the weights after ``step``, counted from 1; where they have not ``moved``, stay, too.

        ``moved`` is a tensor on the weights' device, so the host does not wait for it.
        """
        approach = moved * (1 - min(self.decay, (1 + step) / (10 + step)))
        torch._foreach_lerp_(self._shadows, self._weights, [approach] * len(self._shadows))

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """The model has the averaged weights inside, and exactly its own again afterwards."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        # Values move, not tensors: compiled kernels and shards keep their addresses.
        for weight, shadow in zip(self._weights, self._shadows, strict=True):
            own = weight.clone()
            weight.copy_(shadow)
            shadow.copy_(own)

    def named_weights(self) -> dict[str, Tensor]:
        """A copy of the averaged weights, under the public names of a model's own."""
        with self.in_model():
            return {name: tensor.clone() for name, tensor in named_weights(self._model).items()}

    def load(self, weights: dict[str, Tensor], origin: Path) -> None:
        """Put back what :meth:`named_weights` gave; :class:`BundleError` names ``origin`` where they do not fit."""
        with self.in_model():
            load_weights(self._model, weights, origin)


def _mine(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor that several may share."""
    mine: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return mine
