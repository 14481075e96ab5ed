"""The masked language model: an encoder that predicts hidden tokens from the text on both sides.

    embeddings (+ positions, + segments) -> norm -> encoder blocks -> head -> output projection

The defaults are a small version of BERT (Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers for
Language Understanding", section 3 and appendix A): post-norm, learned positions, GELU, and tied embedding and output
projection. The preset ``modernbert-base`` has the architecture of ModernBERT (Warner et al. 2024, "Smarter, Better,
Faster, Longer", section 2.1): pre-norm, rotary positions, GeGLU, no biases, and blocks that attend to all positions
alternating with blocks that attend to a window around each position. If embeddings are normalized and blocks are
pre-norm, the first block has no norm before its attention, as in ModernBERT.

Training predicts only hidden tokens: :meth:`MaskedTransformer.hidden` returns the states of all positions, and the head
(a dense layer, its activation and a norm) and the projection then compute logits only from some of these states.

A text begins with BOS (BERT's [CLS]) and ends with EOS (BERT's [SEP]).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn

from headway.models.base import FillingModel
from headway.models.language_model_config import LanguageModelConfig, initialize_weights
from headway.nn.arguments import check_integers
from headway.nn.block_config import BlockConfig
from headway.nn.blocks import EncoderStack, NoNorm, activation_function, make_norm
from headway.nn.dropout import Dropout
from headway.nn.embedding import TokenEmbedding, output_projection
from headway.nn.masks import padding_mask
from headway.nn.positions import make_positions

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 128, "num_heads": 4, "d_ff": 512, "encoder_layers": 4},
    "small": {"d_model": 384, "num_heads": 6, "d_ff": 1536, "encoder_layers": 6},
    "bert-base": {
        "d_model": 768,
        "num_heads": 12,
        "d_ff": 3072,
        "encoder_layers": 12,
        "attention_dropout": 0.1,
        "norm_epsilon": 1e-12,
        "max_length": 512,
        "num_segments": 2,
    },
    "modernbert-base": {
        "d_model": 768,
        "num_heads": 12,
        "d_ff": 1152,
        "encoder_layers": 22,
        "dropout": 0.0,
        "activation": "geglu",
        "norm": "pre",
        "bias": "none",
        "positions": "rotary",
        "rotary_base": 160_000.0,
        "local_rotary_base": 10_000.0,
        "encoder_window": 129,
        "global_every": 3,
        "max_length": 8192,
    },
}


class MaskedConfig(LanguageModelConfig):
    """The sizes and options of a masked language model. The defaults are a small version of BERT."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    kind: Literal["masked"] = Field("masked", description="The architecture.")
    encoder_layers: int = Field(6, ge=1, description="Number of blocks.")
    global_every: int | None = Field(
        None,
        ge=1,
        description="With encoder_window: the first block and every n-th block after it attend to all positions. "
        "Default: every block attends only within the window.",
    )
    local_rotary_base: float | None = Field(
        None, gt=1, description="With global_every: rotary_base of the blocks with a window. Default: rotary_base."
    )
    max_length: int = Field(
        256, ge=2, description="Length of training blocks and of learned positions, in tokens including BOS and EOS."
    )
    num_segments: int = Field(
        0, ge=0, description="Number of learned segment embeddings, such as 2 for pairs of texts. 0 means none."
    )
    embedding_norm: bool = Field(True, description="Whether the sum of the embeddings is normalized.")
    output_bias: bool = Field(True, description="Whether each token's logit has a bias.")

    @model_validator(mode="after")
    def _fits_an_encoder(self) -> MaskedConfig:
        if self.decoder_window is not None:
            raise ValueError(
                f"decoder_window = {self.decoder_window} has no effect: a masked language model has no decoder; remove "
                "it, or set encoder_window"
            )
        if self.global_every is not None and self.encoder_window is None:
            raise ValueError(
                f"global_every = {self.global_every} has no effect without encoder_window: all blocks attend to all "
                "positions"
            )
        if self.local_rotary_base is not None and (self.global_every is None or self.positions != "rotary"):
            raise ValueError(
                f"local_rotary_base = {self.local_rotary_base:g} has no effect without global_every and positions = "
                "'rotary'; remove it, or set rotary_base"
            )
        if self.max_length < 3:
            raise ValueError(f"max_length = {self.max_length}: no token fits between BOS and EOS; expected at least 3")
        return self

    def block_config(self, layer: int) -> BlockConfig:
        """Return the options of the block with index ``layer``, which attends to all positions or within the window."""
        if self.global_every is not None and layer % self.global_every == 0:
            return self.model_copy(update={"encoder_window": None})
        return self.model_copy(update={"rotary_base": self.local_rotary_base or self.rotary_base})


class PredictionHead(nn.Module):
    """A dense layer, an activation and a norm between the encoder and the output projection (BERT's transform)."""

    def __init__(self, config: MaskedConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model, bias=config.bias == "all")
        self.activation = activation_function(config.activation)
        self.norm = make_norm(config)

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Return the states from which the output projection computes logits."""
        normed: Tensor = self.norm(self.activation(self.dense(x)))
        return normed


class MaskedTransformer(FillingModel):
    """A model that maps tokens, some of which are hidden, to the logits of the original token at each position.

    Weights are initialized from a normal distribution with standard deviation 0.02, as in BERT. In pre-norm models, the
    deviation is divided by sqrt(2 N) in the last layer of each sub-layer, as in ModernBERT (Shoeybi et al. 2019,
    "Megatron-LM").
    """

    pad = 0

    config: MaskedConfig
    projection: nn.Linear
    head: PredictionHead

    def __init__(self, config: MaskedConfig, vocab_size: int, output_size: int | None = None) -> None:
        super().__init__()
        assert output_size in (None, vocab_size), "a masked language model has one vocabulary for inputs and outputs"
        self.config = config
        self.embedding = TokenEmbedding(vocab_size, config.d_model, scaled=config.scale_embedding)
        self.segment_embedding = nn.Embedding(config.num_segments, config.d_model) if config.num_segments else None
        self.positions = make_positions(config.positions, config.d_model, config.max_length)
        self.embedding_norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.embedding_dropout = Dropout(config.dropout)
        self.encoder = EncoderStack(config.encoder_layers, config, block_config=config.block_config)
        if config.embedding_norm and config.norm == "pre":
            self.encoder.blocks[0].attention_residual = NoNorm(config.dropout, residual=config.residual)
        self.head = PredictionHead(config)
        self.projection = output_projection(config.tie, self.embedding, config.d_model, bias=config.output_bias)
        initialize_weights(self, self.encoder.blocks if config.norm == "pre" else ())

    @property
    def max_length(self) -> int | None:
        """Maximum sequence length that the positions support, in tokens including BOS and EOS. None means no limit."""
        return self.config.max_length if self.config.positions == "learned" else None

    def embed(self, tokens: Int[Tensor, "B S"], segments: Int[Tensor, "B S"] | None = None) -> Float[Tensor, "B S D"]:
        """Return the encoder's input, before dropout: the normalized sum of the embeddings.

        ``segments`` defaults to segment 0 at all positions.
        """
        if segments is not None:
            check_integers("segments", segments, *tokens.shape)
        embedded: Tensor = self.positions(self.embedding(tokens))
        if self.segment_embedding is not None:
            embedded = embedded + self.segment_embedding(torch.zeros_like(tokens) if segments is None else segments)
        normed: Tensor = self.embedding_norm(embedded)
        return normed

    def encode(self, embedded: Float[Tensor, "B S D"], tokens: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """Return the state of each position, given the output of :meth:`embed`. Padding must be on the right."""
        states: Tensor = self.encoder(self.embedding_dropout(embedded), padding_mask(tokens, self.pad))
        return states

    def hidden(self, tokens: Int[Tensor, "B S"], segments: Int[Tensor, "B S"] | None = None) -> Float[Tensor, "B S D"]:
        """Return the state of each position, which is the input of :attr:`head`."""
        states: Tensor = self.encode(self.embed(tokens, segments), tokens)
        return states

    def forward(self, tokens: Int[Tensor, "B S"], segments: Int[Tensor, "B S"] | None = None) -> Float[Tensor, "B S V"]:
        """Return the logits of the original token at each position."""
        logits: Tensor = self.projection(self.head(self.hidden(tokens, segments)))
        return logits
