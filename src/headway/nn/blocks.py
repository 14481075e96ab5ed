"""The blocks that encoder and decoder are stacked from (Vaswani et al. 2017, figure 1, sections 3.1 and 3.3).

Encoder block: self-attention, feed-forward. Decoder block: masked self-attention, then attention over the encoder's
memory (queries from the decoder, keys and values from the memory), then feed-forward. Some expositions put the
decoder's sub-layers in another order; the paper decides.

Around each sub-layer stand a residual connection, dropout on the sub-layer's output and layer normalisation, in one of
two orders, or without the norm:

    post-norm   LayerNorm(x + Dropout(Sublayer(x)))     the paper, section 3.1 with 5.4
    pre-norm    x + Dropout(Sublayer(LayerNorm(x)))     Wang et al. 2019, Xiong et al. 2020; a norm ends the stack
    none        x + Dropout(Sublayer(x))

Each can also go without its residual connection, "x +": what that costs is for experiments to show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from headway.kernels.arrays import takes
from headway.nn.attention import MultiHeadAttention
from headway.nn.cache import DecoderCache
from headway.nn.dropout import Dropout
from headway.nn.linear import Linear, linear
from headway.nn.norm import LayerNorm
from headway.nn.scores import ScoreKind

__all__ = [
    "Activation",
    "BlockOptions",
    "DecoderBlock",
    "DecoderStack",
    "EncoderBlock",
    "EncoderStack",
    "FeedForward",
    "GatedFeedForward",
    "NoNorm",
    "Norm",
    "PostNorm",
    "PreNorm",
    "Projection",
]

Norm = Literal["post", "pre", "none"]
Projection = Literal["linear", "hidden"]

Activation = Literal["relu", "gelu", "silu", "glu", "reglu", "geglu", "swiglu"]
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}
_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "glu": F.sigmoid,
    "reglu": F.relu,
    "geglu": F.gelu,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 at each position alone (equation 2), or with GELU or SiLU in place of
    ReLU.

    The same as two convolutions of kernel size 1 over the sequence. ``dropout`` acts on the inner layer; the paper has
    none there.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Literal["relu", "gelu", "silu"] = "relu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.inner = _linear(d_model, d_ff)
        self.outer = _linear(d_ff, d_model)
        self.activation = _ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Transform each position."""
        if self.activation is F.relu and self.training and takes(x):
            inner = self.dropout.of_rectified(linear(x, self.inner.weight), self.inner.bias)
        else:
            inner = self.dropout(self.activation(self.inner(x)))
        transformed: Tensor = self.outer(inner)
        return transformed


class GatedFeedForward(nn.Module):
    """(gate(x W_1 + b_1) * (x V + c)) W_2 + b_2, the gate being sigmoid, ReLU, GELU or SiLU (Shazeer 2020)."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: Literal["glu", "reglu", "geglu", "swiglu"] = "swiglu",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.gate = _linear(d_model, d_ff)
        self.inner = _linear(d_model, d_ff)
        self.outer = _linear(d_ff, d_model)
        self.activation = _GATES[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b D"]:
        """Transform each position."""
        transformed: Tensor = self.outer(self.dropout(self.activation(self.gate(x)) * self.inner(x)))
        return transformed


def _linear(inputs: int, outputs: int) -> Linear:
    """A linear layer that starts Xavier-uniform, with zero bias."""
    layer = Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class PostNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): the paper's residual connection; without ``residual``, no "x +"."""

    def __init__(self, d_model: int, dropout: float, *, residual: bool = True) -> None:
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.dropout = Dropout(dropout)
        self.residual = residual

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Wrap ``sublayer``."""
        normed: Tensor = self.norm(self.dropout(sublayer(x), residual=x if self.residual else None))
        return normed


class PreNorm(nn.Module):
    """x + Dropout(Sublayer(LayerNorm(x))): the residual path stays untouched; without ``residual``, no "x +"."""

    def __init__(self, d_model: int, dropout: float, *, residual: bool = True) -> None:
        super().__init__()
        self.norm = LayerNorm(d_model)
        self.dropout = Dropout(dropout)
        self.residual = residual

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Wrap ``sublayer``."""
        output: Tensor = self.dropout(sublayer(self.norm(x)), residual=x if self.residual else None)
        return output


class NoNorm(nn.Module):
    """x + Dropout(Sublayer(x)); without ``residual``, no "x +"."""

    def __init__(self, dropout: float, *, residual: bool = True) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.residual = residual

    def forward(self, x: Float[Tensor, "B T D"], sublayer: Callable[[Tensor], Tensor]) -> Float[Tensor, "B T D"]:
        """Wrap ``sublayer``."""
        output: Tensor = self.dropout(sublayer(x), residual=x if self.residual else None)
        return output


@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """What all blocks of a stack share. Widths are in units; the four dropouts are probabilities.

    ``projection`` is that of queries and keys; ``rotary`` positions act in attention of a sequence to itself.
    """

    d_model: int
    num_heads: int
    d_ff: int
    d_key: int | None = None
    d_value: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    feed_forward_dropout: float = 0.0
    layer_dropout: float = 0.0
    activation: Activation = "relu"
    norm: Norm = "post"
    residual: bool = True
    score: ScoreKind = "scaled_dot"
    projection: Projection = "linear"
    rotary: bool = False

    def attention(self, *, to_itself: bool) -> MultiHeadAttention:
        """A new attention sub-layer, of a sequence to itself or to a memory."""
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            d_key=self.d_key,
            d_value=self.d_value,
            dropout=self.attention_dropout,
            score=self.score,
            qk_projection=self.projection,
            rotary=self.rotary and to_itself,
        )

    def feed_forward(self) -> FeedForward | GatedFeedForward:
        """A new feed-forward sub-layer."""
        match self.activation:
            case "relu" | "gelu" | "silu" as plain:
                return FeedForward(self.d_model, self.d_ff, activation=plain, dropout=self.feed_forward_dropout)
            case gated:
                return GatedFeedForward(self.d_model, self.d_ff, activation=gated, dropout=self.feed_forward_dropout)

    def around(self) -> PostNorm | PreNorm | NoNorm:
        """What stands around a sub-layer."""
        match self.norm:
            case "post":
                return PostNorm(self.d_model, self.dropout, residual=self.residual)
            case "pre":
                return PreNorm(self.d_model, self.dropout, residual=self.residual)
            case "none":
                return NoNorm(self.dropout, residual=self.residual)

    def final_norm(self) -> LayerNorm | nn.Identity:
        """What a stack ends in: a norm where blocks are pre-norm, whose outputs are not normalised."""
        return LayerNorm(self.d_model) if self.norm == "pre" else nn.Identity()


class EncoderBlock(nn.Module):
    """Self-attention, then feed-forward (section 3.1)."""

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        self.attention, self.attention_residual = options.attention(to_itself=True), options.around()
        self.feed_forward, self.feed_forward_residual = options.feed_forward(), options.around()

    def forward(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "#B #S S"] | None = None) -> Float[Tensor, "B S D"]:
        """One block; ``mask`` tells which keys each query may attend to."""
        x = self.attention_residual(x, lambda x: self.attention(x, mask=mask))
        transformed: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return transformed


class DecoderBlock(nn.Module):
    """Masked self-attention, attention over the memory, then feed-forward (section 3.1)."""

    def __init__(self, options: BlockOptions) -> None:
        super().__init__()
        self.attention, self.attention_residual = options.attention(to_itself=True), options.around()
        self.cross_attention = options.attention(to_itself=False)
        self.cross_attention_residual = options.around()
        self.feed_forward, self.feed_forward_residual = options.feed_forward(), options.around()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "#B T T"],
        memory_mask: Bool[Tensor, "#B #T S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """All target positions at once; ``mask`` is causal."""
        x = self.attention_residual(x, lambda x: self.attention(x, mask=mask))
        x = self.cross_attention_residual(x, lambda x: self.cross_attention(x, memory, mask=memory_mask))
        transformed: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return transformed

    def step(self, x: Float[Tensor, "R 1 D"], cache: DecoderCache, layer: int) -> Float[Tensor, "R 1 D"]:
        """One more target position for each of R rows; the earlier ones are in the ``layer`` of ``cache``."""

        def attend_to_prefix(x: Tensor) -> Tensor:
            if self.attention.rotary is not None:
                self.attention.rotary.reserve(cache.length + 1)
            query, new = self.attention.project(x, cache.positions)
            return self.attention.attend(query, cache.extend(layer, new), cache.prefix_mask)

        def attend_to_memory(x: Tensor) -> Tensor:
            # The beams of a sentence share its memory: they are so many query positions of one batch entry.
            beams = x.reshape(cache.num_sentences, -1, x.size(-1))
            query = self.cross_attention.queries(beams)
            attended = self.cross_attention.attend(query, cache.memory(layer), cache.memory_mask)
            return attended.reshape(x.shape)

        x = self.attention_residual(x, attend_to_prefix)
        x = self.cross_attention_residual(x, attend_to_memory)
        transformed: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return transformed


def _skips_block(stack: EncoderStack | DecoderStack) -> bool:
    """LayerDrop (Fan et al. 2020): in training a block as a whole is left out with a probability.

    The draw is of the CPU's generator, so that no device is waited for and it follows from the step's seed.
    """
    return stack.training and stack.layer_dropout > 0 and float(torch.rand((), device="cpu")) < stack.layer_dropout


class EncoderStack(nn.Module):
    """N encoder blocks (the paper: 6), with a final norm where the blocks are pre-norm."""

    def __init__(self, num_layers: int, options: BlockOptions) -> None:
        super().__init__()
        self.layer_dropout = options.layer_dropout
        self.blocks = nn.ModuleList(EncoderBlock(options) for _ in range(num_layers))
        self.norm = options.final_norm()

    def forward(self, x: Float[Tensor, "B S D"], mask: Bool[Tensor, "#B #S S"] | None = None) -> Float[Tensor, "B S D"]:
        """The memory."""
        for block in self.blocks:
            if not _skips_block(self):
                x = block(x, mask)
        normed: Tensor = self.norm(x)
        return normed


class DecoderStack(nn.Module):
    """N decoder blocks (the paper: 6), with a final norm where the blocks are pre-norm."""

    def __init__(self, num_layers: int, options: BlockOptions) -> None:
        super().__init__()
        self.layer_dropout = options.layer_dropout
        self.blocks = nn.ModuleList(DecoderBlock(options) for _ in range(num_layers))
        self.norm = options.final_norm()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        memory: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "#B T T"],
        memory_mask: Bool[Tensor, "#B #T S"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """The hidden states from which the output projection predicts each next token."""
        for block in self.blocks:
            if not _skips_block(self):
                x = block(x, memory, mask, memory_mask)
        normed: Tensor = self.norm(x)
        return normed

    def start(self, memory: Float[Tensor, "B S D"], memory_mask: Bool[Tensor, "B 1 S"]) -> DecoderCache:
        """A cache with the memory's keys and values of every block, and empty prefixes."""
        return DecoderCache([block.cross_attention.keys_values(memory) for block in self._blocks()], memory_mask)

    def step(self, x: Float[Tensor, "R 1 D"], cache: DecoderCache) -> Float[Tensor, "R 1 D"]:
        """The hidden states of one more position of each row; ``cache`` then holds it."""
        cache.open_step()
        for layer, block in enumerate(self._blocks()):
            x = block.step(x, cache, layer)
        cache.close_step()
        normed: Tensor = self.norm(x)
        return normed

    def _blocks(self) -> list[DecoderBlock]:
        return cast("list[DecoderBlock]", list(self.blocks))
