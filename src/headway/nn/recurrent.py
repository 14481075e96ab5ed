"""Recurrent layers, and an encoder that consists of them, as in sequence-to-sequence models before the Transformer.

    h_t = e(h_{t-1}, x_t)     from x_1 to x_S (Cho et al. 2014), or from both ends (Bahdanau et al. 2015, section 3.2)
    z   = h_S                 the sentence as one vector (Cho et al. 2014, section 2.2), or the mean or maximum of all h

The decoders are in :mod:`headway.nn.recurrent_decoders`. Dimensions: B sentences, S source and T target positions, E
width of an embedding, D width of a state, R rows being decoded (the beams of a sentence are neighbors).

The gates follow cuDNN: the GRU's reset gate is applied after the matrix product, r (U h). Cho et al. (equation 8) and
Bahdanau et al. (appendix A.1.1) apply it before the product, U (r h). Cho et al.'s decoder (appendix A.1.2) applies it
after the product, as we do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.nn.arguments import check_floats, check_integers
from headway.nn.dropout import Dropout

Cell = Literal["gru", "lstm"]
Summary = Literal["final", "mean", "max"]
LayerState = tuple[Tensor, ...]  # (h,) for a GRU, (h, c) for an LSTM; each (R, D)


class RecurrentLayer(nn.Module):
    """One layer of GRU (Cho et al. 2014) or LSTM (Hochreiter and Schmidhuber 1997) cells, in one direction.

    Each gate's input matrix is initialized Xavier-uniformly, and its state-to-state matrix orthogonally. Biases are
    initialized to zero, except the bias of an LSTM's forget gate, which is initialized to one (Jozefowicz et al. 2015).

    With ``weight_drop``, each training call of :meth:`forward` drops elements of the state-to-state matrices with this
    probability, the same elements at all steps (weight drop, Merity et al. 2018, section 2).
    """

    def __init__(self, cell: Cell, d_input: int, d_state: int, *, weight_drop: float = 0.0) -> None:
        super().__init__()
        kind = cast("Any", nn.GRU if cell == "gru" else nn.LSTM)  # PyTorch's types do not declare the weights
        layer = kind(d_input, d_state, batch_first=True)
        self.cell: Any = layer
        self.num_states = 1 if cell == "gru" else 2
        self.weight_dropout = Dropout(weight_drop)
        for weight in layer.weight_ih_l0.chunk(2 + self.num_states):
            nn.init.xavier_uniform_(weight)
        for weight in layer.weight_hh_l0.chunk(2 + self.num_states):
            nn.init.orthogonal_(weight)
        nn.init.zeros_(layer.bias_ih_l0)
        nn.init.zeros_(layer.bias_hh_l0)
        if cell == "lstm":
            nn.init.ones_(layer.bias_ih_l0[d_state : 2 * d_state])

    def initial_state(self, x: Float[Tensor, "B S _"]) -> LayerState:
        """Return the state before the first step, which is zero."""
        zeros: Tensor = self.cell.weight_hh_l0.new_zeros(x.size(0), self.cell.hidden_size)
        return (zeros,) * self.num_states

    def forward(self, x: Float[Tensor, "R T _"], state: LayerState) -> tuple[Float[Tensor, "R T D"], LayerState]:
        """Return h after each step, and the state after the last step."""
        check_floats("x", x, "batch", "length", self.cell.input_size)
        for part in state:
            check_floats("state", part, x.size(0), self.cell.hidden_size)
        outputs = []
        weight = self.weight_dropout(self.cell.weight_hh_l0)
        for gates in self.gate_inputs(x).unbind(1):
            state = self.step(gates, state, weight)
            outputs.append(state[0])
        return torch.stack(outputs, 1), state

    def gate_inputs(self, x: Float[Tensor, "*b _"], base: Float[Tensor, "R _"] | None = None) -> Float[Tensor, "*b _"]:
        """Return the contribution of ``x`` to all gates.

        Without ``base``, ``x`` is the first part of the layer's input, and the biases are added. If the contribution of
        the first part is passed as ``base``, ``x`` is the last part of the input, and both contributions are added.
        """
        weight = self.cell.weight_ih_l0
        if base is None:
            return F.linear(x, weight[:, : x.size(-1)], self.cell.bias_ih_l0)
        return torch.addmm(base, x, weight[:, -x.size(-1) :].t())

    def step(
        self, gates: Float[Tensor, "R _"], state: LayerState, weight: Float[Tensor, "_ D"] | None = None
    ) -> LayerState:
        """Return the next state, given the inputs' contribution to the gates.

        ``weight`` replaces the layer's state-to-state matrices.
        """
        h = state[0]
        weight = self.cell.weight_hh_l0 if weight is None else weight
        recurrent = F.linear(h, weight, self.cell.bias_hh_l0).to(h.dtype)
        gates = gates.to(h.dtype)
        width = h.size(1)
        if self.num_states == 1:
            reset, update = (gates[:, : 2 * width] + recurrent[:, : 2 * width]).sigmoid().chunk(2, 1)
            candidate = torch.addcmul(gates[:, 2 * width :], reset, recurrent[:, 2 * width :]).tanh()
            return (torch.lerp(candidate, h, update),)
        summed = gates + recurrent
        enter, forget = summed[:, : 2 * width].sigmoid().chunk(2, 1)
        c = forget * state[1] + enter * summed[:, 2 * width : 3 * width].tanh()
        return (summed[:, 3 * width :].sigmoid() * c.tanh(), c)


@dataclass(frozen=True)
class EncoderOutput:
    """The encoder's output for B sentences."""

    states: Float[Tensor, "B S D"]
    mask: Bool[Tensor, "B S"]  # True at tokens, False at padding
    vector: Float[Tensor, "B D"]  # z


class RecurrentEncoder(nn.Module):
    """Layers that process the source forward and, if ``bidirectional``, also backward, with half of the units each.

    The halves are concatenated, so a state has width D. For the backward layers, each sentence is reversed within its
    own length. Padding therefore stays at the end, where it has no effect, and lengths are not copied to the host.
    """

    def __init__(
        self,
        cell: Cell,
        d_input: int,
        d_model: int,
        *,
        layers: int,
        bidirectional: bool,
        vector_pooling: Summary,
        dropout: float,
    ) -> None:
        super().__init__()
        self.width = d_model // 2 if bidirectional else d_model
        self.vector_pooling = vector_pooling
        inputs = [d_input] + [d_model] * (layers - 1)
        self.forward_layers = nn.ModuleList(RecurrentLayer(cell, width, self.width) for width in inputs)
        self.backward_layers = nn.ModuleList(
            RecurrentLayer(cell, width, self.width) for width in inputs if bidirectional
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B S E"], lengths: Int[Tensor, " B"]) -> EncoderOutput:
        """Encode B sentences of the given ``lengths``, which must be at least 1."""
        check_floats("x", x, "batch", "length", as_recurrent_layers(self.forward_layers)[0].cell.input_size)
        check_integers("lengths", lengths, x.size(0))
        positions = torch.arange(x.size(1), device=x.device)
        mask = positions < lengths.unsqueeze(1)
        turned = torch.where(mask, lengths.unsqueeze(1) - 1 - positions, positions).unsqueeze(2)
        for index, layer in enumerate(as_recurrent_layers(self.forward_layers)):
            x = self.dropout(x) if index else x
            states, _ = layer(x, layer.initial_state(x))
            if self.backward_layers:
                layer = as_recurrent_layers(self.backward_layers)[index]
                backward, _ = layer(x.gather(1, turned.expand_as(x)), layer.initial_state(x))
                states = torch.cat([states, backward.gather(1, turned.expand_as(backward))], 2)
            x = states
        return EncoderOutput(x, mask, self._vector(x, mask, lengths))

    def _vector(
        self, states: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B D"]:
        """Return z: the last state of each direction, or the mean or maximum over all positions."""
        match self.vector_pooling:
            case "mean":
                return states.masked_fill(~mask.unsqueeze(2), 0.0).sum(1) / lengths.unsqueeze(1)
            case "max":
                return states.masked_fill(~mask.unsqueeze(2), -math.inf).amax(1)
            case "final":
                rows = torch.arange(states.size(0), device=states.device)
                return torch.cat([states[rows, lengths - 1, : self.width], states[:, 0, self.width :]], 1)


def as_recurrent_layers(modules: nn.ModuleList) -> list[RecurrentLayer]:
    """Return ``modules`` as a list that is typed as recurrent layers."""
    return cast("list[RecurrentLayer]", list(modules))
