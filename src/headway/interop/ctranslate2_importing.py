"""Import a Transformer from a CTranslate2 folder.

    model.bin        the variables (:mod:`headway.interop.ctranslate2_variables`), which contain the options
                     (:mod:`headway.interop.ctranslate2_options`)
    other files      vocabularies and special tokens (:mod:`headway.interop.ctranslate2_vocabularies`)

Every variable must be known, and every option is either applied or rejected with an error that names it. Alignment
heads are not needed, because Headway chooses its own. The weights of the two toolkits differ as follows, without
changing the function:

- For ``start_from_zero_embedding``, the embedding of the begin symbol is a row of zeros.
- Missing biases are zeros.
- The sigmoid approximation of GELU, x * sigmoid(1.702 x), equals silu(1.702 x) / 1.702, so the weights before and after
  it are scaled. Query weights with their own scale are also scaled.
- The rows of special tokens that a vocabulary lacks duplicate other rows. A bias keeps their probability at 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from headway.bundle import build_without_initialization
from headway.errors import BundleError
from headway.interop.ctranslate2 import BLOCK_PARTS, GATED_BLOCK_PARTS
from headway.interop.ctranslate2_options import (
    DEFAULT_NUM_HEADS,
    SIDES,
    embeddings_name,
    is_gelu_sigmoid,
    is_rotated_in_halves,
    read_options,
)
from headway.interop.ctranslate2_variables import StoredVariables
from headway.interop.ctranslate2_vocabularies import TokenSettings, read_vocabularies, source_template
from headway.interop.huggingface.importing import NEVER_GENERATED_BIAS
from headway.interop.huggingface.tensor_maps import copy_table_rows, permute_heads, rotary_unit_order
from headway.interop.stored_vocabulary import StoredVocabulary
from headway.interop.supported import GATE_ACTIVATIONS
from headway.interop.vocabulary_order import VocabularyOrder
from headway.models.transformer import Transformer, TransformerConfig
from headway.text.base import BOS
from headway.text.special_tokens import SpecialTokenTemplate
from headway.weights import named_weights, shapes_of

_SPECIFICATION, _LAST_REVISION = "TransformerSpec", 7
_GELU_SIGMOID = 1.702
_WITHOUT_EFFECT = {  # variables that do not affect the result, in any version of the format
    *("alignment_layer", "alignment_heads", "embeddings_merge", "alibi_use_positive_positions", "scale_alibi"),
    *("multi_query_attention", "multiply_by_sqrt_depth"),
    *("with_source_bos", "with_source_eos", "with_target_bos", "user_decoder_start_tokens", "with_relative_position"),
}


@dataclass(frozen=True)
class CTranslate2Model:
    """An imported model in evaluation mode, its vocabularies, and its special tokens.

    Attributes:
        model: The imported Transformer.
        source_vocabulary: The source vocabulary.
        target_vocabulary: The target vocabulary; the same object as ``source_vocabulary`` if it is shared.
        token_template: The special tokens that CTranslate2 adds by itself, without language codes.
        version: The version of the binary format.
        dtype: The data type in which the matrices were stored.
        starts_from_zero: Whether the first decoder embedding is zero, as in Marian.
    """

    model: Transformer
    source_vocabulary: StoredVocabulary
    target_vocabulary: StoredVocabulary
    token_template: SpecialTokenTemplate
    version: int
    dtype: str
    starts_from_zero: bool


def import_ctranslate2_model(folder: Path, *, start_token: str | None = None) -> CTranslate2Model:
    """Import the model of a CTranslate2 folder.

    Args:
        folder: The CTranslate2 folder.
        start_token: The first decoder token, such as a language code, for models that let their user choose it.

    Raises:
        BundleError: A file is missing or damaged, or Headway does not support an option, which the message names.
    """
    variables = StoredVariables(folder / "model.bin")
    _check_specification(variables)
    if variables.revision == 1:
        variables.rename({name: _name_of_revision_1(name) for name in variables})
    settings = TokenSettings.read(folder, variables)
    config = read_options(variables, settings.norm_epsilon)
    sizes = [variables.shape(embeddings_name(variables, side))[0] for side in SIDES]
    source, target = read_vocabularies(folder, sizes, settings, start_token)
    template = source_template(folder, settings, source)
    model = _build(variables, config, source, target, settings)
    _check_all_known(variables)
    dtype = str(variables.dtype("encoder/layer_0/self_attention/linear_0/weight")).removeprefix("torch.")
    return CTranslate2Model(model, source, target, template, variables.version, dtype, settings.starts_from_zero)


def is_ctranslate2(folder: Path) -> bool:
    """Return whether a folder contains a CTranslate2 model, judging by its files."""
    names = ("shared_vocabulary", "source_vocabulary", "target_vocabulary", "vocabulary")
    files = (folder / f"{name}.{ending}" for name in names for ending in ("json", "txt"))
    return (folder / "model.bin").is_file() and any(file.is_file() for file in files)


def _check_specification(variables: StoredVariables) -> None:
    name = variables.specification
    if "Decoder" in name:
        raise BundleError(f"{variables.path}: CTranslate2's decoder-only models ({name}) are not supported")
    if name not in (*DEFAULT_NUM_HEADS, _SPECIFICATION):
        raise BundleError(
            f"{variables.path}: CTranslate2's specification {name!r} is not supported; supported: encoder-decoder "
            f"Transformers ({_SPECIFICATION}, TransformerBase, TransformerBig)"
        )
    if not 1 <= variables.revision <= _LAST_REVISION:
        raise BundleError(
            f"{variables.path}: revision {variables.revision} of {name} is not supported; supported: 1 to "
            f"{_LAST_REVISION}"
        )


def _name_of_revision_1(name: str) -> str:
    """Return the current name of a variable of revision 1, which used OpenNMT-tf's names."""
    changes = {
        "transformer/": "",
        ":0": "",
        "w_embs": "embeddings/weight",
        "kernel": "weight",
        "LayerNorm": "layer_norm",
        "dense": "projection",
        "conv1d_": "linear_",
        "conv1d": "linear_0",
    }
    for old, new in changes.items():
        name = name.replace(old, new, 1)
    if "encoder" in name:
        return name.replace("multi_head", "self_attention", 1)
    return name.replace("masked_multi_head", "self_attention", 1).replace("multi_head", "attention", 1)


@dataclass(frozen=True)
class _Stored:
    """The part of a variable from which one of Headway's weights is copied.

    Attributes:
        name: The name of the variable.
        start: The first row of the part.
        factor: The factor by which the values are multiplied.
        optional: Whether the weight is zero if the variable is missing.
    """

    name: str
    start: int = 0
    factor: float = 1.0
    optional: bool = False


def _build(
    variables: StoredVariables,
    config: TransformerConfig,
    source: StoredVocabulary,
    target: StoredVocabulary,
    settings: TokenSettings,
) -> Transformer:
    """Build the model and copy the weights, one part at a time."""
    tables = embeddings_name(variables, "encoder"), embeddings_name(variables, "decoder"), "decoder/projection/weight"
    tie = "none"
    if _are_equal(variables, tables[1], tables[2]):
        tie = "all" if source is target and _are_equal(variables, tables[0], tables[1]) else "target"
    has_bias = "decoder/projection/bias" in variables or bool(target.order.duplicates)
    config = config.model_copy(update={"tie": tie, "output_bias": has_bias})
    sizes = len(source.order), len(target.order)
    stored = _stored_weights(variables, config)
    with torch.device("meta"):
        expected = shapes_of(named_weights(Transformer(config, *sizes)))
    _check_shapes(variables, expected, stored, tables)
    model = cast("Transformer", build_without_initialization(config, *sizes))
    weights = named_weights(model)
    with torch.no_grad():
        for name, part in stored.items():
            if part.name not in variables:
                weights[name].zero_()
                continue
            variables.copy_rows(part.name, weights[name], part.start)
            if part.factor != 1:
                weights[name].mul_(part.factor)
        if config.positions == "rotary" and is_rotated_in_halves(variables):
            width = rotary_unit_order(config.d_key or config.d_model // config.num_heads, config.rotary_fraction)
            for name, weight in weights.items():
                if re.search(r"\.attention\.(query|key)\.", name):
                    weight.copy_(permute_heads(width, weight))
        orders = (source.order, target.order, target.order)
        names = ("source_embedding.weight", "target_embedding.weight", "projection.weight")
        for name, table, order in zip(names, tables, orders, strict=True):
            if name in weights:
                copy_table_rows(_rows_of(variables, table), order.order, weights[name])
        _set_special_rows(variables, weights, target.order, settings)
    return model.eval()


def _rows_of(variables: StoredVariables, table: str) -> Callable[[slice], Tensor]:
    return lambda rows: variables.rows(table, rows.start, rows.stop)


def _set_special_rows(
    variables: StoredVariables, weights: Mapping[str, Tensor], order: VocabularyOrder, settings: TokenSettings
) -> None:
    """Set the output bias and, if the first decoder embedding is zero, the embedding of the begin symbol."""
    if (bias := weights.get("projection.bias")) is not None:
        bias.zero_()
        if "decoder/projection/bias" in variables:
            bias.copy_(variables.rows("decoder/projection/bias")[list(order.order)])
        bias[list(order.duplicates)] = NEVER_GENERATED_BIAS  # the softmax must not include duplicated rows
    if settings.starts_from_zero:
        table = weights.get("target_embedding.weight", weights.get("source_embedding.weight"))
        assert table is not None
        table[BOS] = 0


def _are_equal(variables: StoredVariables, first: str, second: str) -> bool:
    """Return whether two tables have the same values and scales."""
    names = [variables.resolve(name) for name in (first, second)]
    if names[0] == names[1]:
        return True
    if variables.shape(first) != variables.shape(second) or variables.dtype(first) != variables.dtype(second):
        return False
    length, width = variables.shape(first)
    step = max(1, 2**22 // max(width, 1))
    return all(
        torch.equal(variables.rows(first, start, stop), variables.rows(second, start, stop))
        for start, stop in ((start, min(start + step, length)) for start in range(0, length, step))
    )


def _stored_weights(variables: StoredVariables, config: TransformerConfig) -> dict[str, _Stored]:
    """Return the location of each weight except the embeddings, the projection and its bias."""
    stored: dict[str, _Stored] = {}
    parts = dict(GATED_BLOCK_PARTS if config.activation in GATE_ACTIVATIONS else BLOCK_PARTS)
    if config.qk_norm:
        for attention, module in (("self_attention", "attention"), ("attention", "cross_attention")):
            parts |= {f"{attention}.{name[0]}_norm": (f"{module}.{name}_norm",) for name in ("query", "key")}
    for side in SIDES:
        for layer in range(getattr(config, f"{side}_layers")):
            scope, block = f"{side}/layer_{layer}", f"{side}.blocks.{layer}"
            for path, modules in parts.items():
                if side == "encoder" and path.startswith("attention."):
                    continue
                name = f"{scope}/{path.replace('linear.', 'linear_').replace('.', '/')}"
                start = 0
                for module in modules:
                    factor = _factor(variables, config, side, scope, module)
                    stored |= _module(f"{block}.{module}", name, start, factor, config)
                    start += _rows(config, module)
        if config.norm == "pre":
            stored |= _module(f"{side}.norm", f"{side}/layer_norm", 0, (1.0, 1.0), config)
    for side, ours in zip(SIDES, ("source", "target"), strict=True):
        if config.embedding_norm:
            stored |= _module(f"{ours}_norm", f"{side}/layernorm_embedding", 0, (1.0, 1.0), config)
        if config.positions == "learned":
            stored[f"{ours}_positions.table"] = _Stored(f"{side}/position_encodings/encodings")
    return stored


def _module(
    ours: str, theirs: str, start: int, factors: tuple[float, float], config: TransformerConfig
) -> dict[str, _Stored]:
    """Return the locations of the weight and bias of a norm or linear layer, and the ``factors`` to apply to them."""
    if ours.endswith("norm"):
        named = {f"{ours}.weight": _Stored(f"{theirs}/gamma")}
        if config.norm_kind == "layer" and not ours.endswith(("query_norm", "key_norm")):
            named[f"{ours}.bias"] = _Stored(f"{theirs}/beta")
        return named
    weight, bias = factors
    return {
        f"{ours}.weight": _Stored(f"{theirs}/weight", start, weight),
        f"{ours}.bias": _Stored(f"{theirs}/bias", start, bias, optional=True),
    }


def _rows(config: TransformerConfig, module: str) -> int:
    """Return the number of rows of a module that is stored in one variable with other modules."""
    width = config.d_key or config.d_model // config.num_heads
    heads = config.num_heads if module.endswith("query") else config.num_kv_heads or config.num_heads
    return width * heads


def _factor(
    variables: StoredVariables, config: TransformerConfig, side: str, scope: str, module: str
) -> tuple[float, float]:
    """Return the factors of a linear layer's weight and bias, for options that Headway folds into the weights."""
    if module.endswith(".query"):
        attention = "attention" if module.startswith("cross_") else "self_attention"
        scale = variables.scalar(f"{scope}/{attention}/queries_scale")
        if scale is not None:
            factor = scale * math.sqrt(config.d_key or config.d_model // config.num_heads)
            return factor, factor
    if is_gelu_sigmoid(variables, side):
        if module == ("feed_forward.gate" if config.activation in GATE_ACTIVATIONS else "feed_forward.inner"):
            return _GELU_SIGMOID, _GELU_SIGMOID
        if module == "feed_forward.outer":
            return 1 / _GELU_SIGMOID, 1.0
    return 1.0, 1.0


def _check_shapes(
    variables: StoredVariables,
    expected: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, _Stored],
    tables: tuple[str, str, str],
) -> None:
    """Raise :class:`BundleError` if a variable is missing or its shape does not match the options of the model."""
    required: dict[str, tuple[int, ...]] = {}
    for ours, part in stored.items():
        if not part.optional or part.name in variables:  # a variable may contain several weights, one after the other
            end = part.start + expected[ours][0]
            required[part.name] = max(required.get(part.name, ()), (end, *expected[ours][1:]))
    for name, shape in required.items():
        stored_shape = variables.shape(name)
        is_longer = stored_shape[1:] == shape[1:] and stored_shape > shape
        if stored_shape != shape and not (is_longer and name.endswith("/encodings")):
            raise _shape_error(variables, name, shape)
    _, target, projection = tables
    if variables.shape(projection) != variables.shape(target):
        raise _shape_error(variables, projection, variables.shape(target))
    if "decoder/projection/bias" in variables:
        name, size = "decoder/projection/bias", variables.shape(target)[0]
        if variables.shape(name) != (size,):
            raise _shape_error(variables, name, (size,))


def _shape_error(variables: StoredVariables, name: str, expected: tuple[int, ...]) -> BundleError:
    return BundleError(
        f"{variables.path}: the variable {name!r} has the shape {list(variables.shape(name))}; the other variables "
        f"require {list(expected)}"
    )


def _check_all_known(variables: StoredVariables) -> None:
    """Raise :class:`BundleError` for an unused variable, unless it is known to have no effect."""
    for name in variables.names:
        if name in variables.accessed or name.removesuffix("_scale") in variables.accessed:
            continue
        if name.rpartition("/")[2] in _WITHOUT_EFFECT:
            continue
        raise BundleError(f"{variables.path}: unknown variable {name!r}, which models with these options do not have")
