"""Headway's text classifier for Hugging Face `transformers`.

This file is copied into exported folders and needs only torch and transformers, not Headway:

    AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True)

The model is for inference. It has no dropout, so use Headway for fine-tuning. Modules and weights have the same names
as in Headway. ``config.classifier`` contains the options of Headway's ``ClassifierConfig``.

Shapes: B batch, S positions, D model, C classes, P pooled width. Masks are True at tokens and False at padding.
"""
# mypy: ignore-errors
# Type annotations in transformers depend on the installed version.

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}
GATES = {
    "glu": torch.sigmoid,
    "reglu": F.relu,
    "geglu": F.gelu,
    "geglu_tanh": partial(F.gelu, approximate="tanh"),
    "swiglu": F.silu,
}


class HeadwayClassifierConfig(PretrainedConfig):
    """The options of a Headway classifier."""

    model_type = "headway_classifier"

    def __init__(self, classifier: dict[str, Any] | None = None, vocab_size: int = 4, **kwargs: Any) -> None:
        self.classifier, self.vocab_size = classifier or {}, vocab_size
        super().__init__(**kwargs)


class HeadwayAttention(nn.Module):
    """Multi-head self-attention: softmax(Q K^T / sqrt(d_k)) V for each head."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        d_model, self.num_heads = options["d_model"], options["num_heads"]
        key_width, value_width = (
            self.num_heads * (options.get(name) or d_model // self.num_heads) for name in ("d_key", "d_value")
        )
        self.query, self.key = nn.Linear(d_model, key_width), nn.Linear(d_model, key_width)
        self.value, self.output = nn.Linear(d_model, value_width), nn.Linear(value_width, d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attend from each position to the positions where ``mask`` (B, S) is True: (B, S, D) -> (B, S, D)."""
        query, key, value = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
        weights = masked_softmax(scores, mask[:, None, None])
        return self.output((weights @ value).transpose(1, 2).flatten(2))


class HeadwayFeedForward(nn.Module):
    """Two linear layers with an activation between them, or three if the activation is gated."""

    def __init__(self, d_model: int, d_ff: int, activation: str) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.gate = nn.Linear(d_model, d_ff) if activation in GATES else None
        self.activation = (GATES | ACTIVATIONS)[activation]

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position: (B, S, D) -> (B, S, D)."""
        if self.gate is None:
            return self.outer(self.activation(self.inner(x)))
        return self.outer(self.activation(self.gate(x)) * self.inner(x))


class HeadwayResidual(nn.Module):
    """Residual connection and layer norm around a sub-layer."""

    def __init__(self, d_model: int, order: str, residual: bool) -> None:
        super().__init__()
        self.norm = nn.Identity() if order == "none" else nn.LayerNorm(d_model)
        self.order, self.residual = order, residual

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply ``sublayer`` with the residual connection and the norm: (B, S, D) -> (B, S, D)."""
        output = sublayer(self.norm(x) if self.order == "pre" else x)
        output = x + output if self.residual else output
        return self.norm(output) if self.order == "post" else output


class HeadwayBlock(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        d_model, norm, residual = options["d_model"], options["norm"], options["residual"]
        self.attention = HeadwayAttention(options)
        self.attention_residual = HeadwayResidual(d_model, norm, residual)
        self.feed_forward = HeadwayFeedForward(d_model, options["d_ff"], options["activation"])
        self.feed_forward_residual = HeadwayResidual(d_model, norm, residual)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Apply the block: (B, S, D) -> (B, S, D)."""
        x = self.attention_residual(x, lambda x: self.attention(x, mask))
        return self.feed_forward_residual(x, self.feed_forward)


class HeadwayEncoder(nn.Module):
    """The encoder blocks, and a final norm if the blocks are pre-norm."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(HeadwayBlock(options) for _ in range(options["encoder_layers"]))
        ends_in_norm = options["norm"] == "pre" and options["encoder_layers"] > 0
        self.norm = nn.LayerNorm(options["d_model"]) if ends_in_norm else nn.Identity()


class HeadwayConvolution(nn.Module):
    """A residual convolution over neighboring positions."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(d_model, d_model, width, padding=width // 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Add the convolution of each position's neighborhood: (B, S, D) -> (B, S, D)."""
        x = x * mask.unsqueeze(2)
        return x + F.relu(self.convolution(x.transpose(1, 2)).transpose(1, 2))


class HeadwayPooling(nn.Module):
    """Pooling of each text to one vector: (B, S, D) -> (B, P)."""

    def __init__(self, kind: str, d_model: int) -> None:
        super().__init__()
        self.kind, self.width = kind, 2 * d_model if kind == "mean_max" else d_model
        if kind == "attention":
            self.inner, self.question = nn.Linear(d_model, d_model), nn.Linear(d_model, 1, bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Pool the positions where ``mask`` is True. A text without such positions is pooled to zeros."""
        some = mask.any(1, keepdim=True)
        if self.kind in ("first", "last"):
            positions = torch.arange(x.size(1), device=x.device)
            index = (mask * (positions + 1 if self.kind == "last" else x.size(1) - positions)).argmax(1)
            return x[torch.arange(len(x), device=x.device), index] * some
        if self.kind == "attention":
            weights = masked_softmax(self.question(torch.tanh(self.inner(x))).squeeze(2), mask)
            return (weights.unsqueeze(1) @ x).squeeze(1)
        mean = ((mask / mask.sum(1, keepdim=True).clamp(min=1)).to(x.dtype).unsqueeze(1) @ x).squeeze(1)
        largest = x.masked_fill((~mask & some).unsqueeze(2), -math.inf).amax(1) * some
        return {"mean": mean, "max": largest, "mean_max": torch.cat([mean, largest], dim=1)}[self.kind]


class HeadwayForSequenceClassification(PreTrainedModel):
    """Embedding -> (convolution) -> encoder blocks -> pooling -> projection to (B, C) logits."""

    config_class = HeadwayClassifierConfig

    def __init__(self, config: HeadwayClassifierConfig) -> None:
        super().__init__(config)
        options = self.options = config.classifier
        d_model = options["d_model"]
        self.embedding = nn.Embedding(config.vocab_size, d_model)
        self.positions = nn.Module()
        if options["positions"] == "learned":
            length = options["max_length"] + (options["pooling"] == "first")
            self.positions.table = nn.Parameter(torch.zeros(length, d_model))
        self.convolution = HeadwayConvolution(d_model, options["convolution"]) if options["convolution"] else None
        self.encoder = HeadwayEncoder(options)
        self.pooling = HeadwayPooling(options["pooling"], d_model)
        self.projection = nn.Linear(self.pooling.width, config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **kwargs: Any
    ) -> SequenceClassifierOutput:
        """Return the logits, and the mean cross-entropy of ``labels`` (B) if they are given."""
        options = self.options
        mask = input_ids != self.config.pad_token_id if attention_mask is None else attention_mask.bool()
        if options["pad_to_max_length"]:
            missing = options["max_length"] - input_ids.size(1)  # if negative, F.pad truncates
            input_ids = F.pad(input_ids, (0, missing), value=self.config.pad_token_id)
            mask = F.pad(mask, (0, missing), value=False)
        if options["pooling"] == "first":
            input_ids = F.pad(input_ids, (1, 0), value=self.config.bos_token_id)
            mask = F.pad(mask, (1, 0), value=True)
        if not options["masked"]:
            mask = torch.ones_like(mask)
        x = self.embedding(input_ids) * (math.sqrt(options["d_model"]) if options["scale_embedding"] else 1.0)
        x = self.add_positions(x)
        x = x if self.convolution is None else self.convolution(x, mask)
        for block in self.encoder.blocks:
            x = block(x, mask)
        logits = self.projection(self.pooling(self.encoder.norm(x), mask))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def add_positions(self, x: Tensor) -> Tensor:
        """Add sinusoidal or learned positions to (B, S, D) embeddings."""
        _, length, d_model = x.shape
        if self.options["positions"] == "learned":
            return x + self.positions.table[:length]
        if self.options["positions"] == "none":
            return x
        exponents = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        angles = torch.arange(length, dtype=torch.float64).unsqueeze(1) * 10000.0**-exponents
        table = torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :d_model]
        return x + table.to(x)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax over the last dimension where ``mask`` is True. If no element is True, all weights are 0."""
    some = mask.any(-1, keepdim=True)
    return scores.masked_fill(~mask & some, -math.inf).softmax(-1) * some
