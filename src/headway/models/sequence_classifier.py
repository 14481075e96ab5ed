"""A text classifier on the body of a language model, for fine-tuning.

    body (masked or decoder-only language model without its output) -> pooling -> (dense layer) -> projection

The body's input is BOS, the text and EOS, as in pretraining. A masked body (Devlin et al. 2019, section 3.2) is usually
pooled at BOS ("first") or by the mean of all positions. A decoder-only body (Radford et al. 2018, section 3.2) is
pooled by the mean or at EOS ("last"), the only position that attends to the whole text. Published models have a dense
layer before the projection: BERT and RoBERTa with tanh, DistilBERT with ReLU, ModernBERT with GELU and a norm.

Training usually starts from a language model (``training.start_from``), whose weights initialize the body.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from headway.models.base import ArchitectureConfig, ClassificationModel
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.nn.arguments import check_integers
from headway.nn.blocks import make_norm, xavier_linear
from headway.nn.dropout import Dropout, LockedDropout
from headway.nn.pooling import AttentionPooling, Pooling, PoolingKind

BodyConfig = Annotated[MaskedConfig | DecoderOnlyConfig, Field(discriminator="kind")]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "relu": F.relu, "gelu": F.gelu}


class SequenceClassifierConfig(ArchitectureConfig):
    """The body and the options of a classifier that is based on a language model."""

    kind: Literal["sequence_classifier"] = Field("sequence_classifier", description="The architecture.")
    body: BodyConfig = Field(
        default_factory=MaskedConfig,
        description="Configuration of the language model, including its kind: masked or decoder_only. With "
        "training.start_from, its keys are copied from that model; set only keys to change, such as dropout.",
    )
    pooling: PoolingKind = Field(
        "mean", description="Method of pooling all positions into one vector. first: uses BOS. last: uses EOS."
    )
    word_dropout: float = Field(
        0.0, ge=0, lt=1, description="Probability of dropping a token's whole input vector in training."
    )
    pooled_dropout: float = Field(0.1, ge=0, lt=1, description="Dropout probability on the pooled vector.")
    dense: Literal["none", "tanh", "relu", "gelu"] = Field(
        "none", description="Activation of a dense layer before the projection. none: no dense layer."
    )
    dense_norm: bool = Field(False, description="Whether a norm follows the dense layer.")

    @model_validator(mode="after")
    def _fits_together(self) -> SequenceClassifierConfig:
        if isinstance(self.body, DecoderOnlyConfig) and self.pooling == "first":
            raise ValueError(
                "pooling = 'first' uses BOS, which attends to no text in a decoder-only body; choose last or mean"
            )
        if self.dense_norm and self.dense == "none":
            raise ValueError("dense_norm = true has no effect without a dense layer; set dense, or remove dense_norm")
        return self

    @property
    def d_model(self) -> int:
        """Width of the body, in units."""
        return self.body.d_model

    @property
    def max_length(self) -> int:
        """Maximum length of a text in tokens, including EOS but not BOS."""
        return self.body.max_length - 1

    @property
    def masked(self) -> bool:
        """Whether attention and pooling ignore padding. Always True."""
        return True

    @property
    def pad_to_max_length(self) -> bool:
        """Whether texts are padded to exactly ``max_length``. Always False."""
        return False


class SequenceClassifier(ClassificationModel):
    """A classifier that maps the tokens of a text to class logits. Sources end with EOS. Padding is on the right."""

    pad, bos = 0, 1  # PAD and BOS of headway.text.base

    config: SequenceClassifierConfig
    projection: nn.Linear

    def __init__(self, config: SequenceClassifierConfig, vocab_size: int, num_classes: int) -> None:
        super().__init__()
        self.config, self.num_classes = config, num_classes
        body = config.body
        self.body: MaskedTransformer | DecoderOnly
        if isinstance(body, MaskedConfig):
            self.body = MaskedTransformer(body, vocab_size)
            del self.body.head
        else:
            self.body = DecoderOnly(body, vocab_size)
        del self.body.projection  # the body's output is not used
        self.word_dropout = LockedDropout(config.word_dropout, dim=2)
        width = body.d_model
        self.pooling = AttentionPooling(width) if config.pooling == "attention" else Pooling(config.pooling, width)
        self.dense = xavier_linear(self.pooling.width, width) if config.dense != "none" else None
        self.dense_norm = make_norm(body) if config.dense_norm else nn.Identity()
        self.pooled_dropout = Dropout(config.pooled_dropout)
        self.projection = xavier_linear(self.pooling.width if self.dense is None else width, num_classes)

    @property
    def max_length(self) -> int:
        """Maximum length of a text in tokens, including EOS."""
        return self.config.max_length

    def encoder_tokens(self, source: Int[Tensor, "B S"]) -> Int[Tensor, "B S2"]:
        """Return the body's input tokens: BOS followed by ``source``."""
        check_integers("source", source, "batch", "length")
        return F.pad(source, (1, 0), value=self.bos)

    def embed_source(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B S2 D"]:
        """Return the input of the body's blocks for :meth:`encoder_tokens`, before element-wise dropout."""
        embedded: Tensor = self.word_dropout(self.body.embed(self.encoder_tokens(source)))
        return embedded

    def logits_from(self, embedded: Float[Tensor, "B S2 D"], source: Int[Tensor, "B S"]) -> Float[Tensor, "B C"]:
        """Return the logits, given the output of :meth:`embed_source`, for gradients with respect to it."""
        tokens = self.encoder_tokens(source)
        mask: Bool[Tensor, "B S2"] = tokens != self.pad
        pooled: Tensor = self.pooling(self.body.encode(embedded, tokens), mask)
        if self.dense is not None:
            pooled = self.dense_norm(_ACTIVATIONS[self.config.dense](self.dense(pooled)))
        logits: Tensor = self.projection(self.pooled_dropout(pooled))
        return logits

    def forward(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B C"]:
        """Return the logits of the classes."""
        return self.logits_from(self.embed_source(source), source)


def config_with_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a classifier that is based on a language model with the configuration ``body``."""
    return {"kind": "sequence_classifier", "body": body}


def body_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a language model's weights, without those of its output, renamed for a classifier's body."""
    return {f"body.{name}": weight for name, weight in weights.items() if not name.startswith(("head.", "projection."))}
