"""Recurrent sequence-to-sequence models with GRU or LSTM cells, and with a fixed context vector or attention.

The equations are in :mod:`headway.nn.recurrent` and :mod:`headway.nn.recurrent_decoders`. Each preset is the model from
one paper:

    cho         z at every step             Cho et al. 2014: GRU, attention = "none", context = "every_step"
    sutskever   z only at the start         Sutskever et al. 2014: deep LSTM, attention = "none", context = "start"
    bahdanau    attend, then step           Bahdanau et al. 2015: GRU, attention = "bahdanau", score = "additive"
    luong       step, then attend           Luong et al. 2015: deep LSTM, attention = "luong", score = "general"

``d_model`` is the width of a state. In a bidirectional encoder, it is the width of both directions together, so that
encoder and decoder states match. ``d_embedding`` is the width of embeddings and of the output projection's input. With
``context = "start"``, however, the decoder's states are projected directly. The presets have the papers' sizes, with
two exceptions, in which one of our options replaces several widths of the paper:

    cho         the maxout layer and the embeddings have width 500; in the paper, embeddings have rank 100
                (section 4.1.1)
    bahdanau    decoder states have width 2000, like the encoder's two directions together, and the maxout layer has
                width 620, like the embeddings; in the paper, these widths are 1000 and 500 (appendix A.2.3)

Dropout is applied to embeddings, between layers and before the projection (Zaremba et al. 2014). Of these papers, only
Luong et al. use dropout. None of the papers shares weights between embeddings and projection (``tie``) or multiplies
embeddings by sqrt(d_embedding). Sources are not reversed, although Sutskever et al. reverse them, and Luong et al. do
so in most of their models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from headway.config import apply_preset
from headway.decode.protocol import Step
from headway.models.base import ArchitectureConfig, TranslationModel
from headway.nn.arguments import check_integers
from headway.nn.dropout import Dropout
from headway.nn.embedding import Tie, output_projection, pad_sequences, token_embeddings
from headway.nn.recurrent import Cell, EncoderOutput, RecurrentEncoder, Summary
from headway.nn.recurrent_decoders import (
    BahdanauDecoder,
    FixedVectorDecoder,
    LuongDecoder,
    RecurrentDecoder,
    RecurrentState,
)
from headway.nn.scores import ScoreKind

_DEEP: dict[str, Any] = {
    "cell": "lstm", "bidirectional": False, "d_model": 1000, "d_embedding": 1000,
    "encoder_layers": 4, "decoder_layers": 4,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "cho": {"attention": "none", "context": "every_step", "bidirectional": False, "d_model": 1000, "d_embedding": 500},
    "sutskever": {**_DEEP, "attention": "none", "context": "start"},
    "bahdanau": {
        "attention": "bahdanau", "score": "additive", "score_hidden": 1000, "d_model": 2000, "d_embedding": 620,
    },
    "luong": {**_DEEP, "attention": "luong", "score": "general", "input_feeding": True},
}  # fmt: skip
_WITH_HIDDEN_LAYER: tuple[ScoreKind, ...] = ("additive", "feed_forward")


class RecurrentConfig(ArchitectureConfig):
    """The sizes and options of a recurrent model. The defaults are a small version of Bahdanau et al.'s model."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    kind: Literal["recurrent"] = Field("recurrent", description="The architecture.")
    cell: Cell = Field("gru", description="Type of all recurrent cells: gru or lstm.")
    d_model: int = Field(512, ge=1, description="Width of a layer's state, in units, for both directions together.")
    d_embedding: int | None = Field(None, ge=1, description="Width of embeddings, in units. Default: d_model.")
    encoder_layers: int = Field(1, ge=1, description="Number of encoder layers.")
    decoder_layers: int = Field(1, ge=1, description="Number of decoder layers.")
    bidirectional: bool = Field(
        True, description="Whether the encoder also processes sources backward, with half the units per direction."
    )
    summary: Summary = Field(
        "final",
        description="Vector z that represents a sentence: the final state, or the mean or maximum of all states.",
    )
    attention: Literal["none", "bahdanau", "luong"] = Field(
        "bahdanau",
        description="Type of attention. none: the decoder uses only z. bahdanau: the decoder's state before each step "
        "is the query. luong: the state after each step is the query.",
    )
    context: Literal["every_step", "start"] | None = Field(
        None, description="When a decoder without attention uses z. Default: every_step. With attention: at the start."
    )
    score: ScoreKind | None = Field(
        None, description="Score function of attention. Default: additive for bahdanau, general for luong."
    )
    score_hidden: int | None = Field(
        None,
        ge=1,
        description="Width of the hidden layer in additive and feed_forward scores. Default: d_model, but at most 64.",
    )
    input_feeding: bool = Field(
        False, description="Whether the output of luong attention is also an input of the next step."
    )
    dropout: float = Field(
        0.2, ge=0, lt=1, description="Dropout probability on embeddings, between layers and on outputs."
    )
    output_bias: bool = Field(False, description="Whether each token's logit has a bias.")
    tie: Tie = "all"

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        """Replace a key such as ``preset = "luong"`` with the preset's options. Other given keys take precedence."""
        if not isinstance(data, dict) or "preset" not in data:
            return data
        applied = apply_preset(data, PRESETS)
        if "score_hidden" not in data and data.get("score") not in (None, *_WITH_HIDDEN_LAYER):
            applied.pop("score_hidden", None)  # the chosen score has no hidden layer
        return applied

    @model_validator(mode="after")
    def _fits(self) -> RecurrentConfig:
        if self.bidirectional and self.d_model % 2:
            raise ValueError(
                f"d_model = {self.d_model} cannot be halved for the encoder's two directions; choose an even number, "
                "or set bidirectional = false"
            )
        if self.attention != "none" and self.context is not None:
            raise ValueError(
                f"context = {self.context!r} selects when a decoder without attention uses z, but attention = "
                f"{self.attention!r} computes a context vector at each step; remove context, or set attention = 'none'"
            )
        if self.attention == "none" and self.score is not None:
            raise ValueError(
                f"score = {self.score!r} is an option of attention, but attention = 'none'; remove score, or set "
                "attention = 'bahdanau' or 'luong'"
            )
        if self.score_hidden is not None and self.score_kind not in _WITH_HIDDEN_LAYER:
            raise ValueError(
                f"score_hidden = {self.score_hidden} is the width of a hidden layer, but score = {self.score_kind!r} "
                f"has no hidden layer; remove it, or set score = {' or '.join(map(repr, _WITH_HIDDEN_LAYER))}"
            )
        if self.input_feeding and self.attention != "luong":
            raise ValueError(
                f"input_feeding = true is an option of attention = 'luong', but attention = {self.attention!r}; remove "
                "input_feeding, or set attention = 'luong'"
            )
        if self.reads_z_only_at_start and self.tie != "none" and self.d_embedding not in (None, self.d_model):
            raise ValueError(
                f"tie = {self.tie!r} with context = 'start' needs d_embedding = d_model, because the decoder's states "
                f"are projected directly, but d_embedding = {self.d_embedding} and d_model = {self.d_model}; make them "
                "equal, or set tie = 'none'"
            )
        return self

    @property
    def reads_z_only_at_start(self) -> bool:
        """Whether z determines only the decoder's initial state. In this case, the decoder's output is its state."""
        return self.attention == "none" and self.context == "start"

    @property
    def score_kind(self) -> ScoreKind | None:
        """The score function of attention, after resolving the default. None without attention."""
        if self.attention == "none":
            return None
        return self.score or ("additive" if self.attention == "bahdanau" else "general")


class RecurrentModel(TranslationModel):
    """A recurrent encoder-decoder that predicts each next target token from the source and the target so far.

    Sources end with EOS; targets start with BOS. Token 0 is padding on both sides.
    """

    pad = 0

    config: RecurrentConfig
    projection: nn.Linear

    def __init__(self, config: RecurrentConfig, source_vocab_size: int, target_vocab_size: int) -> None:
        super().__init__()
        self.config = config
        d_embedding = config.d_embedding or config.d_model
        self.source_embedding, self.target_embedding = token_embeddings(
            config.tie, source_vocab_size, target_vocab_size, d_embedding
        )
        self.encoder = RecurrentEncoder(
            config.cell,
            d_embedding,
            config.d_model,
            layers=config.encoder_layers,
            bidirectional=config.bidirectional,
            vector_pooling=config.summary,
            dropout=config.dropout,
        )
        self.decoder = _decoder(config, d_embedding)
        self.projection = output_projection(
            config.tie, self.target_embedding, self.decoder.d_output, bias=config.output_bias
        )
        self.dropout = Dropout(config.dropout)

    @property
    def max_length(self) -> None:
        """None, because the length of sequences is not limited."""
        return None

    def encode(self, source: Int[Tensor, "B S"]) -> EncoderOutput:
        """Return the encoder's states, and the vector z that summarizes them."""
        check_integers("source", source, "batch", "length")
        # An empty source is processed as one padding token, which avoids a division by zero.
        lengths = (source != self.pad).sum(1).clamp(min=1)
        encoded: EncoderOutput = self.encoder(self.dropout(self.source_embedding(source)), lengths)
        return encoded

    def hidden(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Encode and decode, and return the vectors from which :attr:`projection` computes logits."""
        encoded = self.encode(source)
        check_integers("target", target, source.size(0), "length")
        return self._decode(self.decoder.initial_state(encoded), target)

    def forward(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Return the logits of the next token after each target position."""
        logits: Tensor = self.projection(self.hidden(source, target))
        return logits

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> RecurrentState:
        """Encode the sources and begin decoding, with ``beams`` rows per source."""
        state = self.decoder.initial_state(self.encode(pad_sequences(sources, self.pad, self.device)))
        if beams > 1:
            state.select(torch.arange(len(sources), device=self.device).repeat_interleave(beams))
        return state

    def admit(self, state: RecurrentState, sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and append them to ``state``, with the same number of rows per source."""
        state.append(self.start(sources, beams=state.beams))

    def step(self, state: RecurrentState, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next one.

        The result contains the attention weights if ``attention`` is True and the model has attention, otherwise None.
        """
        hidden = self._decode(state, tokens.unsqueeze(1)).squeeze(1)
        return Step(self.projection(hidden), state.attention_weights if attention else None)

    def reorder_rows(
        self, state: RecurrentState, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None
    ) -> None:
        """Make row i continue the old row ``rows[i]`` of its sequence. Keep only ``sequences``; None keeps all."""
        state.select(rows, sequences)

    def _decode(self, state: RecurrentState, tokens: Int[Tensor, "R T"]) -> Float[Tensor, "R T D"]:
        hidden: Tensor = self.dropout(self.decoder(self.dropout(self.target_embedding(tokens)), state))
        return hidden


def _decoder(config: RecurrentConfig, d_embedding: int) -> RecurrentDecoder:
    widths = config.cell, d_embedding, config.d_model
    common: dict[str, Any] = {"layers": config.decoder_layers, "dropout": config.dropout}
    if config.score_kind is None:
        return FixedVectorDecoder(*widths, **common, every_step=not config.reads_z_only_at_start)
    common |= {"score": config.score_kind, "score_hidden": config.score_hidden}
    if config.attention == "bahdanau":
        return BahdanauDecoder(*widths, **common)
    return LuongDecoder(*widths, **common, input_feeding=config.input_feeding)
