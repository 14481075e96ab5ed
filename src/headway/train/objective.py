"""What training minimises: the label-smoothed cross-entropy of a batch's real target tokens (section 5.4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.data.batching import Batch
from headway.models.build import Model
from headway.nn.loss import projected_cross_entropy
from headway.text.tokenizer import BOS, PAD

__all__ = ["TokenBatch", "batch_loss", "to_device"]


@dataclass(frozen=True)
class TokenBatch:
    """A batch as the model sees it: sources, targets shifted right behind the begin symbol, and the targets to predict.

    ``num_targets`` counts the real target tokens, end symbols included; ``num_sources`` the real source tokens.
    """

    source: Int[Tensor, "B S"]
    shifted: Int[Tensor, "B T"]
    target: Int[Tensor, "B T"]
    num_sources: int
    num_targets: int


def to_device(batch: Batch, device: torch.device) -> TokenBatch:
    """Make the decoder's input and move all to the device."""
    target = torch.from_numpy(batch.target)
    return TokenBatch(
        source=torch.from_numpy(batch.source).to(device, non_blocking=True),
        shifted=F.pad(target[:, :-1], (1, 0), value=BOS).to(device, non_blocking=True),
        target=target.to(device, non_blocking=True),
        num_sources=int((batch.source != PAD).sum()),
        num_targets=int((batch.target != PAD).sum()),
    )


def batch_loss(model: Model, batch: TokenBatch, smoothing: float) -> Float[Tensor, ""]:
    """The summed loss in nats over the batch's real target tokens; padding gets no logits."""
    real = batch.target != PAD
    hidden = model.hidden(batch.source, batch.shifted)[real]
    return projected_cross_entropy(hidden, model.projection.weight, batch.target[real], smoothing)
