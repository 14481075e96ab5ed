"""Build the ONNX graphs of a model: two for a Transformer (the encoder, and one cached decoder step), one for a
classifier.

The graphs are built node by node from the modules of a model, with the names of its weights, so the code here reads
like the modules. (PyTorch's exporter was tried. It takes half a minute to trace a toy model with two encoder and two
decoder blocks, and the time grows with the number of blocks.) The graphs contain no weights. Each weight is an external
tensor in the ``model.safetensors`` beside them, so both graphs share one file and tied weights are stored once.

Shapes: B sentences or texts, S source length, R = B * W rows (the W beams of a sentence are adjacent), T prefix length,
H heads, K width of a query or key per head, U width of a value per head, D model, V vocabulary, C classes, P pooled
width. Inside the graphs, the residual stream is one matrix of shape (B * S, D) or (R, D).

Prefixes are aligned at the end. A row that started later than others has masked columns in front, and ``positions``
determines how many. Appending a token is therefore one concatenation, whatever the lengths of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headway.errors import BundleError
from headway.interop.supported import GATES
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import EncoderStack, NoNorm, PostNorm, PreNorm
from headway.nn.embedding import TokenEmbedding

if TYPE_CHECKING:
    import onnx


OPSET = 20  # the first opset with Gelu
_IR_VERSION = 9  # file format version of the same release (ONNX 1.15)
_FLOAT, _INT, _BOOL = 1, 7, 9  # values of onnx.TensorProto


@dataclass(frozen=True)
class StoredTensor:
    """Location of a float32 weight: ``num_bytes`` bytes from byte ``offset`` of a file beside the graph."""

    shape: tuple[int, ...]
    location: str
    offset: int
    num_bytes: int


def encoder_graph(model: Transformer, locations: Mapping[str, StoredTensor], max_length: int) -> onnx.ModelProto:
    """Return the graph from ``source`` (B, S) to ``memory_mask`` (B, S) and, for each decoder block N,
    ``memory_keys.N`` (B, H, S, K) and ``memory_values.N`` (B, H, S, U).
    """
    graph = OnnxGraph(model, locations)
    source = graph.add_input("source", _INT, "sentences", "source_length")
    attends = graph.op("Not", graph.op("Equal", source, graph.constant(model.pad)))
    graph.add_output(attends, "memory_mask", _BOOL, "sentences", "source_length")
    mask = _padding_mask(graph, attends)
    sentences, length = (graph.op("Shape", source, start=axis, end=axis + 1) for axis in (0, 1))
    positions = graph.op("Slice", _position_table(graph, "source_positions", max_length), graph.constant([0]), length)
    x = _norm(graph, "source_norm", _embedded(graph, "source_embedding", source, positions))
    x = graph.op("Reshape", x, graph.constant([-1, model.config.d_model]))
    memory = _encoded(graph, x, sentences, mask)
    for layer in range(len(model.decoder.blocks)):
        path = f"decoder.blocks.{layer}.cross_attention"
        heads = _heads(graph, path, memory, ("key", "value"), sentences)
        shapes = _cache_shapes(graph, path, "sentences", "source_length")
        for value, (name, shape) in zip(heads, shapes.items(), strict=True):
            graph.add_output(value, f"memory_{name}.{layer}", _FLOAT, *shape)
    return graph.to_model_proto("encoder")


def decoder_step_graph(model: Transformer, locations: Mapping[str, StoredTensor], max_length: int) -> onnx.ModelProto:
    """Return the graph of one decoder step.

    Its inputs are ``tokens`` (R), ``positions`` (R), ``prefix_keys.N`` (R, H, T, K), ``prefix_values.N`` (R, H, T, U)
    and the encoder's outputs. Its outputs are ``logits`` (R, V), and ``keys.N`` and ``values.N``, the prefixes of the
    next step.
    """
    graph = OnnxGraph(model, locations)
    tokens, positions = graph.add_input("tokens", _INT, "rows"), graph.add_input("positions", _INT, "rows")
    attends = graph.add_input("memory_mask", _BOOL, "sentences", "source_length")
    caches = [_cache_inputs(graph, layer) for layer in range(len(model.decoder.blocks))]
    prefix_mask = _prefix_mask(graph, positions, caches[0][0])
    memory_mask = _padding_mask(graph, attends)
    sentences = graph.op("Shape", attends, start=0, end=1)
    at = graph.op("Gather", _position_table(graph, "target_positions", max_length), positions)
    x = _norm(graph, "target_norm", _embedded(graph, "target_embedding", tokens, at))
    for layer, cache in enumerate(caches):
        x = _decoder_block(graph, layer, x, cache, sentences, prefix_mask, memory_mask)
    logits = _linear(graph, "projection", _norm(graph, "decoder.norm", x))
    graph.add_output(logits, "logits", _FLOAT, "rows", model.projection.out_features)
    return graph.to_model_proto("decoder_step")


def classifier_graph(model: EncoderClassifier, locations: Mapping[str, StoredTensor]) -> onnx.ModelProto:
    """Return the graph from ``source`` (B, S), token ids that end in EOS, to ``logits`` (B, C)."""
    graph, config = OnnxGraph(model, locations), model.config
    source = graph.add_input("source", _INT, "texts", "source_length")
    texts = graph.op("Shape", source, start=0, end=1)
    source = _with_padding_and_begin(graph, model, source, texts)
    # Without masks, padding counts like any other token. No id is -1, so nothing is hidden then.
    hidden_id = model.pad if config.masked else -1
    attends = graph.op("Not", graph.op("Equal", source, graph.constant(hidden_id)))
    mask = _padding_mask(graph, attends)
    length = graph.op("Shape", source, start=1, end=2)
    table = _position_table(graph, "positions", model.max_length + 1)
    x = _embedded(graph, "embedding", source, graph.op("Slice", table, graph.constant([0]), length))
    if config.convolution:
        x = _convolved(graph, config.convolution, x, attends)
    x = _encoded(graph, graph.op("Reshape", x, graph.constant([-1, config.d_model])), texts, mask)
    shape = graph.op("Concat", texts, graph.constant([-1, config.d_model]), axis=0)
    pooled = _pooled(graph, config, graph.op("Reshape", x, shape), attends, mask)
    graph.add_output(_linear(graph, "projection", pooled), "logits", _FLOAT, "texts", model.num_classes)
    return graph.to_model_proto("classifier")


class OnnxGraph:
    """Builds one graph: its nodes in computation order, its constants and its weights. A value is identified by its
    name.
    """

    def __init__(self, module: nn.Module, locations: Mapping[str, StoredTensor]) -> None:
        import onnx

        self.module = module
        self._stored = locations
        self._onnx = onnx
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: dict[str, onnx.ValueInfoProto] = {}  # keys: internal names of values
        state = module.state_dict(keep_vars=True)
        first_names = {id(tensor): name for name, tensor in reversed(state.items())}
        # Tied weights are stored under their first name.
        self._names = {name: first_names[id(tensor)] for name, tensor in state.items()}

    def add_input(self, name: str, kind: int, *shape: int | str) -> str:
        """Declare an input of the graph, and return its name."""
        self._inputs.append(self._onnx.helper.make_tensor_value_info(name, kind, shape))
        return name

    def add_output(self, value: str, name: str, kind: int, *shape: int | str) -> None:
        """Declare ``value`` as the output ``name`` of the graph."""
        self._outputs[value] = self._onnx.helper.make_tensor_value_info(name, kind, shape)

    def op(self, kind: str, *inputs: str, **attributes: int | float | list[int]) -> str:
        """Add a node for the ONNX operator ``kind`` with ``attributes``, and return the name of its output."""
        (value,) = self._node(kind, inputs, 1, attributes)
        return value

    def split(self, x: str, sizes: list[int]) -> list[str]:
        """Split the last dimension of ``x`` into parts of ``sizes``."""
        return self._node("Split", (x, self.constant(sizes)), len(sizes), {"axis": -1})

    def _node(
        self, kind: str, inputs: tuple[str, ...], count: int, attributes: Mapping[str, int | float | list[int]]
    ) -> list[str]:
        values = [f"{kind}.{len(self._nodes)}.{place}" for place in range(count)]
        node = self._onnx.helper.make_node(kind, inputs, values)
        node.attribute.extend(self._onnx.helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)
        return values

    def constant(self, content: int | float | list[int] | Tensor) -> str:
        """Add a constant of 64-bit integers or float32 numbers, and return its name."""
        name = f"constant.{len(self._tensors)}"
        self._tensors[name] = self._onnx.numpy_helper.from_array(torch.as_tensor(content).numpy(), name)
        return name

    def has_weight(self, name: str) -> bool:
        """Return whether the model has a weight of this name."""
        return name in self._names

    def weight(self, name: str) -> str:
        """Add the model's weight of this name unless the graph has it, and return its name in the graph."""
        name = self._names[name]
        if name not in self._tensors:
            stored = self._stored[name]
            tensor = self._onnx.TensorProto(name=name, data_type=_FLOAT, dims=stored.shape)
            tensor.data_location = self._onnx.TensorProto.EXTERNAL
            place = {"location": stored.location, "offset": stored.offset, "length": stored.num_bytes}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            self._tensors[name] = tensor
        return name

    def attention(self, path: str) -> MultiHeadAttention:
        """Return the model's attention layer at ``path``."""
        attention = self.module.get_submodule(path)
        assert isinstance(attention, MultiHeadAttention)
        return attention

    def to_model_proto(self, name: str) -> onnx.ModelProto:
        """Return the finished graph as an ONNX model."""
        for node in self._nodes:
            for values in (node.input, node.output):
                values[:] = [self._outputs[value].name if value in self._outputs else value for value in values]
        helper = self._onnx.helper
        tensors, outputs = list(self._tensors.values()), list(self._outputs.values())
        graph = helper.make_graph(self._nodes, name, self._inputs, outputs, tensors)
        opset = helper.make_opsetid("", OPSET)
        model: onnx.ModelProto = helper.make_model(
            graph, producer_name="headway", opset_imports=[opset], ir_version=_IR_VERSION
        )
        return model


@dataclass(frozen=True)
class OnnxMask:
    """An attention mask.

    Attributes:
        bias: Name of the values that are added to scores: 0 or minus infinity.
        output_factor: Name of the factors of attention outputs: 0 for queries that may not attend to any key, else 1.
            None if there are no such queries.
    """

    bias: str
    output_factor: str | None = None


def _cache_shapes(graph: OnnxGraph, path: str, batch: str, length: str) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of the cached keys and values of the attention layer at ``path``."""
    attention = graph.attention(path)
    widths = {"keys": attention.d_key, "values": attention.d_value}
    return {name: (batch, attention.num_heads, length, width) for name, width in widths.items()}


def _cache_inputs(graph: OnnxGraph, layer: int) -> list[str]:
    """Declare the cache inputs of a decoder block: keys and values of the prefix, then of the memory."""
    path = f"decoder.blocks.{layer}"
    prefix = _cache_shapes(graph, f"{path}.attention", "rows", "prefix_length")
    memory = _cache_shapes(graph, f"{path}.cross_attention", "sentences", "source_length")
    return [
        graph.add_input(f"{kind}_{name}.{layer}", _FLOAT, *shape)
        for kind, shapes in (("prefix", prefix), ("memory", memory))
        for name, shape in shapes.items()
    ]


def _padding_mask(graph: OnnxGraph, attends: str) -> OnnxMask:
    """Return the mask for (B, H, T, S) scores from (B, S) booleans.

    As in ``nn.attention``, a fully masked row is unmasked to keep its softmax finite, and its result is set to zero.
    """
    some = graph.op("ReduceMax", graph.op("Cast", attends, to=_FLOAT), graph.constant([1]), keepdims=1)
    bias = _bias(graph, graph.op("Or", attends, graph.op("Equal", some, graph.constant(0.0))))
    axes = graph.constant([1, 2])
    return OnnxMask(graph.op("Unsqueeze", bias, axes), graph.op("Unsqueeze", some, axes))


def _prefix_mask(graph: OnnxGraph, positions: str, prefix_keys: str) -> OnnxMask:
    """Let a row at position p attend to the last p columns of its prefix and to its new token."""
    length = graph.op("Squeeze", graph.op("Shape", prefix_keys, start=2, end=3))
    one = graph.constant(1)
    columns = graph.op("Range", graph.constant(0), graph.op("Add", length, one), one)
    first = graph.op("Unsqueeze", graph.op("Sub", length, positions), graph.constant([1]))
    bias = _bias(graph, graph.op("GreaterOrEqual", columns, first))
    return OnnxMask(graph.op("Unsqueeze", bias, graph.constant([1, 2])))


def _bias(graph: OnnxGraph, attends: str) -> str:
    return graph.op("Where", attends, graph.constant(0.0), graph.constant(-math.inf))


def _position_table(graph: OnnxGraph, path: str, max_length: int) -> str:
    """Return the vectors that the positions module at ``path`` adds at positions 0 .. max_length - 1."""
    if graph.has_weight(name := f"{path}.table"):
        return graph.weight(name)
    module = graph.module
    assert isinstance(module, Transformer | EncoderClassifier)
    with torch.no_grad():
        return graph.constant(module.get_submodule(path)(torch.zeros(1, max_length, module.config.d_model))[0])


def _embedded(graph: OnnxGraph, path: str, tokens: str, positions: str) -> str:
    """Look up ``tokens`` in the embedding at ``path``, scale their vectors, and add ``positions``."""
    embedding = graph.module.get_submodule(path)
    assert isinstance(embedding, TokenEmbedding)
    found = graph.op("Gather", graph.weight(f"{path}.weight"), tokens)
    return graph.op("Add", graph.op("Mul", found, graph.constant(embedding.scale)), positions)


def _encoded(graph: OnnxGraph, x: str, sentences: str, mask: OnnxMask) -> str:
    """Apply the encoder's blocks and its final norm to a (B * S, D) matrix."""
    encoder = graph.module.get_submodule("encoder")
    assert isinstance(encoder, EncoderStack)
    for layer in range(len(encoder.blocks)):
        x = _encoder_block(graph, f"encoder.blocks.{layer}", x, sentences, mask)
    return _norm(graph, "encoder.norm", x)


def _encoder_block(graph: OnnxGraph, path: str, x: str, sentences: str, mask: OnnxMask) -> str:
    def attend(x: str) -> str:
        query, keys, values = _heads(graph, f"{path}.attention", x, ("query", "key", "value"), sentences)
        return _attended(graph, f"{path}.attention", query, keys, values, mask)

    x = _residual(graph, f"{path}.attention_residual", x, attend)
    return _residual(graph, f"{path}.feed_forward_residual", x, lambda x: _feed_forward(graph, path, x))


def _decoder_block(
    graph: OnnxGraph, layer: int, x: str, cache: list[str], sentences: str, prefix_mask: OnnxMask, memory_mask: OnnxMask
) -> str:
    path = f"decoder.blocks.{layer}"
    own, cross = f"{path}.attention", f"{path}.cross_attention"
    prefix_keys, prefix_values, memory_keys, memory_values = cache

    def attend_to_prefix(x: str) -> str:
        query, key, value = _heads(graph, own, x, ("query", "key", "value"), graph.constant([-1]), length=1)
        keys = graph.op("Concat", prefix_keys, key, axis=2)
        values = graph.op("Concat", prefix_values, value, axis=2)
        shapes = _cache_shapes(graph, own, "rows", "next_length")
        for grown, (name, shape) in zip((keys, values), shapes.items(), strict=True):
            graph.add_output(grown, f"{name}.{layer}", _FLOAT, *shape)
        return _attended(graph, own, query, keys, values, prefix_mask)

    def attend_to_memory(x: str) -> str:
        # The beams of a sentence share its memory: they are query positions of one batch entry.
        (query,) = _heads(graph, cross, x, ("query",), sentences)
        return _attended(graph, cross, query, memory_keys, memory_values, memory_mask)

    x = _residual(graph, f"{path}.attention_residual", x, attend_to_prefix)
    x = _residual(graph, f"{path}.cross_attention_residual", x, attend_to_memory)
    return _residual(graph, f"{path}.feed_forward_residual", x, lambda x: _feed_forward(graph, path, x))


def _residual(graph: OnnxGraph, path: str, x: str, sublayer: Callable[[str], str]) -> str:
    around = graph.module.get_submodule(path)
    assert isinstance(around, (PostNorm, PreNorm, NoNorm))
    output = sublayer(_norm(graph, f"{path}.norm", x) if isinstance(around, PreNorm) else x)
    summed = graph.op("Add", x, output) if around.residual else output
    return _norm(graph, f"{path}.norm", summed) if isinstance(around, PostNorm) else summed


def _heads(graph: OnnxGraph, path: str, x: str, parts: tuple[str, ...], batch: str, *, length: int = -1) -> list[str]:
    """Project (batch * T, D) to queries, keys or values of shape (batch, H, T, K or U), with one matrix product.

    ``batch`` is the name of a value; ``length`` is T. One of them may be -1, which means that it is inferred.
    """
    attention, num_heads = graph.attention(path), graph.attention(path).num_heads
    widths = [attention.d_value if part == "value" else attention.d_key for part in parts]
    projected = graph.split(_joined_linear(graph, path, parts, x), [num_heads * width for width in widths])
    shapes = [graph.op("Concat", batch, graph.constant([length, num_heads, width]), axis=0) for width in widths]
    return [
        graph.op("Transpose", graph.op("Reshape", value, shape), perm=[0, 2, 1, 3])
        for value, shape in zip(projected, shapes, strict=True)
    ]


def _joined_linear(graph: OnnxGraph, path: str, parts: tuple[str, ...], x: str) -> str:
    """Apply several linear layers as one. The runtime concatenates their matrices once, when it loads the graph."""
    weight, bias = (
        graph.op("Concat", *(graph.weight(f"{path}.{part}.{kind}") for part in parts), axis=0)
        for kind in ("weight", "bias")
    )
    return graph.op("Gemm", x, weight, bias, transB=1)


def _attended(graph: OnnxGraph, path: str, query: str, keys: str, values: str, mask: OnnxMask) -> str:
    """Attend with (B, H, T, K) queries, concatenate the heads to (B * T, H * U) and project them."""
    attention = graph.attention(path)
    query = graph.op("Mul", query, graph.constant(attention.d_key**-0.5))
    scores = graph.op("MatMul", query, graph.op("Transpose", keys, perm=[0, 1, 3, 2]))
    heads = graph.op("MatMul", graph.op("Softmax", graph.op("Add", scores, mask.bias), axis=-1), values)
    if mask.output_factor is not None:
        heads = graph.op("Mul", heads, mask.output_factor)
    shape = graph.constant([-1, attention.num_heads * attention.d_value])
    return _linear(graph, f"{path}.output", graph.op("Reshape", graph.op("Transpose", heads, perm=[0, 2, 1, 3]), shape))


def _feed_forward(graph: OnnxGraph, block: str, x: str) -> str:
    assert isinstance(graph.module, Transformer | EncoderClassifier)
    path, activation = f"{block}.feed_forward", graph.module.config.activation
    inner = _linear(graph, f"{path}.inner", x)
    if activation in GATES:
        gate = _activated(graph, GATES[activation], _linear(graph, f"{path}.gate", x))
        return _linear(graph, f"{path}.outer", graph.op("Mul", gate, inner))
    return _linear(graph, f"{path}.outer", _activated(graph, activation, inner))


def _activated(graph: OnnxGraph, activation: str, x: str) -> str:
    match activation:
        case "relu" | "gelu" | "sigmoid":
            return graph.op(activation.capitalize(), x)
        case "silu":
            return graph.op("Mul", x, graph.op("Sigmoid", x))
        case _:
            raise BundleError(f"activation = {activation!r} is not supported by the ONNX export")


def _linear(graph: OnnxGraph, path: str, x: str) -> str:
    """Apply the linear layer at ``path`` to the rows of a matrix."""
    bias = [graph.weight(f"{path}.bias")] if graph.has_weight(f"{path}.bias") else []
    return graph.op("Gemm", x, graph.weight(f"{path}.weight"), *bias, transB=1)


def _norm(graph: OnnxGraph, path: str, x: str) -> str:
    """Apply the layer norm at ``path`` if the model has one there."""
    norm = graph.module.get_submodule(path)
    if isinstance(norm, nn.Identity):
        return x
    assert isinstance(norm, nn.LayerNorm)
    return graph.op(
        "LayerNormalization", x, graph.weight(f"{path}.weight"), graph.weight(f"{path}.bias"), epsilon=norm.eps
    )


def _with_padding_and_begin(graph: OnnxGraph, model: EncoderClassifier, source: str, texts: str) -> str:
    """Pad or truncate (B, S) ids to ``max_length`` and put the begin symbol in front, as the model does."""

    def columns(token: int, count: int) -> str:
        return graph.op("Expand", graph.constant(token), graph.op("Concat", texts, graph.constant([count]), axis=0))

    if model.config.pad_to_max_length:
        source = graph.op("Concat", source, columns(model.pad, model.max_length), axis=1)
        ends = graph.constant([0]), graph.constant([model.max_length]), graph.constant([1])
        source = graph.op("Slice", source, *ends)
    if model.config.pooling == "first":
        source = graph.op("Concat", columns(model.bos, 1), source, axis=1)
    return source


def _convolved(graph: OnnxGraph, width: int, x: str, attends: str) -> str:
    """Apply the residual convolution to (B, S, D)."""
    x = graph.op("Mul", x, graph.op("Unsqueeze", graph.op("Cast", attends, to=_FLOAT), graph.constant([2])))
    path = "convolution.convolution"
    weights = graph.weight(f"{path}.weight"), graph.weight(f"{path}.bias")
    sides = [width // 2, width // 2]
    neighbors = graph.op("Conv", graph.op("Transpose", x, perm=[0, 2, 1]), *weights, pads=sides)
    return graph.op("Add", x, graph.op("Transpose", graph.op("Relu", neighbors), perm=[0, 2, 1]))


def _pooled(graph: OnnxGraph, config: ClassifierConfig, x: str, attends: str, mask: OnnxMask) -> str:
    """Pool (B, S, D) to (B, P). A text in which no position counts is pooled to zeros."""
    axes = graph.constant([1, 2])
    assert mask.output_factor is not None
    bias, some = graph.op("Squeeze", mask.bias, axes), graph.op("Squeeze", mask.output_factor, axes)
    counts, one = graph.op("Cast", attends, to=_FLOAT), graph.constant([1])

    def weighted(weights: str) -> str:
        return graph.op("Squeeze", graph.op("MatMul", graph.op("Unsqueeze", weights, one), x), one)

    def mean() -> str:
        total = graph.op("Max", graph.op("ReduceSum", counts, one, keepdims=1), graph.constant(1.0))
        return weighted(graph.op("Div", counts, total))

    def largest() -> str:
        shifted = graph.op("Add", x, graph.op("Unsqueeze", bias, graph.constant([2])))
        return graph.op("Mul", graph.op("ReduceMax", shifted, one, keepdims=0), some)

    def one_position() -> str:
        """Return the vector of the first or last position that counts, selected by one-hot weights."""
        length = graph.op("Squeeze", graph.op("Shape", x, start=1, end=2))
        positions = graph.op("Range", graph.constant(0), length, graph.constant(1))
        last = config.pooling == "last"
        rank = graph.op("Add", positions, one) if last else graph.op("Sub", length, positions)
        ranks = graph.op("Mul", counts, graph.op("Cast", rank, to=_FLOAT))
        chosen = graph.op("Equal", positions, graph.op("ArgMax", ranks, axis=1, keepdims=1))
        return weighted(graph.op("Mul", graph.op("Cast", chosen, to=_FLOAT), some))

    match config.pooling:
        case "mean":
            return mean()
        case "max":
            return largest()
        case "mean_max":
            return graph.op("Concat", mean(), largest(), axis=1)
        case "first" | "last":
            return one_position()
        case "attention":
            rows = graph.op("Reshape", x, graph.constant([-1, config.d_model]))
            scores = _linear(graph, "pooling.question", graph.op("Tanh", _linear(graph, "pooling.inner", rows)))
            scores = graph.op("Reshape", scores, graph.op("Shape", attends))
            weights = graph.op("Softmax", graph.op("Add", scores, bias), axis=-1)
            return weighted(graph.op("Mul", weights, some))
