"""The training objective of models that predict tokens: label-smoothed cross-entropy, optionally with R-Drop.

The loss is the label-smoothed cross-entropy of the real target tokens (Vaswani et al. 2017, section 5.4). The smoothing
prior is uniform, or the relative frequencies of target tokens in the training data (:mod:`headway.nn.loss`). With
R-Drop (Wu et al. 2021), the model processes each sequence twice with different dropout masks, and the divergence
between the two predictions is added to the loss.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from headway.engine.loss import projected_cross_entropy, projected_r_drop
from headway.models.base import Model
from headway.training.stream import TokenBatch
from headway.training.task import Objective


class TokenObjective(Objective):
    """The label-smoothed cross-entropy of a batch's real target tokens, optionally with R-Drop.

    Args:
        model: The model to train.
        label_smoothing: Probability mass moved from the target to all tokens.
        r_drop: Weight of the divergence between two forward passes. 0 disables the second pass.
        prior: Distribution of this probability mass over the tokens. None means uniform.
    """

    prior: Tensor | None

    def __init__(
        self, model: Model, label_smoothing: float, r_drop: float = 0.0, prior: Float[Tensor, " V"] | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing, self.r_drop = label_smoothing, r_drop
        self.register_buffer("prior", None if prior is None else prior.to(model.device), persistent=False)

    def forward(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the training loss, summed over the batch's real target tokens. No logits are computed for padding."""
        inputs = self.inputs(batch)
        if not self.r_drop:
            return self.loss_of(self.states(*inputs), batch, self.label_smoothing)
        states = self.states(*(tokens.repeat(2, 1) for tokens in inputs))
        first, second = (self.outputs(half, batch) for half in states.chunk(2))
        weight, bias = self.model.projection.weight, self.model.projection.bias
        smoothing = self.label_smoothing, self.r_drop
        return projected_r_drop(first, second, weight, batch.targets, *smoothing, bias, self.prior)

    def cross_entropy(self, batch: TokenBatch) -> Float[Tensor, ""]:
        """Return the cross-entropy without smoothing, using a single pass."""
        return self.loss_of(self.states(*self.inputs(batch)), batch, 0.0)

    def inputs(self, batch: TokenBatch) -> tuple[Tensor, ...]:
        """Return the model's input tokens."""
        raise NotImplementedError

    def states(self, *inputs: Tensor) -> Float[Tensor, "B T D"]:
        """Return the model's hidden states at all target positions."""
        states: Tensor = self.model.hidden(*inputs)
        return states

    def outputs(self, states: Float[Tensor, "B T D"], batch: TokenBatch) -> Float[Tensor, "N D"]:
        """Return the state from which the projection computes logits, for each target."""
        return states.flatten(0, 1).index_select(0, batch.target_positions)

    def loss_of(self, states: Float[Tensor, "B T D"], batch: TokenBatch, smoothing: float) -> Float[Tensor, ""]:
        """Return the summed loss, given the hidden states at all positions."""
        hidden, projection = self.outputs(states, batch), self.model.projection
        return projected_cross_entropy(hidden, projection.weight, batch.targets, smoothing, self.prior, projection.bias)
