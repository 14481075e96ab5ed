"""Recurrent decoders, with and without attention (the encoder is in :mod:`headway.nn.recurrent`).

    h_t = d(h_{t-1}, y_{t-1}, z)        z is one vector for the whole sentence; h_0 = tanh(V z)
    y_t = g(h_t, y_{t-1}, z)

There is one class for each way in which a decoder uses the source:

    FixedVectorDecoder   z at every step, or only at the start     Cho et al. 2014; Sutskever et al. 2014
    BahdanauDecoder      c_t = attend(h_{t-1}) instead of z        Bahdanau et al. 2015
    LuongDecoder         c_t = attend(h_t), after the step         Luong et al. 2015

Here, attend(q) is the mean of the encoder's states z_1 .. z_S, weighted by the softmax of their scores with q.

All three classes depart from the papers in two ways. First, the initial state of each layer is tanh(V z), and the
initial cell of an LSTM is V' z. Sutskever et al. and Luong et al. copy the encoder's states instead. Bahdanau et al.
use only the backward half of z. Cho et al. apply two maps, tanh(V' tanh(V z)), and use tanh(V z) as z. Second, the
GRU's gates follow cuDNN (:mod:`headway.nn.recurrent`). Each class documents its other departures.

Dimensions: B sentences, R rows being decoded (the beams of a sentence are neighbors), S source and T target positions,
E width of an embedding, D width of a state. If a recurrence does not depend on the attention's result, one call
computes all steps of a layer, and one product computes the attention of all positions. Otherwise, steps are computed
one at a time, and only the products of their inputs are computed in advance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from headway.nn.arguments import check_floats
from headway.nn.attention import apply_observers
from headway.nn.blocks import xavier_linear
from headway.nn.dropout import Dropout
from headway.nn.recurrent import Cell, EncoderOutput, LayerState, RecurrentLayer, as_recurrent_layers
from headway.nn.scores import ScoreFunction, ScoreKind, make_score


@dataclass
class RecurrentMemory:
    """The memory of B sentences for attention: the encoder's states, and the keys prepared for the score function.

    Without attention, a sentence has a single state, its vector z, and keys have width 0.
    """

    states: Float[Tensor, "B S D"]
    keys: Float[Tensor, "B 1 S _"]
    score_bias: Float[Tensor, "B 1 1 S"]  # added to scores: minus infinity at padding, otherwise 0

    def select(self, sentences: Int[Tensor, " B2"]) -> None:
        """Keep only the given ``sentences``."""
        self.states, self.keys = self.states[sentences], self.keys[sentences]
        self.score_bias = self.score_bias[sentences]

    def append(self, other: RecurrentMemory) -> None:
        """Append the sentences of ``other``, whose lengths may differ."""
        width = max(self.states.size(1), other.states.size(1))
        both = [(one, width - one.states.size(1)) for one in (self, other)]
        self.states = torch.cat([F.pad(one.states, (0, 0, 0, more)) for one, more in both])
        self.keys = torch.cat([F.pad(one.keys, (0, 0, 0, more)) for one, more in both])
        self.score_bias = torch.cat([F.pad(one.score_bias, (0, more), value=-math.inf) for one, more in both])


@dataclass
class RecurrentState:
    """The decoding state: the memories of all sentences, and each row's layer states and fed-back output.

    ``fed_output`` has width 0 if no output is fed back. ``attention_weights`` are the weights of the newest position,
    or None without attention.
    """

    memory: RecurrentMemory
    layers: tuple[LayerState, ...]
    fed_output: Float[Tensor, "R _"]
    attention_weights: Float[Tensor, "R S"] | None = None

    @property
    def beams(self) -> int:
        """Number of rows of each sentence."""
        return self.fed_output.size(0) // max(1, len(self.memory.states))

    def select(self, rows: Int[Tensor, " R2"], sentences: Int[Tensor, " B2"] | None = None) -> None:
        """Reorder the rows: row i continues the old row ``rows[i]``. Only the memories of ``sentences`` are kept.

        None keeps all memories. Rows must stay grouped by sentence, with the same number of rows for each sentence.
        """
        self.layers = tuple(tuple(part[rows] for part in layer) for layer in self.layers)
        self.fed_output = self.fed_output[rows]
        if sentences is not None:
            self.memory.select(sentences)

    def append(self, other: RecurrentState) -> None:
        """Append the sentences and rows of ``other``."""
        self.memory.append(other.memory)
        self.layers = tuple(
            tuple(torch.cat(parts) for parts in zip(mine, theirs, strict=True))
            for mine, theirs in zip(self.layers, other.layers, strict=True)
        )
        self.fed_output = torch.cat([self.fed_output, other.fed_output])


class RecurrentAttention(nn.Module):
    """Compute attend(q): the mean of a sentence's states, weighted by the softmax of their scores with a query.

    :func:`~headway.nn.attention.observe_attention` observes or replaces the weights (B, 1, T, S) of each call.
    Even in training, T is 1 if each step needs the context of the previous step.
    """

    def __init__(self, d_model: int, score: ScoreKind, score_hidden: int | None = None) -> None:
        super().__init__()
        self.score: ScoreFunction = make_score(score, d_model, hidden=score_hidden)

    def encode_memory(self, encoded: EncoderOutput) -> RecurrentMemory:
        """Return the memory of the encoded sentences for attention."""
        bias = torch.zeros(encoded.mask.shape, dtype=encoded.states.dtype, device=encoded.mask.device)
        bias = bias.masked_fill_(~encoded.mask, -math.inf)[:, None, None]
        return RecurrentMemory(encoded.states, self.score.prepare(encoded.states.unsqueeze(1)), bias)

    def forward(
        self, query: Float[Tensor, "R T D"], memory: RecurrentMemory
    ) -> tuple[Float[Tensor, "R T D"], Float[Tensor, "B 1 _ S"]]:
        """Return the context and the weights of each query. All rows of a sentence attend to the sentence's memory."""
        check_floats("query", query, "rows", "queries", memory.states.size(-1))
        queries = query.reshape(memory.states.size(0), 1, -1, query.size(-1))
        weights = apply_observers(self, (self.score.compare(queries, memory.keys) + memory.score_bias).softmax(-1))
        return (weights.squeeze(1) @ memory.states).view(query.shape), weights


class Maxout(nn.Module):
    """The elementwise maximum of two linear maps (Goodfellow et al. 2013): g in Cho et al. 2014, appendix A.1.2."""

    def __init__(self, d_input: int, d_output: int) -> None:
        super().__init__()
        self.linear = xavier_linear(d_input, 2 * d_output)

    def forward(self, x: Float[Tensor, "*b _"]) -> Float[Tensor, "*b _"]:
        """Return the elementwise maximum of the two maps."""
        return torch.maximum(*self.linear(x).chunk(2, -1))


class RecurrentDecoder(nn.Module):
    """Recurrent layers, and the map V from z to their initial states. Subclasses define the input and the output.

    A call takes the embeddings of the next T tokens of each row (a whole target or one token) and advances the state by
    these tokens. Its output has width ``d_output``.
    """

    d_output: int

    def __init__(self, cell: Cell, d_input: int, d_model: int, *, layers: int, dropout: float) -> None:
        super().__init__()
        inputs = [d_input] + [d_model] * (layers - 1)
        self.layers = nn.ModuleList(RecurrentLayer(cell, width, d_model) for width in inputs)
        self.num_states = 1 if cell == "gru" else 2
        self.bridge = xavier_linear(d_model, layers * self.num_states * d_model)
        self.dropout = Dropout(dropout)
        self.d_fed_output = 0

    def encode_memory(self, encoded: EncoderOutput) -> RecurrentMemory:
        """Return the memory of the encoded sentences. Without attention, it contains only z."""
        z = encoded.vector.unsqueeze(1)
        return RecurrentMemory(z, z[:, None, :, :0], z.new_zeros(len(z), 1, 1, 1))

    def initial_state(self, encoded: EncoderOutput) -> RecurrentState:
        """Return the state before the first token, h_0 = tanh(V z) and c_0 = V' z, with one row per sentence."""
        parts = self.bridge(encoded.vector).to(self.bridge.weight.dtype).chunk(len(self.layers) * self.num_states, 1)
        states = [part if index % self.num_states else part.tanh() for index, part in enumerate(parts)]
        layers = tuple(
            tuple(states[start : start + self.num_states]) for start in range(0, len(states), self.num_states)
        )
        return RecurrentState(
            self.encode_memory(encoded), layers, states[0].new_zeros(len(states[0]), self.d_fed_output)
        )

    def run_layers(self, x: Float[Tensor, "R T _"], state: RecurrentState, first: int = 0) -> Float[Tensor, "R T D"]:
        """Compute all steps of layer ``first`` and of the layers above it, with one call per layer."""
        after = list(state.layers)
        for index, layer in list(enumerate(as_recurrent_layers(self.layers)))[first:]:
            x, after[index] = layer(self.dropout(x) if index else x, after[index])
        state.layers = tuple(after)
        return x

    def step(self, gates: Float[Tensor, "R _"], state: RecurrentState) -> Float[Tensor, "R D"]:
        """Compute one step of all layers, given the inputs' contribution to the first layer's gates."""
        after: list[LayerState] = []
        for layer, before in zip(as_recurrent_layers(self.layers), state.layers, strict=True):
            after.append(layer.step(layer.gate_inputs(self.dropout(after[-1][0])) if after else gates, before))
        state.layers = tuple(after)
        return after[-1][0]


class FixedVectorDecoder(RecurrentDecoder):
    """A decoder that depends on the source only through the vector z.

    With ``every_step`` (Cho et al. 2014, section 2.2 and appendix A.1.2):

        h_t = d(h_{t-1}, [y_{t-1}; z])
        out = maxout(W [h_t; y_{t-1}; z])

    In the appendix, the reset gate is also applied to z's part of the candidate state, tanh(W y + r (U h + C z)). Here,
    z is an input, so the gate is applied only to U h.

    Without ``every_step`` (Sutskever et al. 2014), z determines only the initial state:

        h_t = d(h_{t-1}, y_{t-1})
        out = h_t
    """

    def __init__(
        self, cell: Cell, d_embedding: int, d_model: int, *, layers: int, dropout: float, every_step: bool
    ) -> None:
        super().__init__(cell, d_embedding + every_step * d_model, d_model, layers=layers, dropout=dropout)
        self.every_step = every_step
        self.d_output = d_embedding if every_step else d_model
        if every_step:
            self.readout = Maxout(2 * d_model + d_embedding, d_embedding)

    def forward(self, y: Float[Tensor, "R T E"], state: RecurrentState) -> Float[Tensor, "R T _"]:
        """Apply the class's equations to each token."""
        width = self.d_output if self.every_step else as_recurrent_layers(self.layers)[0].cell.input_size
        check_floats("y", y, state.fed_output.size(0), "length", width)
        if not self.every_step:
            return self.run_layers(y, state)
        z = state.memory.states.repeat_interleave(state.beams, 0).expand(-1, y.size(1), -1)
        h = self.run_layers(torch.cat([y, z], 2), state)
        out: Tensor = self.readout(torch.cat([h, y, z], 2))
        return out


class AttentionDecoder(RecurrentDecoder):
    """A decoder that attends to the encoder's states."""

    attention: RecurrentAttention

    def encode_memory(self, encoded: EncoderOutput) -> RecurrentMemory:
        """Return all of the encoder's states as the memory."""
        return self.attention.encode_memory(encoded)


class BahdanauDecoder(AttentionDecoder):
    """A decoder that attends with the state before a step, and feeds the context into the step (Bahdanau et al. 2015).

        c_t = attend(h_{t-1})
        h_t = d(h_{t-1}, [y_{t-1}; c_t])
        out = maxout(W [h_t; y_{t-1}; c_t])

    The equations are from section 3.1. The output uses h_t, as in equation 4; appendix A.2.2 uses h_{t-1}. With several
    layers, the first layer's state is the query, as in Wu et al. 2016, and the output uses the last layer's state. So
    only the first layer must be computed step by step.
    """

    def __init__(
        self,
        cell: Cell,
        d_embedding: int,
        d_model: int,
        *,
        layers: int,
        dropout: float,
        score: ScoreKind,
        score_hidden: int | None = None,
    ) -> None:
        super().__init__(cell, d_embedding + d_model, d_model, layers=layers, dropout=dropout)
        self.attention = RecurrentAttention(d_model, score, score_hidden)
        self.readout = Maxout(2 * d_model + d_embedding, d_embedding)
        self.d_output = d_embedding

    def forward(self, y: Float[Tensor, "R T E"], state: RecurrentState) -> Float[Tensor, "R T _"]:
        """Apply the class's equations to each token."""
        check_floats("y", y, state.fed_output.size(0), "length", self.d_output)
        layer = as_recurrent_layers(self.layers)[0]
        before, states, contexts = state.layers[0], [], []
        for of_y in layer.gate_inputs(y).unbind(1):
            context, weights = self.attention(before[0].unsqueeze(1), state.memory)
            before = layer.step(layer.gate_inputs(context.squeeze(1), of_y), before)
            states.append(before[0])
            contexts.append(context)
        state.attention_weights = weights.flatten(0, 2)
        state.layers = (before, *state.layers[1:])
        h, c = self.run_layers(torch.stack(states, 1), state, first=1), torch.cat(contexts, 1)
        out: Tensor = self.readout(torch.cat([h, y, c], 2))
        return out


class LuongDecoder(AttentionDecoder):
    """A decoder that attends with the state after a step (Luong et al. 2015, section 3).

        h_t = d(h_{t-1}, y_{t-1})            or with ``input_feeding`` d(h_{t-1}, [y_{t-1}; out_{t-1}]), section 3.3
        c_t = attend(h_t)
        out = tanh(W [c_t; h_t])             equation 5

    h_t is the last layer's state. Without input feeding, no step depends on the attention of another step, so all steps
    are computed at once.
    """

    def __init__(
        self,
        cell: Cell,
        d_embedding: int,
        d_model: int,
        *,
        layers: int,
        dropout: float,
        score: ScoreKind,
        score_hidden: int | None = None,
        input_feeding: bool,
    ) -> None:
        super().__init__(cell, d_embedding + input_feeding * d_embedding, d_model, layers=layers, dropout=dropout)
        self.attention = RecurrentAttention(d_model, score, score_hidden)
        self.combine = xavier_linear(2 * d_model, d_embedding)
        self.d_output = d_embedding
        self.d_fed_output = d_embedding if input_feeding else 0

    def forward(self, y: Float[Tensor, "R T E"], state: RecurrentState) -> Float[Tensor, "R T _"]:
        """Apply the class's equations to each token."""
        check_floats("y", y, state.fed_output.size(0), "length", self.d_output)
        if not self.d_fed_output:
            out, weights = self._attend(self.run_layers(y, state), state.memory)
            state.attention_weights = weights.reshape(*y.shape[:2], -1)[:, -1]
            return out
        layer, outs = as_recurrent_layers(self.layers)[0], []
        for of_y in layer.gate_inputs(y).unbind(1):
            h = self.step(layer.gate_inputs(state.fed_output, of_y), state)
            out, weights = self._attend(h.unsqueeze(1), state.memory)
            state.fed_output = out.squeeze(1)
            outs.append(out)
        state.attention_weights = weights.flatten(0, 2)
        return torch.cat(outs, 1)

    def _attend(self, h: Float[Tensor, "R T D"], memory: RecurrentMemory) -> tuple[Tensor, Tensor]:
        context, weights = self.attention(h, memory)
        return self.combine(torch.cat([context, h], 2)).tanh(), weights
