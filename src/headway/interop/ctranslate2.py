"""Export to CTranslate2 (Klein et al., "The OpenNMT Neural Machine Translation Toolkit: 2020 Edition", section 5)
through CTranslate2's specification classes.

A shortlist is written as the file vmap.txt, which is used by ``translate_batch(use_vmap=True)``. All sentences of a
batch then share one list.

Positions are stored as a table, so sinusoids of every layout and offset are exported exactly. The engine rejects
sequences that are longer than the table. Vocabularies are lists of tokens in the order of ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.bundle import Bundle, LanguageModelBundle
from headway.config import spelling_hint
from headway.engine import Shortlist
from headway.errors import ConfigError, MissingPackageError
from headway.interop.supported import (
    ANY,
    COMMON_OPTIONS,
    EQUAL_HEAD_WIDTHS,
    GATE_ACTIVATIONS,
    Supported,
    refuse_unsupported,
    require_transformer,
)
from headway.interop.tokenizer_exporting import unique_token_names
from headway.models.decoder_only import DecoderOnly
from headway.models.transformer import Transformer
from headway.nn.positions import LearnedPositions
from headway.text.base import BOS, EOS, PAD, UNK
from headway.weights import named_weights

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "sigmoid": "Sigmoid",
}  # Headway's names: CTranslate2's names
BLOCK_PARTS = {  # path in CTranslate2's layer specification: the block's modules whose weights are stacked there
    "self_attention.linear.0": ("attention.query", "attention.key", "attention.value"),
    "self_attention.linear.1": ("attention.output",),
    "self_attention.layer_norm": ("attention_residual.norm",),
    "attention.linear.0": ("cross_attention.query",),
    "attention.linear.1": ("cross_attention.key", "cross_attention.value"),
    "attention.linear.2": ("cross_attention.output",),
    "attention.layer_norm": ("cross_attention_residual.norm",),
    "ffn.linear_0": ("feed_forward.inner",),
    "ffn.linear_1": ("feed_forward.outer",),
    "ffn.layer_norm": ("feed_forward_residual.norm",),
}
GATED_BLOCK_PARTS = {
    **BLOCK_PARTS,
    "ffn.linear_0": ("feed_forward.gate",),
    "ffn.linear_0_noact": ("feed_forward.inner",),
}
SUPPORTED: Supported = {
    **COMMON_OPTIONS,
    **EQUAL_HEAD_WIDTHS,
    **dict.fromkeys(("max_length", "position_offset", "scale_embedding", "embedding_norm", "output_bias"), ANY),
    **dict.fromkeys(("norm_epsilon", "rotary_base", "rotary_fraction"), ANY),
    "activation": ("relu", "gelu", "silu", *GATE_ACTIVATIONS),
    "norm": ("post", "pre"),
    "positions": ("sinusoidal", "learned", "rotary"),
    "sinusoid_layout": ("interleaved", "halves"),
    "sinusoid_spacing": ("paper", "inclusive"),
    "tie": ("all", "target", "none"),
}


SUPPORTED_LANGUAGE_MODEL: Supported = {
    **COMMON_OPTIONS,
    **dict.fromkeys(("max_length", "scale_embedding", "output_bias", "tie", "parallel", "norm_epsilon"), ANY),
    **dict.fromkeys(("num_kv_heads", "rotary_base", "rotary_fraction", "rotary_scaling", "qk_norm"), ANY),
    **dict.fromkeys(("d_key", "d_value"), ANY),
    "activation": ("relu", "gelu", "gelu_tanh", "silu", *GATE_ACTIVATIONS),
    "norm": ("post", "pre"),
    "norm_kind": ("layer", "rms"),
    "bias": ("all", "qkv", "none"),
    "positions": ("sinusoidal", "learned", "rotary"),
}
"""The option values that :func:`write_generator` supports."""


def supported_quantization_types() -> tuple[str, ...]:
    """Return the data types in which the installed version of CTranslate2 can store weights."""
    return tuple(_package().specs.model_spec.ACCEPTED_MODEL_TYPES)


def write_ctranslate2(
    bundle: Bundle,
    folder: Path,
    *,
    quantization: str | None = None,
    max_positions: int = 2048,
    shortlist: Shortlist | None = None,
) -> None:
    """Write model.bin, config.json, the vocabularies and the shortlist, if any, to ``folder``.

    Args:
        bundle: The model, trained by Headway or imported.
        folder: The folder to write to, which must exist.
        quantization: Data type of the weight matrices, one of :func:`supported_quantization_types`. None means float32.
        max_positions: Number of rows in the sinusoid table, which is the maximum sequence length of the engine.
        shortlist: The model's shortlist, if it has one.

    Raises:
        ConfigError: CTranslate2 does not support an option of the model, or the quantization is unknown.
        MissingPackageError: ctranslate2 is not installed.
    """
    package = _package()
    _check_quantization(quantization)
    model = require_transformer(bundle, "CTranslate2")
    config = model.config
    refuse_unsupported(config, "CTranslate2", SUPPORTED, __name__)
    options: dict[str, Any] = {
        "pre_norm": config.norm == "pre",
        "activation": package.specs.Activation[
            _ACTIVATIONS[GATE_ACTIVATIONS.get(config.activation, config.activation)]
        ],
        "layernorm_embedding": config.embedding_norm,
        "ffn_glu": config.activation in GATE_ACTIVATIONS,
    }
    if config.positions == "rotary":
        width = config.d_model // config.num_heads
        options |= {"rotary_dim": round(width * config.rotary_fraction), "rotary_base": config.rotary_base}
    specs = package.specs.transformer_spec
    spec = package.specs.TransformerSpec(
        specs.TransformerEncoderSpec(config.encoder_layers, config.num_heads, **options),
        specs.TransformerDecoderSpec(config.decoder_layers, config.num_heads, **options),
    )
    if config.norm_epsilon != type(config).model_fields["norm_epsilon"].default:
        spec.config.layer_norm_epsilon = config.norm_epsilon
    _copy_weights(model, spec, max_positions)
    source, target = unique_token_names(bundle.source_tokenizer), unique_token_names(bundle.target_tokenizer)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = target[BOS], target[EOS], target[UNK]
    spec.config.decoder_start_token = target[BOS]
    spec.validate()
    spec.optimize(quantization=quantization or "float32")
    spec.save(str(folder))
    if shortlist is not None:
        (folder / "vmap.txt").write_text(_vocabulary_map(shortlist, source, target), encoding="utf-8")


def write_generator(
    bundle: LanguageModelBundle, folder: Path, *, quantization: str | None = None, max_positions: int = 2048
) -> None:
    """Write a decoder-only model for CTranslate2's ``Generator``: model.bin, config.json and the vocabulary.

    Args:
        bundle: The model, trained by Headway or imported.
        folder: The folder to write to, which must exist.
        quantization: Data type of the weight matrices, one of :func:`supported_quantization_types`. None means float32.
        max_positions: Number of rows in a sinusoid table.

    Raises:
        ConfigError: CTranslate2 does not support an option of the model, or the quantization is unknown.
        MissingPackageError: ctranslate2 is not installed.
    """
    package, model = _package(), bundle.model
    _check_quantization(quantization)
    if not isinstance(model, DecoderOnly):
        raise ConfigError(
            f"model.kind = {model.config.kind!r} cannot be exported to CTranslate2; supported: decoder_only"
        )
    config = model.config
    refuse_unsupported(config, "CTranslate2", SUPPORTED_LANGUAGE_MODEL, __name__)
    scaling, width = config.rotary_scaling, config.d_key or config.d_model // config.num_heads
    if scaling is not None and scaling.kind != "linear":
        raise ConfigError(f"rotary_scaling = {scaling.kind!r} cannot be exported to CTranslate2; supported: linear")
    if config.parallel and config.norm_kind == "rms":  # CTranslate2 always uses layer norm there
        raise ConfigError(
            "parallel = True with norm_kind = 'rms' cannot be exported to CTranslate2; supported: norm_kind = 'layer'"
        )
    if (config.d_value or config.d_model / config.num_heads) != width:
        name = "d_key" if config.d_value is None else "d_value"
        raise ConfigError(
            f"{name} = {getattr(config, name)} cannot be exported to CTranslate2; supported: the same width for keys "
            "and values"
        )
    gated = config.activation in GATE_ACTIVATIONS
    spec = package.specs.TransformerDecoderModelSpec.from_config(
        config.decoder_layers,
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=package.specs.Activation[_ACTIVATIONS[GATE_ACTIVATIONS.get(config.activation, config.activation)]],
        ffn_glu=gated,
        rms_norm=config.norm_kind == "rms",
        rotary_dim=round(width * config.rotary_fraction) if config.positions == "rotary" else None,
        rotary_base=config.rotary_base,
        parallel_residual=config.parallel,
        num_heads_kv=None if config.num_kv_heads == config.num_heads else config.num_kv_heads,
        qk_norm=config.qk_norm,
        head_dim=config.d_key,
        rotary_scaling_type=None if scaling is None else package.specs.attention_spec.RotaryScalingType.Linear,
        rotary_scaling_factor=1.0 if scaling is None else scaling.factor,
    )
    _copy_decoder_only(model, spec.decoder, max_positions)
    names = unique_token_names(bundle.tokenizer)
    spec.register_vocabulary(names)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = names[BOS], names[EOS], names[UNK]
    spec.config.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization or "float32")
    spec.save(str(folder))


def _copy_decoder_only(model: DecoderOnly, decoder: Any, max_positions: int) -> None:
    """Copy the weights of a decoder-only model into the specification of its decoder."""
    config = model.config
    weights = {name: _copy(tensor) for name, tensor in named_weights(model).items()}

    def fill(part: Any, *modules: str) -> None:
        stacked = torch.cat([weights[f"{module}.weight"] for module in modules])
        biases = [weights[f"{module}.bias"] for module in modules if f"{module}.bias" in weights]
        if not hasattr(part, "gamma"):
            part.weight = stacked
            if biases:
                part.bias = torch.cat(biases)
            return
        part.gamma = stacked
        if hasattr(part, "beta"):
            part.beta = biases[0] if biases else torch.zeros_like(stacked)

    decoder.embeddings.weight = weights["embedding.weight"]
    decoder.scale_embeddings = float(model.embedding.scale)
    if config.positions != "rotary":
        decoder.position_encodings.encodings = _position_table(model.positions, max_positions)
    if config.norm == "pre":
        fill(decoder.layer_norm, "decoder.norm")
    parts = dict(GATED_BLOCK_PARTS if config.activation in GATE_ACTIVATIONS else BLOCK_PARTS)
    if config.parallel:
        parts["input_layer_norm"] = parts.pop("self_attention.layer_norm")
        parts["post_attention_layer_norm"] = parts.pop("ffn.layer_norm")
    if config.qk_norm:
        parts |= {f"self_attention.{name[0]}_norm": (f"attention.{name}_norm",) for name in ("query", "key")}
    for index, layer in enumerate(decoder.layer):
        for path, modules in parts.items():
            names = [f"decoder.blocks.{index}.{module}" for module in modules]
            if f"{names[0]}.weight" in weights:  # decoder-only models have no cross-attention
                fill(_resolve(layer, path), *names)
    decoder.projection.weight = _copy(model.projection.weight)
    if model.projection.bias is not None:
        decoder.projection.bias = _copy(model.projection.bias)


def _check_quantization(quantization: str | None) -> None:
    if quantization is not None and quantization not in supported_quantization_types():
        raise ConfigError(
            f"unknown quantization {quantization!r}; {spelling_hint(quantization, supported_quantization_types())}"
        )


def _vocabulary_map(shortlist: Shortlist, source: Sequence[str], target: Sequence[str]) -> str:
    """Return one line per source token: the token, a tab, and its target tokens.

    A line with an empty source token lists the target tokens that are always allowed. Tokens whose names contain spaces
    cannot be listed. They are special tokens; the engine adds those that it needs.
    """
    rows = [("", shortlist.always_allowed), *zip(source, shortlist.translations, strict=True)]
    lines = []
    for name, listed in rows:
        names = [text for text in (target[token] for token in sorted({*listed.tolist()} - {PAD})) if " " not in text]
        if names and " " not in name:
            lines.append(f"{name}\t{' '.join(names)}\n")
    return "".join(lines)


def _package() -> Any:
    try:
        import ctranslate2
        import ctranslate2.specs
    except ImportError:
        raise MissingPackageError("export to CTranslate2", "ctranslate2") from None
    return ctranslate2


def _copy_weights(model: Transformer, spec: Any, max_positions: int) -> None:
    """Copy the model's weights into the specification."""
    weights = {name: _copy(tensor) for name, tensor in named_weights(model).items()}

    def fill(part: Any, *modules: str) -> None:
        stacked = (torch.cat([weights[f"{module}.{kind}"] for module in modules]) for kind in ("weight", "bias"))
        if hasattr(part, "gamma"):
            part.gamma, part.beta = stacked
        else:
            part.weight, part.bias = stacked

    parts = GATED_BLOCK_PARTS if model.config.activation in GATE_ACTIVATIONS else BLOCK_PARTS
    for side, stack, theirs in (("source", "encoder", spec.encoder), ("target", "decoder", spec.decoder)):
        embedding = getattr(model, f"{side}_embedding")
        embeddings = theirs.embeddings[0] if stack == "encoder" else theirs.embeddings
        embeddings.weight = _copy(embedding.weight)
        theirs.scale_embeddings = float(embedding.scale)
        if model.config.positions != "rotary":
            theirs.position_encodings.encodings = _position_table(getattr(model, f"{side}_positions"), max_positions)
        if model.config.embedding_norm:
            fill(theirs.layernorm_embedding, f"{side}_norm")
        if model.config.norm == "pre":
            fill(theirs.layer_norm, f"{stack}.norm")
        for index, layer in enumerate(theirs.layer):
            for path, modules in parts.items():
                names = [f"{stack}.blocks.{index}.{module}" for module in modules]
                if f"{names[0]}.weight" in weights:  # encoder blocks have no cross-attention
                    fill(_resolve(layer, path), *names)
    spec.decoder.projection.weight = _copy(model.projection.weight)
    if model.projection.bias is not None:
        spec.decoder.projection.bias = _copy(model.projection.bias)


def _resolve(part: Any, path: str) -> Any:
    """Return the part of a specification at a path such as ``self_attention.linear.0``."""
    for name in path.split("."):
        part = part[int(name)] if name.isdigit() else getattr(part, name)
    return part


def _position_table(positions: Any, max_positions: int) -> Tensor:
    if isinstance(positions, LearnedPositions):
        return _copy(positions.table)
    positions.reserve(max_positions)
    return _copy(positions.table)[:max_positions]


def _copy(tensor: Tensor) -> Tensor:
    """Return a float32 copy on the CPU, because CTranslate2 quantizes weights in place."""
    return tensor.detach().to("cpu", torch.float32, copy=True)
