"""Label-smoothed cross-entropy (Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4).

With the smoothing eps, the target y and a prior u over the V tokens, the reference distribution is

    q(k) = (1 - eps) [k = y] + eps u(k)

and the loss of one position is H(q, p) = -sum_k q(k) log p(k) = KL(q || p) + H(q), where p is the softmax of the
logits. The prior is uniform, 1 / V, as in the paper, or given (unigram frequencies, say).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["label_smoothed_cross_entropy"]


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "N V"],
    targets: Int[Tensor, " N"],
    smoothing: float = 0.0,
    prior: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, " N"]:
    """H(q, p) in nats for each of N positions. Select the real targets first: padding has no place here.

    ``prior`` must sum to one; None is the uniform distribution.
    """
    logits = logits.float()
    normaliser = logits.logsumexp(-1)
    target_logits = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    if not smoothing:
        return normaliser - target_logits
    prior_logits = logits.mean(-1) if prior is None else logits @ prior
    return normaliser - torch.lerp(target_logits, prior_logits, smoothing)
