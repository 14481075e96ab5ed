"""The layers of Headway's models as ONNX nodes. Each function reads like the module at its path, in inference mode.

Shapes: B sequences, S or T their positions, P earlier positions in a cache, H heads, K width of a query or key per
head, U width of a value per head, D model, F feed-forward. The residual stream is one matrix of shape (B * T, D).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from headway.errors import BundleError
from headway.interop.onnx_graph import FLOAT, OnnxGraph
from headway.interop.supported import GATE_ACTIVATIONS
from headway.nn.blocks import NoNorm, PostNorm, PreNorm
from headway.nn.embedding import TokenEmbedding
from headway.nn.norms import RMSNorm
from headway.nn.positions import NoPositions

Window = tuple[int, int] | None
"""The numbers of positions before and after its own position that a query may attend to; None means all positions."""


@dataclass(frozen=True)
class OnnxMask:
    """An attention mask.

    Attributes:
        bias: Name of the values to add to scores: 0 or minus infinity, of shape (B or 1, 1, T or 1, S).
        output_factor: Name of the factors to multiply attention outputs by: 0 for queries that may not attend to any
            key, otherwise 1. None if there are no such queries.
    """

    bias: str
    output_factor: str | None = None


def attention_mask(graph: OnnxGraph, conditions: Iterable[str], *, has_empty_rows: bool) -> OnnxMask:
    """Return the mask of the keys that satisfy all ``conditions``, booleans that broadcast to (B, 1, T, S).

    As in ``nn.attention``, a fully masked row is unmasked so that its softmax remains finite, and its result is set to
    zero.
    """
    first, *others = conditions
    for other in others:
        first = graph.add_op("And", first, other)
    if not has_empty_rows:
        return OnnxMask(_bias(graph, first))
    some = graph.add_op("ReduceMax", graph.add_op("Cast", first, to=FLOAT), graph.constant([-1]), keepdims=1)
    return OnnxMask(_bias(graph, graph.add_op("Or", first, graph.add_op("Equal", some, graph.constant(0.0)))), some)


def _bias(graph: OnnxGraph, attends: str) -> str:
    return graph.add_op("Where", attends, graph.constant(0.0), graph.constant(-math.inf))


def padding_mask(graph: OnnxGraph, attends: str) -> OnnxMask:
    """Return the mask for (B, S) booleans, which are False at padding."""
    return attention_mask(graph, [graph.add_op("Unsqueeze", attends, graph.constant([1, 2]))], has_empty_rows=True)


def window_conditions(graph: OnnxGraph, queries: str, keys: str, window: Window) -> list[str]:
    """Return conditions that are True for keys in the window around the query.

    ``queries`` and ``keys`` are positions that broadcast to (B, 1, T, S).
    """
    if window is None:
        return []
    before, after = window
    return [
        graph.add_op("GreaterOrEqual", keys, graph.add_op("Sub", queries, graph.constant(before))),
        graph.add_op("LessOrEqual", keys, graph.add_op("Add", queries, graph.constant(after))),
    ]


def embed_tokens(graph: OnnxGraph, path: str, tokens: str) -> str:
    """Look up ``tokens`` in the embedding at ``path``, and scale the embeddings."""
    embedding = graph.module.get_submodule(path)
    assert isinstance(embedding, TokenEmbedding)
    embeddings = graph.add_op("Gather", graph.weight(f"{path}.weight"), tokens)
    return embeddings if embedding.scale == 1 else graph.add_op("Mul", embeddings, graph.constant(embedding.scale))


def add_positions(graph: OnnxGraph, path: str, x: str, positions: str, max_length: int) -> str:
    """Add the positional embeddings of the module at ``path`` for ``positions``, which are below ``max_length``."""
    if isinstance(graph.module.get_submodule(path), NoPositions):
        return x
    return graph.add_op("Add", x, graph.add_op("Gather", _position_table(graph, path, max_length), positions))


def _position_table(graph: OnnxGraph, path: str, max_length: int) -> str:
    """Return the positional embeddings of the module at ``path`` for positions 0 .. max_length - 1."""
    if graph.has_weight(name := f"{path}.table"):
        return graph.weight(name)
    with torch.no_grad():
        return graph.constant(graph.module.get_submodule(path)(torch.zeros(1, max_length, graph.config.d_model))[0])


@dataclass(frozen=True)
class Rotation:
    """The positions for the rotation of queries and keys (rotary positions).

    Attributes:
        positions: Name of the positions, which broadcast to (B, H, T).
        max_length: An upper bound that all positions are below.
    """

    positions: str
    max_length: int


def self_attention_block(
    graph: OnnxGraph, path: str, x: str, attend: Callable[[str], str], *, parallel: bool = False
) -> str:
    """Apply the block at ``path`` with the self-attention ``attend``. If ``parallel``, both sub-layers transform x."""
    first, second = f"{path}.attention_residual", f"{path}.feed_forward_residual"
    if parallel:
        attended = attend(norm(graph, f"{first}.norm", x))
        transformed = feed_forward(graph, path, norm(graph, f"{second}.norm", x))
        return graph.add_op("Add", graph.add_op("Add", x, attended), transformed)
    x = residual(graph, first, x, attend)
    return residual(graph, second, x, partial(feed_forward, graph, path))


def residual(graph: OnnxGraph, path: str, x: str, sublayer: Callable[[str], str]) -> str:
    """Apply ``sublayer`` with the residual connection and the norm of the module at ``path``."""
    around = graph.module.get_submodule(path)
    assert isinstance(around, (PostNorm, PreNorm, NoNorm))
    output = sublayer(norm(graph, f"{path}.norm", x) if isinstance(around, PreNorm) else x)
    summed = graph.add_op("Add", x, output) if around.residual else output
    return norm(graph, f"{path}.norm", summed) if isinstance(around, PostNorm) else summed


def self_attention(
    graph: OnnxGraph, path: str, x: str, batch: str, masks: Mapping[Window, OnnxMask], rotation: Rotation
) -> str:
    """Attend from all positions of x to all positions. ``batch`` is the shape [B]; ``masks`` has one mask per window.

    As in the module, queries and keys are rotated only if positions are rotary.
    """
    query, keys, values = project_heads(graph, path, x, ("query", "key", "value"), batch, rotation=rotation)
    return attention_output(graph, path, query, keys, values, masks[graph.attention_layer(path).window])


def project_heads(
    graph: OnnxGraph,
    path: str,
    x: str,
    parts: tuple[str, ...],
    batch: str,
    *,
    length: int = -1,
    rotation: Rotation | None = None,
) -> list[str]:
    """Project (B * T, D) to queries, keys or values of shape (B, H, T, K or U), with one matrix product.

    ``batch`` is the name of the shape [B], and ``length`` is T. Either may be -1, which means that it is inferred.
    """
    attention = graph.attention_layer(path)
    counts = [attention.num_heads if part == "query" else attention.num_kv_heads for part in parts]
    widths = [attention.d_value if part == "value" else attention.d_key for part in parts]
    sizes = [count * width for count, width in zip(counts, widths, strict=True)]
    projected = graph.split(_joined_linear(graph, path, parts, x), sizes)
    outputs = []
    for part, value, count, width in zip(parts, projected, counts, widths, strict=True):
        shape = graph.add_op("Concat", batch, graph.constant([length, count, width]), axis=0)
        head = graph.add_op("Transpose", graph.add_op("Reshape", value, shape), perm=[0, 2, 1, 3])
        if part != "value" and getattr(attention, f"{part}_norm") is not None:
            head = norm(graph, f"{path}.{part}_norm", head)
        outputs.append(head if part == "value" else _rotated(graph, path, head, rotation))
    return outputs


def _rotated(graph: OnnxGraph, path: str, x: str, rotation: Rotation | None) -> str:
    """Rotate queries or keys (B, H, T, K) by their positions if positions are rotary."""
    rotary = graph.attention_layer(path).rotary
    if rotary is None:
        return x
    assert rotation is not None
    rotary.reserve(rotation.max_length)
    tables = rotary.table[: rotation.max_length].unbind(1)  # cosines, and signed sines
    cosine, sine = (graph.add_op("Gather", graph.constant(table.clone()), rotation.positions) for table in tables)
    swapped = [unit ^ 1 for unit in range(tables[0].size(1))]  # the two units of each pair
    other = graph.add_op("Gather", x, graph.constant(swapped), axis=-1)
    return graph.add_op("Add", graph.add_op("Mul", x, cosine), graph.add_op("Mul", other, sine))


def _joined_linear(graph: OnnxGraph, path: str, parts: tuple[str, ...], x: str) -> str:
    """Apply several linear layers as one. The runtime concatenates their matrices when it loads the graph."""
    kinds = [kind for kind in ("weight", "bias") if graph.has_weight(f"{path}.{parts[0]}.{kind}")]
    joined = [
        graph.add_op("Concat", *(graph.weight(f"{path}.{part}.{kind}") for part in parts), axis=0) for kind in kinds
    ]
    return graph.add_op("Gemm", x, *joined, transB=1)


def attention_output(graph: OnnxGraph, path: str, query: str, keys: str, values: str, mask: OnnxMask) -> str:
    """Attend with (B, H, T, K) queries, concatenate the heads to (B * T, H * U) and project them."""
    attention = graph.attention_layer(path)
    grouped, groups = attention.queries_per_key > 1, [attention.num_kv_heads, attention.queries_per_key]
    query = graph.add_op("Mul", query, graph.constant(attention.d_key**-0.5))
    bias, factor = mask.bias, mask.output_factor
    if grouped:  # (B, key heads, queries per key, T, K), so that keys and values need not be repeated
        query = graph.add_op("Reshape", query, graph.constant([0, *groups, -1, attention.d_key]))
        axis = graph.constant([2])
        keys, values, bias = (graph.add_op("Unsqueeze", tensor, axis) for tensor in (keys, values, bias))
        factor = factor and graph.add_op("Unsqueeze", factor, axis)
    scores = graph.add_op(
        "MatMul", query, graph.add_op("Transpose", keys, perm=[0, 1, 2, 4, 3] if grouped else [0, 1, 3, 2])
    )
    context = graph.add_op("MatMul", graph.add_op("Softmax", graph.add_op("Add", scores, bias), axis=-1), values)
    if factor is not None:
        context = graph.add_op("Mul", context, factor)
    context = graph.add_op("Transpose", context, perm=[0, 3, 1, 2, 4] if grouped else [0, 2, 1, 3])
    shape = graph.constant([-1, attention.num_heads * attention.d_value])
    return linear(graph, f"{path}.output", graph.add_op("Reshape", context, shape))


def feed_forward(graph: OnnxGraph, block: str, x: str) -> str:
    """Apply the feed-forward layer of the block at path ``block``."""
    path, activation = f"{block}.feed_forward", graph.config.activation
    inner = linear(graph, f"{path}.inner", x)
    if activation in GATE_ACTIVATIONS:
        gate = apply_activation(graph, GATE_ACTIVATIONS[activation], linear(graph, f"{path}.gate", x))
        return linear(graph, f"{path}.outer", graph.add_op("Mul", gate, inner))
    return linear(graph, f"{path}.outer", apply_activation(graph, activation, inner))


def apply_activation(graph: OnnxGraph, activation: str, x: str) -> str:
    """Apply an activation that is not gated."""
    match activation:
        case "relu" | "gelu" | "sigmoid" | "tanh":
            return graph.add_op(activation.capitalize(), x)
        case "gelu_tanh":
            return graph.add_op("Gelu", x, approximate="tanh")
        case "silu":
            return graph.add_op("Mul", x, graph.add_op("Sigmoid", x))
        case _:
            raise BundleError(f"activation = {activation!r} is not supported by the ONNX export")


def linear(graph: OnnxGraph, path: str, x: str) -> str:
    """Apply the linear layer at ``path`` to the rows of a matrix."""
    return graph.add_op("Gemm", x, graph.weight(f"{path}.weight"), *_bias_weight(graph, path), transB=1)


def norm(graph: OnnxGraph, path: str, x: str) -> str:
    """Apply the norm at ``path`` if the model has one there."""
    module = graph.module.get_submodule(path)
    if isinstance(module, nn.Identity):
        return x
    weight = graph.weight(f"{path}.weight")
    if isinstance(module, RMSNorm):
        square = graph.add_op("ReduceMean", graph.add_op("Mul", x, x), graph.constant([-1]), keepdims=1)
        size = graph.add_op("Sqrt", graph.add_op("Add", square, graph.constant(module.epsilon)))
        return graph.add_op("Mul", graph.add_op("Div", x, size), weight)
    assert isinstance(module, nn.LayerNorm)
    return graph.add_op("LayerNormalization", x, weight, *_bias_weight(graph, path), epsilon=module.eps)


def _bias_weight(graph: OnnxGraph, path: str) -> list[str]:
    return [graph.weight(f"{path}.bias")] if graph.has_weight(f"{path}.bias") else []
