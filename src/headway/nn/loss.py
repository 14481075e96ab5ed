"""Label-smoothed cross-entropy (Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4), and other losses.

With smoothing eps, target y and a prior u over the V tokens, the reference distribution is

    q(k) = (1 - eps) [k = y] + eps u(k)

and the loss of one position is H(q, p) = -sum_k q(k) log p(k) = KL(q || p) + H(q), where p is the softmax of the
logits. By default, the prior is uniform, 1 / V, as in the paper. Another prior can be given, for example the share of
each token in the training data (``training.label_smoothing_prior = "unigram"``). These functions do not skip padding,
so remove padding from the targets first.

R-Drop (Wu et al. 2021) passes each input through the model twice, with different dropout masks, and penalizes the
divergence of the two predictions p1 and p2. We use half of its equation 4, so that two equal passes have the same loss
as one pass:

    (H(q, p1) + H(q, p2)) / 2 + alpha / 4 (KL(p1 || p2) + KL(p2 || p1))
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.nn.arguments import check_floats, check_ids, check_integers


def label_smoothed_cross_entropy(
    logits: Float[Tensor, "N V"],
    targets: Int[Tensor, " N"],
    smoothing: float = 0.0,
    prior: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, " N"]:
    """Return H(q, p) in nats for each of N positions, computed in float32 (float64 for float64 logits).

    With smoothing eps and ``prior`` u, which must sum to one (None means 1 / V for each token), this is

        H(q, p) = -(1 - eps) log p(y) - eps sum_k u(k) log p(k)
    """
    check_floats("logits", logits, "positions", "vocabulary")
    check_integers("targets", targets, logits.size(0))
    if prior is not None:
        check_floats("prior", prior, logits.size(1))
    logits = _at_least_float32(logits)
    log_normalizer = logits.logsumexp(-1)
    try:
        target_logits = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    except (IndexError, RuntimeError):
        check_ids("targets", targets, logits.size(1))
        raise
    if not smoothing:
        return log_normalizer - target_logits
    prior_logits = logits.mean(-1) if prior is None else (logits * prior.to(logits)).sum(-1)
    return log_normalizer - torch.lerp(target_logits, prior_logits, smoothing)


def r_drop_loss(
    logits1: Float[Tensor, "N V"],
    logits2: Float[Tensor, "N V"],
    targets: Int[Tensor, " N"],
    smoothing: float,
    alpha: float,
    prior: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, " N"]:
    """Return the R-Drop loss in nats for each of N positions, given the logits of two passes."""
    cross_entropies = [label_smoothed_cross_entropy(logits, targets, smoothing, prior) for logits in (logits1, logits2)]
    log_p1, log_p2 = (_at_least_float32(logits).log_softmax(-1) for logits in (logits1, logits2))
    # KL(p1 || p2) + KL(p2 || p1) = sum of (p1 - p2) (log p1 - log p2)
    divergence = ((log_p1.exp() - log_p2.exp()) * (log_p1 - log_p2)).sum(-1)
    return sum(cross_entropies) / 2 + alpha / 4 * divergence


def distillation_loss(
    logits: Float[Tensor, "N V"], teacher_logits: Float[Tensor, "N V"], temperature: float = 1.0
) -> Float[Tensor, " N"]:
    """Return T^2 KL(q || p) in nats for each of N positions, where q and p are the softmax of the logits divided by T.

    A temperature T > 1 increases the weight of the teacher's predictions for improbable tokens. The factor T^2
    preserves the magnitude of the gradients (Hinton et al. 2015, "Distilling the Knowledge in a Neural Network",
    section 2).
    """
    log_p, log_q = ((_at_least_float32(tensor) / temperature).log_softmax(-1) for tensor in (logits, teacher_logits))
    return temperature**2 * F.kl_div(log_p, log_q, reduction="none", log_target=True).sum(-1)


def projected_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, " N"],
    smoothing: float = 0.0,
    prior: Float[Tensor, " V"] | None = None,
) -> Float[Tensor, ""]:
    """Return the sum of :func:`label_smoothed_cross_entropy` over the logits ``hidden`` W^T.

    :func:`headway.engine.loss.projected_cross_entropy` computes the same sum without storing all logits.
    """
    check_floats("weight", weight, "vocabulary", "width")
    check_floats("hidden", hidden, "positions", weight.size(1))
    return label_smoothed_cross_entropy(F.linear(hidden, weight), targets, smoothing, prior).sum()


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
