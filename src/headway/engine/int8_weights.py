"""The weights of a model in 8-bit integers, in the format of a model folder.

``headway export --to headway --quantization int8`` writes the linear layers of a search in int8
(:class:`headway.engine.int8.Int8Backend`), packed in the kernels' layout. A search then needs no conversion: the arrays
are mapped from the file, and all processes that run the model share one copy in memory. The file contains these names:

    int8.LAYER.weight, .accumulator_init, .scale, .bias   the arrays of headway.kernels.int8_linear.PackedLinear
    int8.LAYER.gain                                       gains of the norm before the layer, if the norm is folded
    int8.EMBEDDING.levels, .scale                         an embedding in 8-bit integers, with one scale per token
    all other weights                                     in float32, under their public names

A LAYER contains the rows of one or more of the model's linear layers (:func:`layer_plans`). An embedding that shares
its weight with the output projection also shares its integers, unless the folded norm has a gain of zero, which would
lose a column.

All other computations, such as scoring given texts and aligning, use float32. The model's linear layers
(:class:`StoredLinear`) then compute their weights from the integers when they are first needed: W = w * s, divided by
the factors that the search moved into W.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, cast

import torch
from jaxtyping import Float, Int, Int8, Shaped
from torch import Tensor, nn

from headway.engine.search_layers import norm_before
from headway.errors import BundleError
from headway.models.base import Model
from headway.models.decoder_only import DecoderOnly
from headway.models.transformer import Transformer
from headway.nn.arguments import check_ids, check_integers
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import GatedFeedForward
from headway.nn.embedding import TokenEmbedding
from headway.weights import Shape, shapes_of

BLOCK_SIZES = (16, 32)  # number of outputs in a block of packed weights, with AVX2 and with AVX-512
_GROUP = 8  # inputs are padded to a multiple of this size
_PREFIX = "int8."
_DTYPES = {"weight": torch.int8, "levels": torch.int8, "accumulator_init": torch.int32}


@dataclass(frozen=True)
class ScaledRows:
    """Rows of one of the model's linear layers, which a search multiplies by ``factor``."""

    module: nn.Linear
    first: int
    count: int
    factor: float = 1.0


@dataclass(frozen=True)
class LayerPlan:
    """A linear layer of the search model.

    Attributes:
        name: The layer's name in the file.
        rows: The rows of the model's layers that form this layer, in order.
        norm: The norm before the layer, which is folded into the layer, or None.
    """

    name: str
    rows: tuple[ScaledRows, ...]
    norm: nn.Module | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of outputs and number of inputs."""
        return sum(rows.count for rows in self.rows), self.rows[0].module.in_features


def layer_plans(model: nn.Module) -> list[LayerPlan]:
    """Return the linear layers of the search model for ``model``, in the order in which they are built."""
    if isinstance(model, DecoderOnly):
        blocks = [
            plan
            for name, block in _named_blocks("decoder", model.decoder)
            for plan in (*_self_attention(name, block, is_scaled=True), *_feed_forward(name, block))
        ]
        return [*blocks, LayerPlan("projection", _all_rows(model.projection), _real_norm(model.decoder.norm))]
    assert isinstance(model, Transformer), f"no search model for {type(model).__name__}"
    encoder = [
        plan
        for name, block in _named_blocks("encoder", model.encoder)
        for plan in (*_self_attention(name, block, is_scaled=False), *_feed_forward(name, block))
    ]
    decoder, memory = [], []
    for name, block in _named_blocks("decoder", model.decoder):
        cross: MultiHeadAttention = block.cross_attention
        queries, others = _projected_rows(cross, is_scaled=True)
        memory.append(others)
        decoder += [
            *_self_attention(name, block, is_scaled=True),
            LayerPlan(f"{name}.cross_attention.query", (queries,), norm_before(block.cross_attention_residual)),
            LayerPlan(f"{name}.cross_attention.output", _all_rows(cross.output)),
            *_feed_forward(name, block),
        ]
    return [
        *encoder,
        *decoder,
        LayerPlan("decoder.memory", tuple(memory), _real_norm(model.encoder.norm)),
        LayerPlan("projection", _all_rows(model.projection), _real_norm(model.decoder.norm)),
    ]


def _named_blocks(name: str, stack: Any) -> Iterator[tuple[str, Any]]:
    for number, block in enumerate(stack.blocks):
        yield f"{name}.blocks.{number}", block


def _real_norm(norm: nn.Module) -> nn.Module | None:
    return None if isinstance(norm, nn.Identity) else norm


def _all_rows(*modules: nn.Linear) -> tuple[ScaledRows, ...]:
    return tuple(ScaledRows(module, 0, module.out_features) for module in modules)


def _projected_rows(attention: MultiHeadAttention, *, is_scaled: bool) -> tuple[ScaledRows, ScaledRows]:
    """Return the rows that compute queries, and the rows that compute keys and values."""
    queries, total = attention.widths[0], sum(attention.widths)
    factor = attention.d_key**-0.5 if is_scaled and attention.query_norm is None else 1.0
    return (
        ScaledRows(attention.projection, 0, queries, factor),
        ScaledRows(attention.projection, queries, total - queries),
    )


def _self_attention(name: str, block: Any, *, is_scaled: bool) -> list[LayerPlan]:
    attention: MultiHeadAttention = block.attention
    rows, norm = _projected_rows(attention, is_scaled=is_scaled), norm_before(block.attention_residual)
    return [
        LayerPlan(f"{name}.attention.projection", rows, norm),
        LayerPlan(f"{name}.attention.output", _all_rows(attention.output)),
    ]


def _feed_forward(name: str, block: Any) -> list[LayerPlan]:
    module = block.feed_forward
    inner = (module.gate, module.inner) if isinstance(module, GatedFeedForward) else (module.inner,)
    return [
        LayerPlan(f"{name}.feed_forward.inner", _all_rows(*inner), norm_before(block.feed_forward_residual)),
        LayerPlan(f"{name}.feed_forward.outer", _all_rows(module.outer)),
    ]


def embeddings_of(model: nn.Module) -> dict[str, TokenEmbedding]:
    """Return a model's distinct embeddings, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, TokenEmbedding)}


@dataclass(frozen=True)
class StoredLayer:
    """A stored linear layer of the search model. Arrays with one element per output are padded to whole blocks."""

    name: str
    shape: tuple[int, int]
    weight: Int8[Tensor, "blocks fours block 4"]
    accumulator_init: Int[Tensor, " N2"]
    scale: Float[Tensor, " N2"]
    bias: Float[Tensor, " N2"]
    gain: Float[Tensor, " K"] | None

    def integer_rows(self, outputs: Int[Tensor, "*b"]) -> Int8[Tensor, "*b K"]:
        """Return the integer weights of these outputs."""
        block = self.weight.size(2)
        return self.weight[outputs // block, :, outputs % block].flatten(-2)[..., : self.shape[1]]

    def float_rows(self, outputs: Int[Tensor, "*b"], norm: nn.Module | None) -> Float[Tensor, "*b K"]:
        """Return the weight rows of these outputs in float32, without the gains of the folded ``norm``."""
        rows = self.integer_rows(outputs) * self.scale[outputs].unsqueeze(-1)
        if self.gain is None or norm is None:
            return rows
        gain = cast(Tensor, norm.weight).detach()
        return rows * torch.where(gain == 0, 0.0, self.gain / gain)


class LazyWeight:
    """A float32 weight that is computed when first needed, once for all layers and threads that share it."""

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self._compute, self._lock = compute, Lock()
        self._weight: Tensor | None = None

    def get(self) -> Tensor:
        """Return the weight."""
        with self._lock:
            if self._weight is None:
                with torch.inference_mode(mode=False), torch.no_grad():
                    self._weight = self._compute()
            return self._weight

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyWeight:
        return self


class StoredLinear(nn.Linear):
    """A linear layer whose weight is stored in 8-bit integers. Its parameter ``weight`` has a shape but no data."""

    lazy_weight: LazyWeight

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The weight in float32."""
        return self.lazy_weight.get()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


class StoredEmbedding(TokenEmbedding):
    """An embedding whose vectors are stored in 8-bit integers. Its parameter ``weight`` has a shape but no data."""

    lazy_weight: LazyWeight
    lookup: Callable[[Tensor], Tensor]  # maps tokens to their vectors

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The vectors of all tokens in float32."""
        return self.lazy_weight.get()

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the vector of each token, multiplied by sqrt(d_model) if embeddings are scaled."""
        check_integers("tokens", tokens, "batch", "length")
        try:
            return self.lookup(tokens) * self.scale
        except IndexError:
            check_ids("tokens", tokens, self.vocab_size)
            raise

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


@dataclass(frozen=True)
class Int8Weights:
    """The stored layers of a model, in the order in which its search model is built."""

    layers: tuple[StoredLayer, ...]
    device: torch.device = field(default=torch.device("cpu"))


def int8_weight_names(model: nn.Module, *, quantize_embeddings: bool) -> set[str]:
    """Return the public names of the weights that are stored in 8-bit integers."""
    modules = {rows.module for plan in layer_plans(model) for rows in plan.rows}
    embeddings = list(embeddings_of(model).values()) if quantize_embeddings else []
    names = set()
    for name, module in model.named_modules():
        owner = model.get_submodule(name.rpartition(".")[0])
        if module in embeddings:
            names.add(f"{name}.weight")
        elif module in modules and isinstance(owner, MultiHeadAttention) and owner.projection is module:
            names |= {f"{name.removesuffix('projection')}{part}.weight" for part in ("query", "key", "value")}
        elif module in modules:
            names.add(f"{name}.weight")
    return names


def expected_shapes(
    model: nn.Module, weights: Mapping[str, Tensor], stored: Mapping[str, Shape], *, quantize_embeddings: bool
) -> dict[str, Shape]:
    """Return the expected shapes of the tensors in the file of a model with ``weights``.

    ``stored`` contains the shapes in the file. The block size, and which embeddings share the integers of the output
    projection, are inferred from it.
    """
    plans = layer_plans(model)
    first = stored.get(f"{_PREFIX}{plans[0].name}.weight", ())
    block = first[2] if len(first) == 4 and first[2] in BLOCK_SIZES else BLOCK_SIZES[-1]
    names = int8_weight_names(model, quantize_embeddings=quantize_embeddings)
    shapes = {name: shape for name, shape in shapes_of(weights).items() if name not in names}
    for plan in plans:
        outputs, inputs = plan.shape
        blocks = -(-outputs // block)
        prefix = f"{_PREFIX}{plan.name}."
        shapes[f"{prefix}weight"] = (blocks, -(-inputs // _GROUP) * _GROUP // 4, block, 4)
        shapes |= {f"{prefix}{part}": (blocks * block,) for part in ("accumulator_init", "scale", "bias")}
        if plan.norm is not None:
            shapes[f"{prefix}gain"] = (inputs,)
    for name, module in embeddings_of(model).items() if quantize_embeddings else ():
        levels = f"{_PREFIX}{name}.levels"
        if levels in stored or not _is_tied(model, module):
            shapes[levels] = shapes_of({"": _shape_of_weight(module)})[""]
            shapes[f"{_PREFIX}{name}.scale"] = (module.vocab_size,)
    return shapes


def _shape_of_weight(module: nn.Module) -> Tensor:
    weight = module._parameters["weight"]
    assert weight is not None
    return weight


def _is_tied(model: nn.Module, embedding: TokenEmbedding) -> bool:
    return _shape_of_weight(embedding) is _shape_of_weight(cast("Model", model).projection)


def check_dtypes(tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Raise :class:`BundleError`, with a message that begins with ``origin``, if a tensor has the wrong data type."""
    for name, tensor in tensors.items():
        expected = torch.float32
        if name.startswith(_PREFIX):
            expected = _DTYPES.get(name.rpartition(".")[2], torch.float32)
        if tensor.dtype != expected:
            raise BundleError(f"{origin}: {name!r} has the type {tensor.dtype}; expected {expected}; copy it again")


def set_int8_weights(model: Model, tensors: Mapping[str, Tensor], *, quantize_embeddings: bool) -> None:
    """Set the weights of ``model`` to a file's tensors, whose names and shapes have already been checked.

    Linear layers become :class:`StoredLinear`. The tensors are not copied, so memory that is mapped from a file stays
    mapped.
    """
    plans = layer_plans(model)
    weights = dict(model.state_dict(keep_vars=True))
    for name, weight in weights.items():
        if name in tensors:
            with torch.no_grad():
                if isinstance(weight, nn.Parameter):
                    weight.data = tensors[name]
                else:  # part of a joint projection
                    weight.copy_(tensors[name])
    layers = [_stored_layer(plan, tensors) for plan in plans]
    tied = {name: module for name, module in embeddings_of(model).items() if _is_tied(model, module)}
    pieces: dict[nn.Linear, list[Callable[[], Tensor]]] = {}
    for plan, layer in zip(plans, layers, strict=True):
        first = 0
        for rows in plan.rows:
            piece = partial(_dequantized, layer, slice(first, first + rows.count), rows.factor, plan.norm)
            pieces.setdefault(rows.module, []).append(piece)
            first += rows.count
    if tied and not quantize_embeddings:
        del pieces[model.projection]  # the output projection uses the embedding's float32 weight
    for module, parts in pieces.items():
        _store(module, StoredLinear, LazyWeight(partial(_concatenated, parts)))
    for name, embedding in embeddings_of(model).items() if quantize_embeddings else ():
        _store_embedding(name, embedding, tensors, layers[-1], plans[-1].norm, model.projection)
    model.int8_weights = Int8Weights(tuple(layers))


def _store_embedding(
    name: str,
    embedding: TokenEmbedding,
    tensors: Mapping[str, Tensor],
    projection: StoredLayer,
    norm: nn.Module | None,
    tied: nn.Linear,
) -> None:
    """Turn ``embedding`` into a :class:`StoredEmbedding` with its own integers or the output projection's integers."""
    levels = tensors.get(f"{_PREFIX}{name}.levels")
    rows: Callable[[Tensor], Tensor]
    if levels is None:
        rows = partial(projection.float_rows, norm=norm)
        assert isinstance(tied, StoredLinear)
        lazy, shape = tied.lazy_weight, tied._parameters["weight"]
    else:
        rows = partial(_rows, levels, tensors[f"{_PREFIX}{name}.scale"])
        lazy, shape = LazyWeight(partial(rows, torch.arange(len(levels)))), None
    _store(embedding, StoredEmbedding, lazy, shape)
    vars(embedding)["lookup"] = rows


def _store(module: nn.Module, cls: type[nn.Module], lazy: LazyWeight, shape: nn.Parameter | None = None) -> None:
    """Change a module's class, and replace its weight with ``shape``, by default a new parameter without data."""
    if shape is None:
        size = _shape_of_weight(module).shape
        shape = nn.Parameter(torch.empty(size, device="meta"), requires_grad=False)
    module._parameters["weight"] = shape
    vars(module)["lazy_weight"] = lazy
    module.__class__ = cls


def _stored_layer(plan: LayerPlan, tensors: Mapping[str, Tensor]) -> StoredLayer:
    parts = {name: tensors[f"{_PREFIX}{plan.name}.{name}"] for name in ("weight", "accumulator_init", "scale", "bias")}
    return StoredLayer(plan.name, plan.shape, **parts, gain=tensors.get(f"{_PREFIX}{plan.name}.gain"))


def _dequantized(layer: StoredLayer, outputs: slice, factor: float, norm: nn.Module | None) -> Float[Tensor, "N K"]:
    return layer.float_rows(torch.arange(outputs.start, outputs.stop), norm) / factor


def _concatenated(parts: Sequence[Callable[[], Tensor]]) -> Tensor:
    return torch.cat([part() for part in parts])


def _rows(levels: Int8[Tensor, "V D"], scale: Float[Tensor, " V"], tokens: Int[Tensor, "*b"]) -> Float[Tensor, "*b D"]:
    return levels[tokens] * scale[tokens].unsqueeze(-1)


def dequantize_weights(model: Model) -> Model:
    """Replace a model's stored integers in place with ordinary float32 weights, and return the model."""
    made: dict[LazyWeight, nn.Parameter] = {}
    for module in model.modules():
        if isinstance(module, StoredLinear | StoredEmbedding):
            lazy = vars(module).pop("lazy_weight")
            if lazy not in made:
                made[lazy] = nn.Parameter(lazy.get(), requires_grad=False)
            vars(module).pop("lookup", None)
            module._parameters["weight"] = made[lazy]
            plain: type[nn.Module] = nn.Linear if isinstance(module, StoredLinear) else TokenEmbedding
            module.__class__ = plain  # type: ignore[assignment]
    model.int8_weights = None
    return model


def tensors_to_store(
    model: Model, weights: Mapping[str, Tensor], layers: Sequence[StoredLayer], *, quantize_embeddings: bool
) -> dict[str, Shaped[Tensor, "..."]]:
    """Return the tensors to write to a model's file.

    Args:
        model: The model to store.
        weights: The model's floating-point weights, by public name.
        layers: The layers of the model's int8 search model.
        quantize_embeddings: Whether to store embeddings in 8-bit integers as well.
    """
    tensors: dict[str, Tensor] = {}
    for layer in layers:
        parts = {name: getattr(layer, name) for name in ("weight", "accumulator_init", "scale", "bias", "gain")}
        tensors |= {f"{_PREFIX}{layer.name}.{name}": part for name, part in parts.items() if part is not None}
    norm = layer_plans(model)[-1].norm
    has_zero_gain = norm is not None and bool((cast(Tensor, norm.weight) == 0).any())
    for name, embedding in embeddings_of(model).items() if quantize_embeddings else ():
        if has_zero_gain or not _is_tied(model, embedding):
            weight = embedding.weight.detach().float()
            scale = (weight.abs().amax(1) / 127).clamp(min=1e-30)
            tensors[f"{_PREFIX}{name}.levels"] = (weight / scale.unsqueeze(1)).round().to(torch.int8)
            tensors[f"{_PREFIX}{name}.scale"] = scale
    names = int8_weight_names(model, quantize_embeddings=quantize_embeddings)
    return tensors | {name: weight.float() for name, weight in weights.items() if name not in names}
