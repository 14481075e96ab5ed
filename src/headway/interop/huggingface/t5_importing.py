"""Import T5 and related models from a `transformers` folder: T5, T5 v1.1 (and FLAN-T5, MADLAD-400, ByT5), and mT5.

Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer". These models
are pre-norm Transformers with RMSNorm, without biases in linear layers. Their only positional information is a relative
bias (:class:`~headway.nn.positions.RelativeBias`). All encoder blocks share one table of biases, and all decoder blocks
share another. Two factors are folded into weights, because Headway's layers apply them elsewhere or not at all:

    T5's scores are not divided by sqrt(d_key)            the query projections are multiplied by it
    the first T5 multiplies the decoder's output by       the gain of the decoder's final norm is multiplied by it
    d_model^(-1/2) before the tied output projection

Decoding begins with the padding token or, in MADLAD-400, with the unknown token. The begin symbol's row is a duplicate
of this token's row.

Every tensor in the file must be known, and every key in config.json that affects inference is either applied or
rejected with an error that names it. Tensors are read one by one, so the peak memory is the size of the model plus one
tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from headway.bundle import build_without_initialization
from headway.errors import BundleError
from headway.interop.huggingface.checkpoint import (
    Checkpoint,
    ModelFamily,
    StoredTensors,
    parse_checked_config,
    read_checkpoint_config,
)
from headway.interop.huggingface.importing import NEVER_GENERATED_BIAS, ImportedModel
from headway.interop.huggingface.tensor_maps import TensorMap, copy_tensors
from headway.interop.vocabulary_order import VocabularyOrder
from headway.models.transformer import Transformer, TransformerConfig
from headway.nn.block_config import Activation
from headway.text.base import BOS
from headway.text.special_tokens import SpecialTokenTemplate
from headway.weights import named_weights

_ROWS_AT_ONCE = 4096  # number of rows of two tables that are compared at a time
# Maps feed_forward_proj in config.json to dense_act_fn, whether there is a gate, and Headway's activation.
_ACTIVATIONS: dict[str, tuple[str, bool, Activation]] = {
    "relu": ("relu", False, "relu"),
    "gelu": ("gelu", False, "gelu"),
    "gelu_new": ("gelu_new", False, "gelu_tanh"),
    "silu": ("silu", False, "silu"),
    "swish": ("swish", False, "silu"),
    "gated-relu": ("relu", True, "reglu"),
    "gated-gelu": ("gelu_new", True, "geglu_tanh"),
    "gated-gelu_new": ("gelu_new", True, "geglu_tanh"),
    "gated-silu": ("silu", True, "swiglu"),
    "gated-swish": ("swish", True, "swiglu"),
}


@dataclass(frozen=True, kw_only=True)
class T5Family(ModelFamily):
    """Properties of a family of models related to T5.

    Attributes:
        scales_output: Whether some models of the family multiply the decoder's output by d_model^(-1/2).
    """

    scales_output: bool

    @property
    def alternative_architecture(self) -> str:
        """Name of the `transformers` class without an output projection."""
        return self.architecture.replace("ForConditionalGeneration", "Model")

    @property
    def fixed_options(self) -> Mapping[str, Any]:
        """Keys of config.json for which the family supports only one value, and this value."""
        return {"is_encoder_decoder": True}


_DEFAULTS: dict[str, Any] = {
    "d_model": 512,
    "d_kv": 64,
    "num_decoder_layers": None,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
_FURTHER_KEYS = frozenset(
    {
        "bos_token_id",  # not used: decoding begins with decoder_start_token_id
        "decoder_start_token_id",
        "dense_act_fn",
        "initializer_factor",
        "is_gated_act",
        "n_positions",  # the length of training texts; the relative bias has no limit
        "scale_decoder_outputs",
        "tie_word_embeddings",
    }
)

T5_FAMILIES: dict[str, T5Family] = {
    "t5": T5Family(
        title="T5",
        architecture="T5ForConditionalGeneration",
        defaults=dict(
            _DEFAULTS,
            vocab_size=32128,
            d_ff=2048,
            num_layers=6,
            num_heads=8,
            feed_forward_proj="relu",
        ),
        further_keys=_FURTHER_KEYS,
        scales_output=True,
    ),
    "mt5": T5Family(
        title="mT5",
        architecture="MT5ForConditionalGeneration",
        defaults=dict(
            _DEFAULTS,
            vocab_size=250112,
            d_ff=1024,
            num_layers=8,
            num_heads=6,
            feed_forward_proj="gated-gelu",
        ),
        further_keys=_FURTHER_KEYS,
        scales_output=False,
    ),
}


def import_t5(folder: str | Path, *, unknown_id: int = 2) -> ImportedModel:
    """Import the T5 model in a `transformers` folder.

    Args:
        folder: The `transformers` folder.
        unknown_id: Id of the unknown token.

    Raises:
        BundleError: Something in the folder is missing, unknown or unsupported.
        ConfigError: Headway's Transformer does not support a value in config.json.
    """
    folder = Path(folder)
    checkpoint = read_checkpoint_config(folder, T5_FAMILIES)
    tensors = StoredTensors(folder, "")
    config = parse_checked_config(checkpoint, lambda: _model_config(checkpoint), tensors.shapes)
    vocabulary = _vocabulary(checkpoint, unknown_id)
    names = _table_names(tensors)
    begins_twice = BOS in vocabulary.duplicates
    config = config.model_copy(update={"tie": _tie(tensors, names), "output_bias": begins_twice})
    model = cast("Transformer", build_without_initialization(config, len(vocabulary), len(vocabulary)))
    _load(checkpoint, model, tensors, names, vocabulary)
    return ImportedModel(model.eval(), vocabulary, vocabulary, SpecialTokenTemplate(), checkpoint.family.title)


def _model_config(checkpoint: Checkpoint[T5Family]) -> TransformerConfig:
    """Return the model's config, except ``tie`` and ``output_bias``."""
    layers = checkpoint.positive_int("num_layers")
    decoder_layers = (
        layers if checkpoint["num_decoder_layers"] is None else checkpoint.positive_int("num_decoder_layers")
    )
    options = {
        "d_model": checkpoint.positive_int("d_model"),
        "num_heads": checkpoint.positive_int("num_heads"),
        "d_key": checkpoint.positive_int("d_kv"),
        "d_value": checkpoint.positive_int("d_kv"),
        "d_ff": checkpoint.positive_int("d_ff"),
        "encoder_layers": layers,
        "decoder_layers": decoder_layers,
        **dict.fromkeys(("dropout", "attention_dropout", "feed_forward_dropout"), checkpoint["dropout_rate"]),
        "activation": _activation(checkpoint),
        "norm": "pre",
        "norm_kind": "rms",
        "norm_epsilon": checkpoint["layer_norm_epsilon"],
        "bias": "none",
        "positions": "relative_bias",
        "relative_buckets": checkpoint.positive_int("relative_attention_num_buckets"),
        "relative_max_distance": checkpoint.positive_int("relative_attention_max_distance"),
        "scale_embedding": False,
        "tie": "none",
    }
    return TransformerConfig.parse(options, str(checkpoint.path))


def _activation(checkpoint: Checkpoint[T5Family]) -> Activation:
    kind = checkpoint["feed_forward_proj"]
    if not isinstance(kind, str) or kind not in _ACTIVATIONS:
        raise checkpoint.bundle_error(f"feed_forward_proj = {kind!r}: expected one of {', '.join(_ACTIVATIONS)}")
    function, gated, activation = _ACTIVATIONS[kind]
    for key, implied in (("dense_act_fn", function), ("is_gated_act", gated)):
        if checkpoint[key] not in (None, implied):
            raise checkpoint.bundle_error(f"{key} = {checkpoint[key]!r} contradicts feed_forward_proj = {kind!r}")
    return activation


def _vocabulary(checkpoint: Checkpoint[T5Family], unknown: int) -> VocabularyOrder:
    pad, end = checkpoint.token_id("pad_token_id"), checkpoint.token_id("eos_token_id")
    start = checkpoint.generation_setting("decoder_start_token_id")
    if start is None:
        start = pad
    if not isinstance(start, int) or isinstance(start, bool):
        raise checkpoint.bundle_error(f"decoder_start_token_id = {start!r}: expected the id of one token")
    if len({pad, end, unknown}) < 3:
        raise checkpoint.bundle_error(
            f"the padding, end and unknown token have the ids {pad}, {end} and {unknown}; Headway needs three tokens"
        )
    try:
        return VocabularyOrder.with_duplicates(
            checkpoint.positive_int("vocab_size"), pad=pad, start=start, end=end, unknown=unknown
        )
    except BundleError as error:
        raise checkpoint.bundle_error(str(error)) from None


def _table_names(tensors: StoredTensors) -> tuple[str, str, str]:
    """Return the tensor names of the source embedding, the target embedding and the output projection."""
    source, target = (
        next((name for name in (f"{side}.embed_tokens.weight", _SHARED) if name in tensors), _SHARED)
        for side in ("encoder", "decoder")
    )
    return source, target, _OUTPUT if _OUTPUT in tensors else target


_SHARED, _OUTPUT = "shared.weight", "lm_head.weight"
# Copies of the shared table, and a table in old files that has no effect.
_IGNORED = re.compile(
    r"shared\.weight|lm_head\.weight|(encoder|decoder)\.embed_tokens\.weight"
    r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
)


def _tie(tensors: StoredTensors, names: tuple[str, str, str]) -> Literal["all", "target", "inputs", "none"]:
    """Return which tables are equal, as a value of the option ``tie``.

    The values of the tables are compared; tie_word_embeddings is ignored, as in `transformers` since 5.0.
    """
    source, target, output = names
    inputs, outputs = _are_equal(tensors, source, target), _are_equal(tensors, target, output)
    if outputs:
        return "all" if inputs else "target"
    return "inputs" if inputs else "none"


def _are_equal(tensors: StoredTensors, first: str, second: str) -> bool:
    """Return whether two tables are equal, reading some thousand rows at a time. Missing tables are reported later."""
    if first == second or not {first, second} <= tensors.keys():
        return first == second
    if tensors.shape(first) != tensors.shape(second):
        return False
    starts = range(0, tensors.shape(first)[0], _ROWS_AT_ONCE)
    parts = (slice(start, start + _ROWS_AT_ONCE) for start in starts)
    return all(torch.equal(tensors.rows(first, part), tensors.rows(second, part)) for part in parts)


def _load(
    checkpoint: Checkpoint[T5Family],
    model: Transformer,
    tensors: StoredTensors,
    names: tuple[str, str, str],
    vocabulary: VocabularyOrder,
) -> None:
    """Copy the tensors to the model's weights."""
    weights = named_weights(model)  # parts of joint projections are views of the whole
    ours = ("source_embedding.weight", "target_embedding.weight", "projection.weight")
    tables = {theirs: name for theirs, name in reversed(list(zip(names, ours, strict=True))) if name in weights}
    maps = list(_tensor_maps(model.config, output_scale=_output_scale(checkpoint)))
    copy_tensors(tensors, weights, maps, tables, vocabulary, _IGNORED, checkpoint.family.title)
    if model.config.output_bias:
        with torch.no_grad():
            weights["projection.bias"].zero_()[BOS] = NEVER_GENERATED_BIAS


def _output_scale(checkpoint: Checkpoint[T5Family]) -> float:
    """Return the factor by which the decoder's output is multiplied.

    `transformers` 5 writes ``scale_decoder_outputs`` for T5. Older versions use ``tie_word_embeddings`` for this as
    well.
    """
    scales = checkpoint["scale_decoder_outputs"]
    if scales is None:
        scales = checkpoint["tie_word_embeddings"] is not False
    return float(checkpoint.positive_int("d_model") ** -0.5) if scales and checkpoint.family.scales_output else 1.0


def _tensor_maps(config: TransformerConfig, *, output_scale: float) -> Iterator[TensorMap]:
    """Yield the maps of all tensors except the embeddings and the output projection."""
    query_scale = math.sqrt(config.d_key or config.d_model // config.num_heads)
    gated = config.activation in ("reglu", "geglu_tanh", "swiglu")
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for layer in range(layers):
            ours, theirs = f"{side}.blocks.{layer}", f"{side}.block.{layer}.layer"
            yield from _attention_maps(f"{theirs}.0", "SelfAttention", f"{ours}.attention", query_scale)
            if side == "decoder":
                yield from _attention_maps(f"{theirs}.1", "EncDecAttention", f"{ours}.cross_attention", query_scale)
            last = f"{theirs}.{2 if side == 'decoder' else 1}"
            inner = {"gate": "wi_0", "inner": "wi_1"} if gated else {"inner": "wi"}
            for name, stored in {**inner, "outer": "wo"}.items():
                yield TensorMap(f"{last}.DenseReluDense.{stored}.weight", (f"{ours}.feed_forward.{name}.weight",))
            yield TensorMap(f"{last}.layer_norm.weight", (f"{ours}.feed_forward_residual.norm.weight",))
        yield TensorMap(
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            (f"{side}.blocks.0.attention.relative_bias.table",),
        )
    yield TensorMap("encoder.final_layer_norm.weight", ("encoder.norm.weight",))
    yield _scaled("decoder.final_layer_norm.weight", "decoder.norm.weight", output_scale)


def _attention_maps(theirs: str, kind: str, ours: str, query_scale: float) -> Iterator[TensorMap]:
    yield _scaled(f"{theirs}.{kind}.q.weight", f"{ours}.query.weight", query_scale)
    for name, stored in (("key", "k"), ("value", "v"), ("output", "o")):
        yield TensorMap(f"{theirs}.{kind}.{stored}.weight", (f"{ours}.{name}.weight",))
    yield TensorMap(f"{theirs}.layer_norm.weight", (f"{ours}_residual.norm.weight",))


def _scaled(theirs: str, ours: str, factor: float) -> TensorMap:
    def to_ours(stored: Tensor) -> list[Tensor]:
        return [stored.float() * factor]

    return TensorMap(theirs, (ours,), to_ours)
