"""The boxes of embeddings, attention, feed-forward layers, norms, blocks and outputs, read from the modules themselves.

A drawing of the level "model" has one box for a sub-layer, as figure 1 of the paper. A drawing of the level "block" has
one box for each of its steps, with dropout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Literal, cast

from torch import Tensor, nn
from torch.nn import functional as F

from headway.diagrams.column import Added, AttentionLayer, Item, Layer, Mask, Parallel, Repeat, Sublayer
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import (
    CausalBlock,
    CausalStack,
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    GatedFeedForward,
    NoNorm,
    PostNorm,
    PreNorm,
    gelu_tanh,
)
from headway.nn.embedding import TokenEmbedding
from headway.nn.norms import RMSNorm
from headway.nn.positions import LearnedPositions, NoPositions, SinusoidalPositions

Residual = PostNorm | PreNorm | NoNorm
Block = EncoderBlock | DecoderBlock | CausalBlock
_ACTIVATIONS: dict[Any, str] = {
    F.relu: "ReLU", F.gelu: "GELU", gelu_tanh: "GELU (tanh)", F.silu: "SiLU", F.sigmoid: "sigmoid",
}  # fmt: skip
_GATES: dict[Any, str] = {F.relu: "ReGLU", F.gelu: "GeGLU", F.silu: "SwiGLU", F.sigmoid: "GLU"}
_SIZE_OF_MASK = 6


def count(*modules: nn.Module | None, without: Tensor | None = None) -> int:
    """Return the number of weights of modules, without those of a parameter that another box counts."""
    parameters = (weight for module in modules if module is not None for weight in module.parameters())
    return sum(weight.numel() for weight in parameters if weight is not without)


def embedding_layers(
    words: str,
    embedding: TokenEmbedding,
    positions: nn.Module,
    norm: nn.Module,
    shape: str,
    *,
    is_tied: bool = False,
    segments: nn.Module | None = None,
) -> Iterator[Item]:
    """Yield the boxes from tokens to the input of the first block."""
    scale = f"× √{embedding.weight.size(1)}" if embedding.scale != 1 else ""
    lines = tuple(filter(None, (words, scale)))
    yield Layer(lines, "embedding", 0 if is_tied else count(embedding), shape, "embedding")
    match positions:
        case LearnedPositions():
            yield Added(Layer(("Learned positions", f"up to {positions.max_length:,}"), "embedding", count(positions)))
        case SinusoidalPositions():
            yield Added(Layer(("Positional", "encoding", "(sines, cosines)"), "embedding"))
        case NoPositions():
            pass
        case _:
            yield Added(Layer((type(positions).__name__,), "embedding", count(positions)))
    if segments is not None:
        yield Added(Layer(("Segment", "embedding"), "embedding", count(segments)))
    if not isinstance(norm, nn.Identity):
        yield norm_layer(norm, shape)


def norm_layer(norm: nn.Module, shape: str = "") -> Layer:
    """Return the box of a norm."""
    return Layer(("RMSNorm" if isinstance(norm, RMSNorm) else "Norm",), "norm", count(norm), shape)


def stack_items(blocks: Sequence[Block], words: str, shape: str, *, detailed: bool) -> Iterator[Repeat]:
    """Yield the blocks of a stack. Equal ones are drawn once, with their number."""
    kinds = [tuple(_block_items(block, shape, detailed=detailed)) for block in blocks]
    for kind in dict.fromkeys(kinds):
        numbers = [number for number, other in enumerate(kinds, start=1) if other == kind]
        which = "" if len(numbers) == len(kinds) else f" {_ranges(numbers)}"
        plural = "s" if len(numbers) > 1 else ""
        yield Repeat(len(numbers), f"{words}{plural}{which}", kind, shape)


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers with successive ones as ranges: 1, 4–6."""
    groups = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ranges = [[number for _, number in group] for _, group in groups]
    shown = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in ranges]
    return ", ".join(shown)


def _block_items(block: Block, shape: str, *, detailed: bool) -> Iterator[Item]:
    causal = isinstance(block, CausalBlock | DecoderBlock)
    attention = attention_layers(block.attention, shape, "causal" if causal else "all", detailed=detailed)
    feed_forward = _feed_forward_layers(block.feed_forward, shape, detailed=detailed)
    if isinstance(block, CausalBlock) and block.parallel:
        branches = [
            (norm_layer(around.get_submodule("norm"), shape), *layers, *_dropout(around, shape, detailed=detailed))
            for around, layers in (
                (block.attention_residual, attention),
                (block.feed_forward_residual, feed_forward),
            )
        ]
        yield Parallel((branches[0], branches[1]))
        return
    yield _sublayer(attention, block.attention_residual, shape, detailed=detailed)
    if isinstance(block, DecoderBlock):
        cross = attention_layers(block.cross_attention, shape, "memory", detailed=detailed)
        yield _sublayer(cross, block.cross_attention_residual, shape, detailed=detailed)
    yield _sublayer(feed_forward, block.feed_forward_residual, shape, detailed=detailed)


def _sublayer(layers: tuple[Layer, ...], around: Residual, shape: str, *, detailed: bool) -> Sublayer:
    place: Literal["post", "pre", "none"] = (
        "post" if isinstance(around, PostNorm) else "pre" if isinstance(around, PreNorm) else "none"
    )
    norm = None if isinstance(around, NoNorm) else norm_layer(around.norm, shape)
    return Sublayer((*layers, *_dropout(around, shape, detailed=detailed)), place, norm, around.residual)


def _dropout(around: Residual, shape: str, *, detailed: bool) -> tuple[Layer, ...]:
    return dropout_layer(around.dropout.p, shape) if detailed else ()


def dropout_layer(probability: float, shape: str = "") -> tuple[Layer, ...]:
    """Return the box of dropout, if there is any."""
    return (Layer((f"Dropout {probability:g}",), "plain", shape=shape),) if probability else ()


def attention_layers(
    attention: MultiHeadAttention, shape: str, keys: Literal["all", "causal", "memory"], *, detailed: bool
) -> tuple[Layer, ...]:
    """Return the box of an attention sub-layer, or the boxes of its steps."""
    title = attention_name(attention)
    title = f"Masked {title[0].lower()}{title[1:]}" if keys == "causal" else title
    if attention.window is not None:
        before, after = attention.window
        title = f"{title} in a window of {before + 1 + after:,}"
    heads = f"{attention.num_heads} heads" if attention.num_heads > 1 else "1 head"
    lines = [title, heads, *attention_options(attention)]
    mask = mask_picture(keys == "causal", attention.window)
    memory = keys == "memory"
    if not detailed:
        return (AttentionLayer(tuple(lines), "attention", count(attention), shape, mask=mask, memory=memory),)
    projections = count(attention) - count(attention.output)
    return (
        AttentionLayer(("Linear for each input", *lines), "attention", projections, shape, mask=mask, memory=memory),
        *_weight_dropout(attention),
        Layer(("Concatenate heads, linear",), "linear", count(attention.output), shape),
    )


def _weight_dropout(attention: MultiHeadAttention) -> tuple[Layer, ...]:
    probability = attention.dropout.p
    return (Layer((f"Dropout {probability:g} on weights",), "plain"),) if probability else ()


def attention_name(attention: MultiHeadAttention) -> str:
    """Return the usual name, which depends on how many heads of queries share keys and values."""
    if attention.queries_per_key == 1:
        return "Multi-head attention"
    return "Multi-query attention" if attention.num_kv_heads == 1 else "Grouped-query attention"


def attention_options(attention: MultiHeadAttention) -> Iterator[str]:
    """Yield what distinguishes attention from the paper's, in words."""
    if attention.queries_per_key > 1:
        kv_heads = attention.num_kv_heads
        which = f"each of {kv_heads} key/value heads" if kv_heads > 1 else "one key/value head"
        yield f"{which} serves {attention.queries_per_key} query heads"
    if attention.rotary is not None:
        yield "rotary positions"
    if attention.query_outer is not None:
        yield "hidden layer for Q and K"
    if attention.query_norm is not None:
        yield "norm of Q and K"
    if attention.score is not None:
        yield f"{attention.score.kind.replace('_', '-')} scores"


def mask_picture(causal: bool, window: tuple[int, int] | None) -> Mask:
    """Return a small picture of which keys (columns) each query (row) attends to."""
    before, after = (_SIZE_OF_MASK, _SIZE_OF_MASK) if window is None else (min(window[0], 1), min(window[1], 1))
    after = 0 if causal else after
    places = range(_SIZE_OF_MASK)
    return tuple(tuple(float(-before <= key - query <= after) for key in places) for query in places)


def _feed_forward_layers(layer: FeedForward | GatedFeedForward, shape: str, *, detailed: bool) -> tuple[Layer, ...]:
    gated = isinstance(layer, GatedFeedForward)
    name = (_GATES if gated else _ACTIVATIONS).get(layer.activation, "activation")
    d_model, d_ff = layer.inner.in_features, layer.inner.out_features
    if not detailed:
        lines = ("Feed forward", f"{d_model:,} → {d_ff:,} → {d_model:,}", name)
        return (Layer(lines, "feed_forward", count(layer), shape),)
    inner = shape.replace(f"{d_model:,}", f"{d_ff:,}")
    twice = "2 × " if gated else ""
    activation = f"{name}: {_ACTIVATIONS[layer.activation]} × other" if gated else name
    return (
        Layer((f"{twice}Linear {d_model:,} → {d_ff:,}",), "feed_forward", count(layer) - count(layer.outer), inner),
        Layer((activation,), "feed_forward", shape=inner),
        *dropout_layer(layer.dropout.p, inner),
        Layer((f"Linear {d_ff:,} → {d_model:,}",), "feed_forward", count(layer.outer), shape),
    )


def output_layers(projection: nn.Linear, shape: str, *, is_tied: bool) -> Iterator[Item]:
    """Yield the boxes from the last states to probabilities. A tied matrix counts at the embedding."""
    matrix = projection.weight if is_tied else None
    bias = "" if projection.bias is None else "with a bias"
    lines = tuple(filter(None, ("Linear", bias)))
    yield Layer(lines, "linear", count(projection, without=matrix), shape, "projection")
    yield Layer(("Softmax",), "softmax", shape=shape)


def blocks_in(stack: EncoderStack | DecoderStack | CausalStack) -> list[Block]:
    """Return the blocks of a stack."""
    return cast("list[Block]", list(stack.blocks))


def final_norm(stack: EncoderStack | DecoderStack | CausalStack, shape: str) -> Iterator[Layer]:
    """Yield the box of the norm after a stack of pre-norm blocks."""
    if not isinstance(stack.norm, nn.Identity):
        yield norm_layer(stack.norm, shape)
