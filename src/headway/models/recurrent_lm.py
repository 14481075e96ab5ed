"""The recurrent language model: stacked LSTM or GRU layers that predict each token from all tokens before it.

    h^0_t = E y_t                       h^n_t = layer_n(h^n_{t-1}, h^{n-1}_t)        p(y_{t+1}) = softmax(W h^N_t + b)

This is the deep recurrent network of Graves 2013 ("Generating Sequences With Recurrent Neural Networks", section 2),
without its connections from the input to each layer and from each layer to the output. Regularization follows AWD-LSTM
(Merity et al. 2018, "Regularizing and Optimizing LSTM Language Models"):

    weight_drop        elements of the state-to-state matrices, once for a whole block      section 2
    dropout            variational: one mask for all positions of a block                   section 4.2
    word_type_dropout  all occurrences of a word type in a batch                            section 4.3

AWD-LSTM's optimizer (NT-ASGD), random block lengths and activation regularization are not included.

The state, which summarizes the text so far, is carried from one block of a text to the next (``carry_state``); see
:meth:`RecurrentLM.continue_from`. Gradients are truncated at the beginning of a block (truncated backpropagation
through time). In a search, the model's source is the prompt, as in :mod:`headway.models.decoder_only`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from headway.decode.protocol import Step
from headway.models.base import ArchitectureConfig, ContinuationModel
from headway.nn.dropout import Dropout, LockedDropout
from headway.nn.embedding import TokenEmbedding, output_projection, pad_sequences
from headway.nn.recurrent import Cell, LayerState, RecurrentLayer, as_recurrent_layers

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 256, "num_layers": 1, "dropout": 0.1},
    "small": {"d_model": 512, "num_layers": 2},
    # Merity et al. 2018, section 5, for the Penn Treebank
    "awd-lstm": {
        "d_model": 1150, "d_embedding": 400, "num_layers": 3, "max_length": 70, "dropout": 0.3, "input_dropout": 0.4,
        "output_dropout": 0.4, "word_type_dropout": 0.1, "weight_drop": 0.5,
    },
}  # fmt: skip

TextState = tuple[LayerState, ...]  # the state of each layer


class RecurrentLMConfig(ArchitectureConfig):
    """The sizes and options of a recurrent language model."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    kind: Literal["recurrent_lm"] = Field("recurrent_lm", description="The architecture.")
    cell: Cell = Field("lstm", description="Type of the cells in all layers: gru or lstm.")
    d_model: int = Field(512, ge=1, description="Width of the states, in units.")
    d_embedding: int | None = Field(
        None,
        ge=1,
        description="Width of token embeddings and, with tie = 'target', of the last layer. Default: d_model.",
    )
    num_layers: int = Field(2, ge=1, description="Number of recurrent layers.")
    max_length: int = Field(
        128,
        ge=2,
        description="Length of training blocks in tokens, over which gradients are propagated. The length of texts and "
        "the context are not limited.",
    )
    carry_state: bool = Field(
        True,
        description="Whether each block continues from the state after the previous block, in training and "
        "evaluation. Batches are then contiguous: row i of a batch continues row i of the previous batch. If false, "
        "each block begins without context, and blocks are in random order.",
    )
    dropout: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="Dropout probability on the outputs between layers, with one mask for all positions of a block.",
    )
    input_dropout: float | None = Field(
        None, ge=0, lt=1, description="Dropout probability on embeddings. Default: the value of dropout."
    )
    output_dropout: float | None = Field(
        None, ge=0, lt=1, description="Dropout probability on the last layer's outputs. Default: the value of dropout."
    )
    word_type_dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Probability of dropping a vocabulary entry's embedding at all its occurrences in a batch.",
    )
    weight_drop: float = Field(
        0.0, ge=0, lt=1, description="Probability of dropping each element of the state-to-state matrices for a block."
    )
    output_bias: bool = Field(True, description="Whether each token's logit has a bias.")
    tie: Literal["target", "none"] = Field(
        "target", description="Whether embedding and output projection share their weight (target) or not (none)."
    )


@dataclass
class SearchState:
    """The state between decoding steps: each row's layer states, and the number of rows per sequence."""

    layers: TextState
    beams: int


class RecurrentLM(ContinuationModel):
    """A model that maps tokens to the logits of each next token.

    Embeddings are initialized with unit variance, and an untied projection Xavier-uniformly. The initialization of the
    layers is documented in :class:`~headway.nn.recurrent.RecurrentLayer`. With the smaller uniform ranges of Merity et
    al., training on characters is much slower at the beginning.
    """

    pad = 0

    config: RecurrentLMConfig
    projection: nn.Linear

    def __init__(self, config: RecurrentLMConfig, vocab_size: int, output_size: int | None = None) -> None:
        super().__init__()
        assert output_size in (None, vocab_size), "a language model has one vocabulary for inputs and outputs"
        self.config = config
        d_embedding = config.d_embedding or config.d_model
        d_output = d_embedding if config.tie == "target" else config.d_model
        widths = [d_embedding, *[config.d_model] * (config.num_layers - 1), d_output]
        self.embedding = TokenEmbedding(vocab_size, d_embedding)
        self.layers = nn.ModuleList(
            RecurrentLayer(config.cell, *widths_pair, weight_drop=config.weight_drop)
            for widths_pair in itertools.pairwise(widths)
        )
        self.projection = output_projection(config.tie, self.embedding, d_output, bias=config.output_bias)
        self.word_type_dropout = Dropout(config.word_type_dropout)
        inputs, outputs = (
            config.dropout if rate is None else rate for rate in (config.input_dropout, config.output_dropout)
        )
        self.input_dropout, self.output_dropout = LockedDropout(inputs), LockedDropout(outputs)
        self.dropout = LockedDropout(config.dropout)

    @property
    def max_length(self) -> None:
        """None, because the length of sequences is not limited."""
        return None

    @property
    def carries_state(self) -> bool:
        """Whether the model was trained to continue each block from the state after the previous text."""
        return self.config.carry_state

    def initial_state(self, rows: int) -> TextState:
        """Return the state of ``rows`` texts before their first token, which is zero."""
        return tuple(layer.initial_state(self.embedding.weight.new_empty(rows, 1, 1)) for layer in self._layers)

    def continue_from(self, state: TextState, tokens: Int[Tensor, "B T"]) -> tuple[Float[Tensor, "B T D"], TextState]:
        """Process ``tokens``, which follow the text that led to ``state``.

        Returns the hidden states from which :attr:`projection` computes logits, and the state after the last token.
        """
        x, after = self.input_dropout(self._embed(tokens)), []
        for index, (layer, before) in enumerate(zip(self._layers, state, strict=True)):
            x, last = layer(self.dropout(x) if index else x, before)
            after.append(last)
        return self.output_dropout(x), tuple(after)

    def hidden(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the hidden states from which :attr:`projection` computes logits, for texts without context.

        Padding must be on the right.
        """
        return self.continue_from(self.initial_state(len(tokens)), tokens)[0]

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits of the next token after each position."""
        logits: Tensor = self.projection(self.hidden(tokens))
        return logits

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> SearchState:
        """Process the prompts (``sources``) and begin decoding, with ``beams`` rows for each prompt."""
        rows = torch.arange(len(sources), device=self.device).repeat_interleave(beams)
        return SearchState(_select(self._read(sources), rows), beams)

    def admit(self, state: SearchState, sources: Sequence[Sequence[int]]) -> None:
        """Process more prompts and append them to ``state``, with the same number of rows per prompt."""
        more = self.start(sources, beams=state.beams).layers
        state.layers = tuple(
            tuple(torch.cat(parts) for parts in zip(*layers, strict=True))
            for layers in zip(state.layers, more, strict=True)
        )

    def step(self, state: SearchState, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next. ``Step.attention`` is None: the model has no attention."""
        hidden, state.layers = self.continue_from(state.layers, tokens.unsqueeze(1))
        return Step(self.projection(hidden.squeeze(1)))

    def reorder_rows(
        self, state: SearchState, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None
    ) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence. Keep only ``sequences``; None keeps all."""
        old = state.layers[0][0].size(0) // state.beams
        state.layers = _select(state.layers, rows)
        state.beams = len(rows) // max(old if sequences is None else len(sequences), 1)

    @property
    def _layers(self) -> list[RecurrentLayer]:
        return as_recurrent_layers(self.layers)

    def _embed(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T E"]:
        embedded: Tensor = self.embedding(tokens)
        if not self.training or not self.config.word_type_dropout:
            return embedded
        mask: Tensor = self.word_type_dropout(embedded.new_ones(len(self.embedding.weight), 1))
        return embedded * F.embedding(tokens, mask)

    def _read(self, sources: Sequence[Sequence[int]]) -> TextState:
        """Return the state after each source. The lengths of the sources may differ.

        Unfinished sources are processed together, up to the end of the shortest of them.
        """
        tokens, state = pad_sequences(sources, self.pad, self.device), self.initial_state(len(sources))
        begin = 0
        for end in sorted({len(source) for source in sources if source}):
            rows = torch.tensor([row for row, source in enumerate(sources) if len(source) >= end], device=self.device)
            _, after = self.continue_from(_select(state, rows), tokens[rows, begin:end])
            state = tuple(
                tuple(part.index_copy(0, rows, new.to(part.dtype)) for part, new in zip(*layers, strict=True))
                for layers in zip(state, after, strict=True)
            )
            begin = end
        return state


def _select(state: TextState, rows: Int[Tensor, " R"]) -> TextState:
    return tuple(tuple(part[rows] for part in parts) for parts in state)
