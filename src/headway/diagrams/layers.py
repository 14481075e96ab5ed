"""Boxes for the modules of a model, labeled with what each module computes and its number of weights.

A drawing has one box for each sub-layer of a block, as in figure 1 of the paper. A drawing with ``show_steps`` has one
box for each step of a sub-layer, including dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Any

from torch import nn
from torch.nn import functional as F

from headway.diagrams.column import Column
from headway.diagrams.drawing import Drawing, MaskRows, weights_of
from headway.nn import blocks
from headway.nn.attention import MultiHeadAttention
from headway.nn.convolution import ResidualConvolution
from headway.nn.dropout import Dropout
from headway.nn.embedding import TokenEmbedding
from headway.nn.norms import RMSNorm
from headway.nn.pooling import AttentionPooling, Pooling
from headway.nn.positions import LearnedPositions, SinusoidalPositions

# Maps each activation to its name and the name of a gated layer with this activation.
_ACTIVATIONS: dict[Any, tuple[str, str]] = {
    F.relu: ("ReLU", "ReGLU"), F.gelu: ("GELU", "GeGLU"), blocks.gelu_tanh: ("GELU (tanh)", "GeGLU (tanh)"),
    F.silu: ("SiLU", "SwiGLU"), F.sigmoid: ("sigmoid", "GLU"),
}  # fmt: skip
_POOLING = {
    "mean": "Mean over positions", "max": "Maximum over positions", "mean_max": "Mean and maximum over positions",
    "first": "State of the first token", "last": "State of the last token",
}  # fmt: skip
_SIZE_OF_MASK = 6


def add(column: Column, module: nn.Module | None, words: str = "") -> None:
    """Place the box of a module. Its text includes ``words``, a name or a remark. Modules without effect get no box."""
    weights, positions = weights_of(module), column.shape.rpartition(" × ")[0]
    match module:
        case TokenEmbedding():
            scale, width = "" if module.scale == 1 else f"\n× √{module.weight.size(1)}", f"{module.weight.size(1):,}"
            column.add_layer(words + scale, "embedding", weights, shape=f"{column.shape} × {width}")
        case LearnedPositions():
            column.add_from_side(f"Learned positions\nup to {module.max_length:,}", weights)
        case SinusoidalPositions():
            column.add_from_side("Positional\nencoding", sign="∿")
        case nn.Embedding():
            column.add_from_side(words, weights)
        case nn.LayerNorm() | RMSNorm():
            name = "RMSNorm" if isinstance(module, RMSNorm) else "norm" if words else "Norm"
            column.add_layer(words + name, "norm", weights)
        case Dropout() if column.drawing.show_steps and module.p:
            column.add_layer(f"Dropout {module.p:g}{words}", "plain")
        case ResidualConvolution():
            text = f"Convolution over {module.convolution.kernel_size[0]} positions\nwith residual connection"
            column.add_layer(text, "linear", weights)
        case Pooling():
            column.add_layer(f"{_POOLING[module.kind]}\n{words}", "plain", weights, shape=f"B × {module.width:,}")
        case AttentionPooling():
            column.add_layer(f"Attention pooling\n{words}", "attention", weights, shape=f"B × {module.width:,}")
        case nn.Linear():
            bias, shape = "" if module.bias is None else "\nwith a bias", f"{positions} × {module.out_features:,}"
            column.add_layer(f"Linear{words}{bias}", "linear", weights, shape=shape)


def add_outer_modules(column: Column, *modules: nn.Module | tuple[nn.Module | None, str] | None) -> None:
    """Place the boxes of modules outside of blocks, some with words (see :func:`add`), unless the drawing has steps."""
    for module in modules if not column.drawing.show_steps else ():
        add(column, *(module if isinstance(module, tuple) else (module,)))


def add_blocks(
    column: Column, stack: blocks.EncoderStack | blocks.DecoderStack | blocks.CausalStack, words: str,
    memory: Column | None = None,
) -> None:  # fmt: skip
    """Place the blocks of a stack and the norm after them. Equal blocks are drawn once, with their number."""
    kinds: dict[Any, list[int]] = {}
    for number, block in enumerate(stack.blocks, start=1):
        alone = Column(Drawing("", show_steps=column.drawing.show_steps), [0.0])
        _add_block(alone, block, memory and alone)
        kinds.setdefault(tuple(alone.drawing.shapes), []).append(number)
    for numbers in kinds.values():
        count = len(numbers)
        which = f" {_ranges(numbers)}" if len(kinds) > 1 else ""
        with column.frame_repeated(
            count, f"{count} ×" if which else f"N = {count} ×", f"{words}{'s' * (count > 1)}{which}"
        ):
            _add_block(column, stack.blocks[numbers[0] - 1], memory)
    add(column, stack.norm)


def _ranges(numbers: list[int]) -> str:
    """Return numbers as text, with consecutive numbers as ranges: 1, 4–6."""
    groups = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _add_block(column: Column, block: Any, memory: Column | None) -> None:
    attend = partial(_add_attention, layer=block.attention, causal=not isinstance(block, blocks.EncoderBlock))
    transform = partial(_add_feed_forward, layer=block.feed_forward)
    if getattr(block, "parallel", False):
        branches = column.fork()
        _add_branch(branches[0], block.attention_residual, attend)
        _add_branch(branches[1], block.feed_forward_residual, transform)
        column.join(branches)
        return
    _add_sublayer(column, block.attention_residual, attend)
    if isinstance(block, blocks.DecoderBlock):
        cross = partial(_add_attention, layer=block.cross_attention, memory=memory)
        _add_sublayer(column, block.cross_attention_residual, cross)
    _add_sublayer(column, block.feed_forward_residual, transform)


def _add_sublayer(column: Column, around: Any, add_inner: Callable[[Column], None]) -> None:
    """Place a sub-layer with its norm and residual connection."""
    start = column.y - 10
    _add_branch(column, around, add_inner)
    if isinstance(around, blocks.PostNorm):
        add(column, around.norm, "Add & " if around.residual else "")
    elif around.residual:
        column.add_plus_sign()
    if around.residual:
        column.draw_residual(start)


def _add_branch(column: Column, around: Any, add_inner: Callable[[Column], None]) -> None:
    if isinstance(around, blocks.PreNorm):
        add(column, around.norm)
    add_inner(column)
    add(column, around.dropout)


def _add_attention(
    column: Column, layer: MultiHeadAttention, causal: bool = False, memory: Column | None = None
) -> None:
    title = attention_name(layer)
    if causal:
        title = f"Masked {title[0].lower()}{title[1:]}"
    if layer.window is not None:
        title += f" in {describe_window(*layer.window)}"
    heads = f"{layer.num_heads} head{'s' * (layer.num_heads > 1)}"
    text, mask = "\n".join([title, heads, *attention_options(layer)]), mask_rows(causal, layer.window)
    shared = weights_of(layer.relative_bias)  # weights that all blocks of the stack share
    column.drawing.count_new(shared)
    weights = [weight for weight in weights_of(layer) if weight not in set(shared)]
    if not column.drawing.show_steps:
        column.add_attention(text, weights, mask, memory)
        return
    last = set(weights_of(layer.output))
    inputs = [weight for weight in weights if weight not in last]
    column.add_attention(f"Linear for each input\n{text}", inputs, mask, memory)
    add(column, layer.dropout, " on weights")
    column.add_layer("Concatenate heads, linear", "linear", last)


def attention_name(attention: MultiHeadAttention) -> str:
    """Return the usual name of the attention, which depends on how many query heads share keys and values."""
    if attention.queries_per_key == 1:
        return "Multi-head attention"
    return "Multi-query attention" if attention.num_kv_heads == 1 else "Grouped-query attention"


def attention_options(attention: MultiHeadAttention) -> Iterator[str]:
    """Yield a description of each difference between an attention layer and the paper's."""
    if attention.queries_per_key > 1:
        kv_heads = attention.num_kv_heads
        which = f"each of {kv_heads} key/value heads" if kv_heads > 1 else "one key/value head"
        yield f"{which} serves {attention.queries_per_key} query heads"
    if attention.rotary is not None:
        yield "rotary positions"
    if (bias := attention.relative_bias) is not None:
        yield f"bias by distance: {bias.num_buckets} buckets up to {bias.max_distance:,}"
    if attention.query_outer is not None:
        yield "hidden layer for Q and K"
    if attention.query_norm is not None:
        yield "norm of Q and K"
    if attention.score is not None:
        yield f"{attention.score.kind.replace('_', '-')} scores"


def describe_window(before: int, after: int) -> str:
    """Describe the positions in a window around each position."""
    more = f", {after:,}\u00a0after" if after else ""
    return f"a window of {before + 1 + after:,}: itself, {before:,}\u00a0before{more}"


def mask_rows(causal: bool, window: tuple[int, int] | None) -> MaskRows:
    """Return a small picture of the keys (columns) that each query (row) attends to. Windows have three positions."""
    most = (_SIZE_OF_MASK, 0 if causal else _SIZE_OF_MASK) if window is None else (2, 0) if causal else (1, 1)
    (before, after), places = map(min, window or most, most), range(_SIZE_OF_MASK)
    return tuple(tuple(-before <= key - query <= after for key in places) for query in places)


def _add_feed_forward(column: Column, layer: blocks.FeedForward | blocks.GatedFeedForward) -> None:
    gated = isinstance(layer, blocks.GatedFeedForward)
    activation, gate = _ACTIVATIONS.get(layer.activation, ("activation", "gate"))
    name = gate if gated else activation
    d_model, d_ff = f"{layer.inner.in_features:,}", f"{layer.inner.out_features:,}"
    if not column.drawing.show_steps:
        text = f"Feed forward\n{d_model} → {d_ff} → {d_model}\n{name}"
        column.add_layer(text, "feed_forward", weights_of(layer))
        return
    last, outside = set(weights_of(layer.outer)), column.shape
    first = [weight for weight in weights_of(layer) if weight not in last]
    inside = outside.replace(d_model, d_ff)
    column.add_layer(f"{'2 × ' if gated else ''}Linear {d_model} → {d_ff}", "feed_forward", first, shape=inside)
    column.add_layer(f"{name}: {activation} × other" if gated else name, "feed_forward")
    add(column, layer.dropout)
    column.add_layer(f"Linear {d_ff} → {d_model}", "feed_forward", last, shape=outside)
