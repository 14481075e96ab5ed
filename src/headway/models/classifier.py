"""A text classifier: a Transformer encoder, pooling to one vector per text, and a linear layer for the classes' logits.

    embedding -> (convolution) -> encoder blocks -> pooling -> projection

The reference classifier can be built in two versions, because its description and its code differ. Both have one block
of width 256 (d_ff 512, 8 heads), pad or truncate texts to exactly 60 tokens (``max_length = 60``,
``pad_to_max_length``), use no mask (``masked = false``), and predict from the last position (``pooling = "last"``),
which is padding in every shorter text. The description has neither residual connections nor layer normalization
(``residual = false``, ``norm = "none"``); the code has both (``norm = "pre"``). For new models, the defaults are a
better choice: they mask padding and pool over all positions. Without blocks (``encoder_layers = 0``), the model is a
linear classifier on pooled embeddings. With ``pooling = "mean"``, this is the model of Joulin et al. 2017.

Dimensions: B batch, S source positions, D model, C classes.
"""

from __future__ import annotations

from typing import Literal, cast

from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from headway.models.base import ArchitectureConfig, ClassificationModel
from headway.nn.arguments import check_integers
from headway.nn.block_config import BlockConfig, InnerWidth, ModelWidth, NormPlacement, NumHeads, SublayerDropout
from headway.nn.blocks import EncoderBlock, EncoderStack, PreNorm, xavier_linear
from headway.nn.convolution import ResidualConvolution
from headway.nn.dropout import Dropout, LockedDropout
from headway.nn.embedding import TokenEmbedding
from headway.nn.pooling import AttentionPooling, Pooling, PoolingKind
from headway.nn.positions import make_positions


class ClassifierConfig(BlockConfig, ArchitectureConfig):
    """The sizes and options of a classifier."""

    kind: Literal["classifier"] = Field("classifier", description="The architecture.")
    d_model: ModelWidth = 256
    num_heads: NumHeads = 8
    d_ff: InnerWidth = 512
    dropout: SublayerDropout = 0.1
    norm: NormPlacement = "pre"
    encoder_layers: int = Field(1, ge=0, description="Number of encoder blocks. 0 means pooled embeddings.")
    embedding_dropout: float | None = Field(
        None, ge=0, lt=1, description="Dropout probability on embeddings + positions. Default: the value of dropout."
    )
    word_dropout: float = Field(
        0.0, ge=0, lt=1, description="Probability of dropping a token's whole embedding in training."
    )
    pooled_dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability on the pooled vector.")
    scale_embedding: bool = Field(True, description="Whether embeddings are multiplied by sqrt(d_model).")
    convolution: int = Field(
        0, ge=0, description="Width of a residual convolution before the first block, in positions; odd, or 0 for none."
    )
    pooling: PoolingKind = Field(
        "mean",
        description="Method of pooling all positions into one vector. first: uses a begin symbol before the text.",
    )
    masked: bool = Field(True, description="Whether attention and pooling ignore padding.")
    max_length: int = Field(
        256, ge=2, description="Maximum text length in tokens, including the end symbol; longer texts are truncated."
    )
    pad_to_max_length: bool = Field(False, description="Whether shorter texts are padded to exactly max_length.")

    @model_validator(mode="after")
    def _fits_together(self) -> ClassifierConfig:
        if self.convolution and self.convolution % 2 == 0:
            raise ValueError(f"convolution = {self.convolution} has no center; choose an odd width, such as 3, or 0")
        if not self.masked and not self.pad_to_max_length:
            raise ValueError(
                "masked = false: padding is not ignored, so a text's label would depend on the other texts in its "
                "batch; set pad_to_max_length = true, which pads all texts to the same length"
            )
        if self.decoder_window is not None:
            raise ValueError(
                f"decoder_window = {self.decoder_window} has no effect: a classifier has no decoder; remove it, or "
                "set encoder_window"
            )
        return self


class EncoderClassifier(ClassificationModel):
    """A classifier that maps the tokens of a text to class logits. Sources end with EOS. Padding is on the right."""

    pad, bos = 0, 1  # PAD and BOS of headway.text.base

    config: ClassifierConfig
    projection: nn.Linear

    def __init__(self, config: ClassifierConfig, vocab_size: int, num_classes: int) -> None:
        super().__init__()
        self.config, self.num_classes = config, num_classes
        self.embedding = TokenEmbedding(vocab_size, config.d_model, scaled=config.scale_embedding)
        most = config.max_length + (config.pooling == "first")
        self.positions = make_positions(config.positions, config.d_model, most)
        self.word_dropout = LockedDropout(config.word_dropout, dim=2)
        d_model, dropout, width, pooling = config.d_model, config.dropout, config.convolution, config.pooling
        self.embedding_dropout = Dropout(dropout if config.embedding_dropout is None else config.embedding_dropout)
        self.convolution = ResidualConvolution(d_model, width, dropout=dropout) if width else None
        self.encoder = EncoderStack(
            config.encoder_layers, config if config.encoder_layers else config.model_copy(update={"norm": "none"})
        )
        self.pooling = AttentionPooling(d_model) if pooling == "attention" else Pooling(pooling, d_model)
        self.pooled_dropout = Dropout(config.pooled_dropout)
        self.projection = xavier_linear(self.pooling.width, num_classes)

    @property
    def max_length(self) -> int:
        """Maximum length of a text in tokens, including EOS."""
        return self.config.max_length

    def encoder_tokens(self, source: Int[Tensor, "B S"]) -> Int[Tensor, "B S2"]:
        """Return the encoder's input tokens: ``source``, padded as configured, after BOS if the pooling is "first"."""
        check_integers("source", source, "batch", "length")
        if self.config.pad_to_max_length:
            source = F.pad(source, (0, self.max_length - source.size(1)), value=self.pad)  # a negative width truncates
        return F.pad(source, (1, 0), value=self.bos) if self.config.pooling == "first" else source

    def embed_source(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B S2 D"]:
        """Return the embeddings + positions of :meth:`encoder_tokens`, before the embedding dropout."""
        positioned: Tensor = self.positions(self.word_dropout(self.embedding(self.encoder_tokens(source))))
        return positioned

    def logits_from(self, embedded: Float[Tensor, "B S2 D"], source: Int[Tensor, "B S"]) -> Float[Tensor, "B C"]:
        """Return the logits, given the output of :meth:`embed_source`, for gradients with respect to it."""
        mask = self._mask(self.encoder_tokens(source))
        logits: Tensor = self.projection(self.pooled_dropout(self._pooled(self.embedding_dropout(embedded), mask)))
        return logits

    def forward(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B C"]:
        """Return the logits of the classes."""
        return self.logits_from(self.embed_source(source), source)

    def _pooled(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B S"] | None) -> Float[Tensor, "B P"]:
        """Encode the input vectors and pool them.

        If the pooling uses a single position, the last block computes only this position, from all keys and values,
        unless whole blocks are dropped. Observers of its attention then receive (B, H, 1, S) weights.
        """
        if self.convolution is not None:
            x = self.convolution(x, mask)
        keys = None if mask is None else mask.unsqueeze(1)
        blocks = cast("list[EncoderBlock]", list(self.encoder.blocks))
        drops_blocks = self.training and self.config.layer_dropout > 0
        if (
            self.config.pooling not in ("first", "last")
            or not blocks
            or blocks[-1].attention.is_positional
            or drops_blocks
        ):
            pooled: Tensor = self.pooling(self.encoder(x, keys), mask)
            return pooled
        for block in blocks[:-1]:
            x = block(x, keys)
        read: Tensor = self.encoder.norm(_one_position(blocks[-1], self.pooling(x, mask).unsqueeze(1), x, keys))
        return read.squeeze(1)

    def _mask(self, tokens: Int[Tensor, "B S"]) -> Bool[Tensor, "B S"] | None:
        """Return a mask that is True at tokens and False at padding, or None if padding is not masked."""
        return tokens != self.pad if self.config.masked else None


def _one_position(
    block: EncoderBlock, y: Float[Tensor, "B 1 D"], x: Float[Tensor, "B S D"], mask: Bool[Tensor, "B 1 S"] | None
) -> Float[Tensor, "B 1 D"]:
    """Return the output of ``block`` at one position with input ``y``. ``x`` contains the inputs at all positions."""
    attention, around = block.attention, block.attention_residual
    kv = attention.project_memory(around.norm(x) if isinstance(around, PreNorm) else x)
    y = around(y, lambda y: attention.attend(attention.project_queries(y), kv, mask))
    transformed: Tensor = block.feed_forward_residual(y, block.feed_forward)
    return transformed
