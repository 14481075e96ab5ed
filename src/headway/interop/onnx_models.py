"""Build the ONNX graphs of whole models, from the layers of :mod:`headway.interop.onnx_layers`.

    Transformer                            two graphs: the encoder, and one decoder step with cached keys and values
    decoder-only language model            one graph: new tokens, with cached keys and values of earlier tokens
    masked language model                  one graph
    classifier (also on language models)   one graph

Shapes: B sentences or texts, S source length, R = B * W rows (the W beams of a sentence are adjacent), T number of new
tokens, P prefix length, H heads of keys, K width of a query or key per head, U width of a value per head, D model, V
vocabulary, C classes. Inside the graphs, the residual stream is one matrix of shape (B * S, D), (R, D) or (R * T, D).

Prefixes are right-aligned. A row that started later than others has masked columns on the left, whose number is
determined by ``positions``. Appending a token is therefore a single concatenation, whatever the lengths of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

from headway.interop.onnx_graph import BOOL, FLOAT, INT, OnnxGraph, StoredTensor
from headway.interop.onnx_layers import (
    OnnxMask,
    Rotation,
    Window,
    add_positions,
    apply_activation,
    attention_mask,
    attention_output,
    embed_tokens,
    feed_forward,
    linear,
    norm,
    padding_mask,
    project_heads,
    residual,
    self_attention,
    self_attention_block,
    window_conditions,
)
from headway.interop.supported import GATE_ACTIVATIONS
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.models.decoder_only import DecoderOnly
from headway.models.masked import MaskedTransformer
from headway.models.sequence_classifier import SequenceClassifier, SequenceClassifierConfig
from headway.models.transformer import Transformer
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import CausalBlock, CausalStack, DecoderStack, EncoderStack

if TYPE_CHECKING:
    import onnx


def encoder_graph(model: Transformer, locations: Mapping[str, StoredTensor], max_length: int) -> onnx.ModelProto:
    """Return the graph from ``source`` (B, S) to ``memory_mask`` (B, S) and, for each decoder block N,
    ``memory_keys.N`` (B, H, S, K) and ``memory_values.N`` (B, H, S, U).
    """
    graph = OnnxGraph(model, model.config, locations)
    source = graph.add_input("source", INT, "sentences", "source_length")
    attends = _tokens_to_attend_to(graph, source, model.pad)
    graph.add_output(attends, "memory_mask", BOOL, "sentences", "source_length")
    sentences, positions = _batch(graph, source), _positions(graph, source)
    x = add_positions(graph, "source_positions", embed_tokens(graph, "source_embedding", source), positions, max_length)
    x = _as_matrix(graph, norm(graph, "source_norm", x))
    memory = _encoded(graph, "encoder", x, sentences, attends, Rotation(positions, max_length))
    for layer in range(len(model.decoder.blocks)):
        path = f"decoder.blocks.{layer}.cross_attention"
        shapes = _cache_shapes(graph, path, "sentences", "source_length")
        projected = project_heads(graph, path, memory, ("key", "value"), sentences)
        for value, (name, shape) in zip(projected, shapes.items(), strict=True):
            graph.add_output(value, f"memory_{name}.{layer}", FLOAT, *shape)
    return graph.to_model_proto("encoder")


def decoder_step_graph(model: Transformer, locations: Mapping[str, StoredTensor], max_length: int) -> onnx.ModelProto:
    """Return the graph of one decoder step.

    Its inputs are ``tokens`` (R), ``positions`` (R), ``prefix_keys.N`` (R, H, P, K), ``prefix_values.N`` (R, H, P, U)
    and the encoder's outputs. Its outputs are ``logits`` (R, V), and ``keys.N`` and ``values.N``, the prefixes of the
    next step.
    """
    graph = OnnxGraph(model, model.config, locations)
    tokens, positions = graph.add_input("tokens", INT, "rows"), graph.add_input("positions", INT, "rows")
    attends = graph.add_input("memory_mask", BOOL, "sentences", "source_length")
    layers = range(len(model.decoder.blocks))
    prefixes = [_cache_inputs(graph, f"decoder.blocks.{n}.attention", "prefix", n) for n in layers]
    memories = [_cache_inputs(graph, f"decoder.blocks.{n}.cross_attention", "memory", n) for n in layers]
    one = graph.constant([1])
    prefix_masks = _prefix_masks(graph, model.decoder, positions, prefixes[0][0], one, has_empty_rows=False)
    memory_mask, sentences = padding_mask(graph, attends), _batch(graph, attends)
    rotation = Rotation(graph.add_op("Unsqueeze", positions, graph.constant([1, 2])), max_length)
    x = add_positions(graph, "target_positions", embed_tokens(graph, "target_embedding", tokens), positions, max_length)
    x = norm(graph, "target_norm", x)
    for layer in layers:
        path = f"decoder.blocks.{layer}"

        def attend_to_prefix(x: str, layer: int = layer) -> str:
            rows = graph.constant([-1])
            return _attended_with_prefix(graph, layer, x, rows, 1, prefixes[layer], prefix_masks, rotation)

        def attend_to_memory(x: str, layer: int = layer, path: str = f"{path}.cross_attention") -> str:
            # The beams of a sentence share its memory, so they become query positions of one batch entry.
            (query,) = project_heads(graph, path, x, ("query",), sentences)
            return attention_output(graph, path, query, *memories[layer], memory_mask)

        x = residual(graph, f"{path}.attention_residual", x, attend_to_prefix)
        x = residual(graph, f"{path}.cross_attention_residual", x, attend_to_memory)
        x = residual(graph, f"{path}.feed_forward_residual", x, partial(feed_forward, graph, path))
    logits = linear(graph, "projection", norm(graph, "decoder.norm", x))
    graph.add_output(logits, "logits", FLOAT, "rows", model.projection.out_features)
    return graph.to_model_proto("decoder_step")


def language_model_graph(model: DecoderOnly, locations: Mapping[str, StoredTensor]) -> onnx.ModelProto:
    """Return the graph that processes new tokens of a decoder-only language model, such as a prompt or a generated
    token.

    Its inputs are ``tokens`` (R, T), the ``positions`` (R) of their first columns, ``prefix_keys.N`` (R, H, P, K) and
    ``prefix_values.N`` (R, H, P, U). Its outputs are ``logits`` (R, T, V) of the token after each new token, and
    ``keys.N`` and ``values.N``, the prefixes of the next call. Positions are negative at padding, which is on the left.
    """
    graph, max_length = OnnxGraph(model, model.config, locations), model.config.max_length
    tokens, first = graph.add_input("tokens", INT, "rows", "length"), graph.add_input("positions", INT, "rows")
    layers = range(len(model.decoder.blocks))
    prefixes = [_cache_inputs(graph, f"decoder.blocks.{n}.attention", "prefix", n) for n in layers]
    rows, count = _batch(graph, tokens), graph.add_op("Shape", tokens, start=1, end=2)
    masks = _prefix_masks(graph, model.decoder, first, prefixes[0][0], count, has_empty_rows=True)
    positions = graph.add_op("Add", graph.add_op("Unsqueeze", first, graph.constant([1])), _range(graph, count))
    positions = graph.add_op("Max", positions, graph.constant(0))
    rotation = Rotation(graph.add_op("Unsqueeze", positions, graph.constant([1])), max_length)
    x = add_positions(graph, "positions", embed_tokens(graph, "embedding", tokens), positions, max_length)
    x = _as_matrix(graph, x)
    for layer, block in zip(layers, model.decoder.blocks, strict=True):

        def attend(x: str, layer: int = layer) -> str:
            return _attended_with_prefix(graph, layer, x, rows, -1, prefixes[layer], masks, rotation)

        parallel = isinstance(block, CausalBlock) and block.parallel
        x = self_attention_block(graph, f"decoder.blocks.{layer}", x, attend, parallel=parallel)
    logits = _as_sequences(graph, linear(graph, "projection", norm(graph, "decoder.norm", x)), tokens)
    graph.add_output(logits, "logits", FLOAT, "rows", "length", model.projection.out_features)
    return graph.to_model_proto("language_model")


def masked_graph(model: MaskedTransformer, locations: Mapping[str, StoredTensor]) -> onnx.ModelProto:
    """Return the graph from ``tokens`` (B, S), from BOS to EOS, to the ``logits`` (B, S, V) of each position."""
    graph, config = OnnxGraph(model, model.config, locations), model.config
    tokens = graph.add_input("tokens", INT, "texts", "length")
    x = linear(graph, "head.dense", _masked_states(graph, "", model, tokens))
    x = norm(graph, "head.norm", apply_activation(graph, GATE_ACTIVATIONS.get(config.activation, config.activation), x))
    logits = _as_sequences(graph, linear(graph, "projection", x), tokens)
    graph.add_output(logits, "logits", FLOAT, "texts", "length", model.projection.out_features)
    return graph.to_model_proto("masked_language_model")


def classifier_graph(model: EncoderClassifier, locations: Mapping[str, StoredTensor]) -> onnx.ModelProto:
    """Return the graph from ``source`` (B, S), token ids that end in EOS, to ``logits`` (B, C)."""
    graph, config = OnnxGraph(model, model.config, locations), model.config
    source = graph.add_input("source", INT, "texts", "source_length")
    texts = _batch(graph, source)
    source = _with_padding_and_begin(graph, model, source)
    # Without masks, padding is treated like any other token: no id is -1, so nothing is masked.
    attends = _tokens_to_attend_to(graph, source, model.pad if config.masked else -1)
    positions, max_length = _positions(graph, source), model.max_length + 1
    x = add_positions(graph, "positions", embed_tokens(graph, "embedding", source), positions, max_length)
    if config.convolution:
        x = _convolved(graph, config.convolution, x, attends)
    x = _encoded(graph, "encoder", _as_matrix(graph, x), texts, attends, Rotation(positions, max_length))
    pooled = _pooled(graph, config, _as_sequences(graph, x, source), attends)
    graph.add_output(linear(graph, "projection", pooled), "logits", FLOAT, "texts", model.num_classes)
    return graph.to_model_proto("classifier")


def sequence_classifier_graph(model: SequenceClassifier, locations: Mapping[str, StoredTensor]) -> onnx.ModelProto:
    """Return the graph of a classifier on a language model, with the inputs and outputs of :func:`classifier_graph`."""
    graph, config = OnnxGraph(model, model.config.body, locations), model.config
    source = graph.add_input("source", INT, "texts", "source_length")
    tokens = graph.add_op("Concat", _columns(graph, source, model.bos, 1), source, axis=1)
    if isinstance(model.body, MaskedTransformer):
        states = _masked_states(graph, "body.", model.body, tokens)
    else:
        states = _causal_states(graph, "body.", model.body, tokens)
    attends = _tokens_to_attend_to(graph, tokens, model.pad)
    pooled = _pooled(graph, config, _as_sequences(graph, states, tokens), attends)
    if config.dense != "none":
        pooled = norm(graph, "dense_norm", apply_activation(graph, config.dense, linear(graph, "dense", pooled)))
    graph.add_output(linear(graph, "projection", pooled), "logits", FLOAT, "texts", model.num_classes)
    return graph.to_model_proto("classifier")


def _masked_states(graph: OnnxGraph, body: str, model: MaskedTransformer, tokens: str) -> str:
    """Return the hidden states (B * S, D) of the masked language model whose weight names begin with ``body``."""
    positions, max_length = _positions(graph, tokens), model.config.max_length
    x = embed_tokens(graph, f"{body}embedding", tokens)
    x = add_positions(graph, f"{body}positions", x, positions, max_length)
    if model.segment_embedding is not None:  # all tokens are in segment 0
        first = graph.add_op("Gather", graph.weight(f"{body}segment_embedding.weight"), graph.constant(0))
        x = graph.add_op("Add", x, first)
    x = _as_matrix(graph, norm(graph, f"{body}embedding_norm", x))
    attends = _tokens_to_attend_to(graph, tokens, model.pad)
    return _encoded(graph, f"{body}encoder", x, _batch(graph, tokens), attends, Rotation(positions, max_length))


def _causal_states(graph: OnnxGraph, body: str, model: DecoderOnly, tokens: str) -> str:
    """Return the hidden states (B * S, D) of the decoder-only language model whose weight names begin with ``body``."""
    positions, max_length = _positions(graph, tokens), model.config.max_length
    x = embed_tokens(graph, f"{body}embedding", tokens)
    x = _as_matrix(graph, add_positions(graph, f"{body}positions", x, positions, max_length))
    return _encoded(graph, f"{body}decoder", x, _batch(graph, tokens), None, Rotation(positions, max_length))


def _encoded(graph: OnnxGraph, path: str, x: str, batch: str, attends: str | None, rotation: Rotation) -> str:
    """Apply the stack at ``path`` to a (B * S, D) matrix.

    ``attends`` (B, S) is False at padding; if it is None, attention is causal. ``batch`` is the shape [B], and
    ``rotation`` contains the positions of one row.
    """
    stack = graph.module.get_submodule(path)
    assert isinstance(stack, EncoderStack | CausalStack)
    queries = graph.add_op("Unsqueeze", rotation.positions, graph.constant([0, 1, 3]))
    keys = graph.add_op("Unsqueeze", rotation.positions, graph.constant([0, 1, 2]))
    if attends is None:
        common = [graph.add_op("LessOrEqual", keys, queries)]
    else:
        common = [graph.add_op("Unsqueeze", attends, graph.constant([1, 2]))]
    masks: dict[Window, OnnxMask] = {}
    for window in _windows(stack):
        conditions = [*common, *window_conditions(graph, queries, keys, window)]
        masks[window] = attention_mask(graph, conditions, has_empty_rows=attends is not None)
    for layer, block in enumerate(stack.blocks):
        place = f"{path}.blocks.{layer}"

        def attend(x: str, place: str = f"{place}.attention") -> str:
            return self_attention(graph, place, x, batch, masks, rotation)

        parallel = isinstance(block, CausalBlock) and block.parallel
        x = self_attention_block(graph, place, x, attend, parallel=parallel)
    return norm(graph, f"{path}.norm", x)


def _windows(stack: EncoderStack | CausalStack | DecoderStack) -> set[Window]:
    """Return the windows of the self-attention of all blocks."""
    return {cast("MultiHeadAttention", block.attention).window for block in stack.blocks}


def _cache_shapes(graph: OnnxGraph, path: str, batch: str, length: str) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of the cached keys and values of the attention layer at ``path``."""
    attention = graph.attention_layer(path)
    widths = {"keys": attention.d_key, "values": attention.d_value}
    return {name: (batch, attention.num_kv_heads, length, width) for name, width in widths.items()}


def _cache_inputs(graph: OnnxGraph, path: str, kind: str, layer: int) -> tuple[str, str]:
    """Declare the inputs for cached keys and values of the attention layer at ``path``, and return their names."""
    sizes = ("rows", "prefix_length") if kind == "prefix" else ("sentences", "source_length")
    shapes = _cache_shapes(graph, path, *sizes)
    keys, values = (graph.add_input(f"{kind}_{name}.{layer}", FLOAT, *shape) for name, shape in shapes.items())
    return keys, values


def _prefix_masks(
    graph: OnnxGraph,
    stack: DecoderStack | CausalStack,
    positions: str,
    prefix_keys: str,
    count: str,
    *,
    has_empty_rows: bool,
) -> dict[Window, OnnxMask]:
    """Return a mask (R, 1, T, P + T) for each window. A new token attends to its row's prefix and to no later token.

    ``positions`` (R) contains the position p of each row's first new token, so the last p columns of its prefix contain
    tokens. If p is negative, the first -p new tokens are padding (``has_empty_rows``). ``count`` is the shape [T].
    """
    before = graph.add_op("Shape", prefix_keys, start=2, end=3)
    columns = _range(graph, graph.add_op("Add", before, count))
    new = graph.add_op("Add", _range(graph, count), before)
    queries = graph.add_op("Unsqueeze", new, graph.constant([0, 1, 3]))
    keys = graph.add_op("Unsqueeze", columns, graph.constant([0, 1, 2]))
    first = graph.add_op("Unsqueeze", graph.add_op("Sub", before, positions), graph.constant([1, 2, 3]))
    common = [graph.add_op("GreaterOrEqual", keys, first), graph.add_op("LessOrEqual", keys, queries)]
    masks: dict[Window, OnnxMask] = {}
    for window in _windows(stack):
        conditions = [*common, *window_conditions(graph, queries, keys, window)]
        masks[window] = attention_mask(graph, conditions, has_empty_rows=has_empty_rows)
    return masks


def _attended_with_prefix(
    graph: OnnxGraph,
    layer: int,
    x: str,
    rows: str,
    length: int,
    prefix: tuple[str, str],
    masks: Mapping[Window, OnnxMask],
    rotation: Rotation,
) -> str:
    """Attend from a decoder block's new tokens to the prefix and the new tokens, and output the prefix of the next
    call.

    ``rows`` is the shape [R] and ``length`` is T. Either may be -1.
    """
    path = f"decoder.blocks.{layer}.attention"
    query, *new = project_heads(graph, path, x, ("query", "key", "value"), rows, length=length, rotation=rotation)
    keys, values = (graph.add_op("Concat", *pair, axis=2) for pair in zip(prefix, new, strict=True))
    shapes = _cache_shapes(graph, path, "rows", "next_length")
    for grown, (name, shape) in zip((keys, values), shapes.items(), strict=True):
        graph.add_output(grown, f"{name}.{layer}", FLOAT, *shape)
    return attention_output(graph, path, query, keys, values, masks[graph.attention_layer(path).window])


def _tokens_to_attend_to(graph: OnnxGraph, tokens: str, hidden_id: int) -> str:
    return graph.add_op("Not", graph.add_op("Equal", tokens, graph.constant(hidden_id)))


def _batch(graph: OnnxGraph, tokens: str) -> str:
    """Return the shape [B] of (B, S) tokens."""
    return graph.add_op("Shape", tokens, start=0, end=1)


def _positions(graph: OnnxGraph, tokens: str) -> str:
    """Return the positions (S) of (B, S) tokens, counted from 0."""
    return _range(graph, graph.add_op("Shape", tokens, start=1, end=2))


def _range(graph: OnnxGraph, count: str) -> str:
    """Return 0 .. N - 1, given the shape [N]."""
    return graph.add_op("Range", graph.constant(0), graph.add_op("Squeeze", count), graph.constant(1))


def _as_matrix(graph: OnnxGraph, x: str) -> str:
    """Reshape (B, S, D) to (B * S, D)."""
    return graph.add_op("Reshape", x, graph.constant([-1, graph.config.d_model]))


def _as_sequences(graph: OnnxGraph, x: str, tokens: str) -> str:
    """Reshape (B * S, N) to (B, S, N), given (B, S) tokens."""
    shape = graph.add_op("Concat", graph.add_op("Shape", tokens), graph.constant([-1]), axis=0)
    return graph.add_op("Reshape", x, shape)


def _columns(graph: OnnxGraph, tokens: str, token: int, count: int) -> str:
    """Return a (B, count) matrix filled with the id ``token``, given (B, S) tokens."""
    shape = graph.add_op("Concat", _batch(graph, tokens), graph.constant([count]), axis=0)
    return graph.add_op("Expand", graph.constant(token), shape)


def _with_padding_and_begin(graph: OnnxGraph, model: EncoderClassifier, source: str) -> str:
    """Pad or truncate (B, S) ids to ``max_length`` and put the begin symbol in front, as the model does."""
    if model.config.pad_to_max_length:
        source = graph.add_op("Concat", source, _columns(graph, source, model.pad, model.max_length), axis=1)
        ends = graph.constant([0]), graph.constant([model.max_length]), graph.constant([1])
        source = graph.add_op("Slice", source, *ends)
    if model.config.pooling == "first":
        source = graph.add_op("Concat", _columns(graph, source, model.bos, 1), source, axis=1)
    return source


def _convolved(graph: OnnxGraph, width: int, x: str, attends: str) -> str:
    """Apply the residual convolution to (B, S, D)."""
    x = graph.add_op("Mul", x, graph.add_op("Unsqueeze", graph.add_op("Cast", attends, to=FLOAT), graph.constant([2])))
    path = "convolution.convolution"
    weights = graph.weight(f"{path}.weight"), graph.weight(f"{path}.bias")
    sides = [width // 2, width // 2]
    neighbors = graph.add_op("Conv", graph.add_op("Transpose", x, perm=[0, 2, 1]), *weights, pads=sides)
    return graph.add_op("Add", x, graph.add_op("Transpose", graph.add_op("Relu", neighbors), perm=[0, 2, 1]))


def _pooled(graph: OnnxGraph, config: ClassifierConfig | SequenceClassifierConfig, x: str, attends: str) -> str:
    """Pool (B, S, D) to (B, P). A text in which all positions are masked is pooled to zeros."""
    axes, mask = graph.constant([1, 2]), padding_mask(graph, attends)
    assert mask.output_factor is not None
    bias, some = graph.add_op("Squeeze", mask.bias, axes), graph.add_op("Squeeze", mask.output_factor, axes)
    counts, one = graph.add_op("Cast", attends, to=FLOAT), graph.constant([1])

    def weighted(weights: str) -> str:
        return graph.add_op("Squeeze", graph.add_op("MatMul", graph.add_op("Unsqueeze", weights, one), x), one)

    def mean() -> str:
        total = graph.add_op("Max", graph.add_op("ReduceSum", counts, one, keepdims=1), graph.constant(1.0))
        return weighted(graph.add_op("Div", counts, total))

    def largest() -> str:
        shifted = graph.add_op("Add", x, graph.add_op("Unsqueeze", bias, graph.constant([2])))
        return graph.add_op("Mul", graph.add_op("ReduceMax", shifted, one, keepdims=0), some)

    def one_position() -> str:
        """Return the vector at the first or last unmasked position, selected by one-hot weights."""
        length = graph.add_op("Squeeze", graph.add_op("Shape", x, start=1, end=2))
        positions = graph.add_op("Range", graph.constant(0), length, graph.constant(1))
        last = config.pooling == "last"
        rank = graph.add_op("Add", positions, one) if last else graph.add_op("Sub", length, positions)
        ranks = graph.add_op("Mul", counts, graph.add_op("Cast", rank, to=FLOAT))
        chosen = graph.add_op("Equal", positions, graph.add_op("ArgMax", ranks, axis=1, keepdims=1))
        return weighted(graph.add_op("Mul", graph.add_op("Cast", chosen, to=FLOAT), some))

    match config.pooling:
        case "mean":
            return mean()
        case "max":
            return largest()
        case "mean_max":
            return graph.add_op("Concat", mean(), largest(), axis=1)
        case "first" | "last":
            return one_position()
        case "attention":
            rows = graph.add_op("Reshape", x, graph.constant([-1, config.d_model]))
            scores = linear(graph, "pooling.question", graph.add_op("Tanh", linear(graph, "pooling.inner", rows)))
            scores = graph.add_op("Reshape", scores, graph.add_op("Shape", attends))
            weights = graph.add_op("Softmax", graph.add_op("Add", scores, bias), axis=-1)
            return weighted(graph.add_op("Mul", weights, some))
