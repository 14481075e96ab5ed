"""What training minimises: the label-smoothed cross-entropy of a batch's real target tokens (section 5.4), or labels.

With R-Drop (Wu et al. 2021) every sentence passes twice, each time with other dropout, and the divergence between the
two predictions is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from headway.data.batching import Batch
from headway.engine.loss import projected_cross_entropy, projected_r_drop
from headway.models.classifier import EncoderClassifier
from headway.models.registry import Model, TranslationModel
from headway.nn.loss import label_smoothed_cross_entropy, r_drop_loss
from headway.text.tokenizer import BOS, PAD

__all__ = ["LabelObjective", "Objective", "TokenBatch", "batch_loss", "make_objective", "to_device"]


@dataclass(frozen=True)
class TokenBatch:
    """A batch as the model sees it.

    ``shifted`` is the target right behind the begin symbol. ``targets`` are the real target tokens to predict, end
    symbols included, row after row, and ``positions`` their places in the flattened (B, T). They are found on the host:
    selecting by a mask would make a GPU's host wait for their number.
    """

    source: Int[Tensor, "B S"]
    shifted: Int[Tensor, "B T"]
    positions: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]


def to_device(batch: Batch, device: torch.device) -> TokenBatch:
    """Make the decoder's input and the list of targets, and move all to the device, without waiting for it."""
    positions = np.flatnonzero(batch.target != PAD)

    def moved(array: NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    target = moved(batch.target)
    return TokenBatch(
        source=moved(batch.source),
        shifted=F.pad(target[:, :-1], (1, 0), value=BOS),
        positions=moved(positions),
        targets=moved(batch.target.reshape(-1)[positions]),
    )


class Objective(nn.Module):
    """From a batch to its summed loss, in nats: a module, so that it can be compiled and spread over processes."""

    def __init__(
        self, model: TranslationModel, label_smoothing: float, r_drop: float = 0.0, *, compiled: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing, self.r_drop = label_smoothing, r_drop
        # One graph for all shapes. The loss stays outside: it has its own gradient, and a loop over chunks.
        self._hidden = torch.compile(model.hidden, dynamic=True) if compiled else model.hidden

    def forward(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """The summed loss over the batch's real target tokens; padding gets no logits."""
        if not self.r_drop:
            states = self._hidden(batch.source, batch.shifted).flatten(0, 1).index_select(0, batch.positions)
            hidden, weight = _with_bias(states, self.model.projection)
            return projected_cross_entropy(hidden, weight, batch.targets, self.label_smoothing)
        states = self._hidden(batch.source.repeat(2, 1), batch.shifted.repeat(2, 1)).flatten(0, 1)
        twice, weight = _with_bias(states, self.model.projection)
        first, second = (half.index_select(0, batch.positions) for half in twice.chunk(2))
        return projected_r_drop(first, second, weight, batch.targets, self.label_smoothing, self.r_drop)


class LabelObjective(nn.Module):
    """From a batch of labelled texts to its summed loss, in nats; ``class_weights`` is what each class counts."""

    class_weights: Tensor | None

    def __init__(
        self,
        model: EncoderClassifier,
        label_smoothing: float,
        r_drop: float = 0.0,
        *,
        class_weights: Sequence[float] | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing, self.r_drop = label_smoothing, r_drop
        device = model.projection.weight.device
        weights = None if class_weights is None else torch.tensor(class_weights, device=device)
        self.register_buffer("class_weights", weights, persistent=False)
        self._logits = torch.compile(model, dynamic=True) if compiled else model

    def forward(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """The summed loss over the batch's texts. A label is one token, class + 1."""
        labels = batch.targets - 1
        passes = 2 if self.r_drop else 1
        logits = self._logits(batch.source.repeat(passes, 1)).float()
        if self.r_drop:
            first, second = logits.chunk(2)
            losses = r_drop_loss(first, second, labels, self.label_smoothing, self.r_drop)
        else:
            losses = label_smoothed_cross_entropy(logits, labels, self.label_smoothing)
        if self.class_weights is not None:
            losses = losses * self.class_weights[labels]
        return losses.sum()


def make_objective(
    model: Model,
    label_smoothing: float,
    r_drop: float = 0.0,
    *,
    class_weights: Sequence[float] | None = None,
    compiled: bool = False,
) -> Objective | LabelObjective:
    """What training ``model`` minimises."""
    if isinstance(model, EncoderClassifier):
        return LabelObjective(model, label_smoothing, r_drop, class_weights=class_weights, compiled=compiled)
    return Objective(model, label_smoothing, r_drop, compiled=compiled)


def _with_bias(
    hidden: Float[Tensor, "N D"], projection: nn.Linear
) -> tuple[Float[Tensor, "N E"], Float[Tensor, "V E"]]:
    """``hidden`` and ``weight`` whose product has the projection's bias in it, as one more dimension of ones."""
    if projection.bias is None:
        return hidden, projection.weight
    ones = hidden.new_ones(hidden.size(0), 1)
    return torch.cat([hidden, ones], 1), torch.cat([projection.weight, projection.bias.unsqueeze(1)], 1)


def batch_loss(model: Model, batch: TokenBatch, smoothing: float) -> Float[Tensor, ""]:
    """The summed loss in nats over the batch's real target tokens, in one pass."""
    loss: Tensor = make_objective(model, smoothing)(batch)
    return loss
