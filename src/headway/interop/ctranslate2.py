"""Export to CTranslate2 (Klein et al., "The OpenNMT Neural Machine Translation Toolkit: 2020 Edition", section 5)
through its own specification classes.

    our weights                             its specification
    attention.{query, key, value}           self_attention.linear_0, one matrix
    attention.output                        self_attention.linear_1
    cross_attention.query                   attention.linear_0
    cross_attention.{key, value}            attention.linear_1, one matrix
    cross_attention.output                  attention.linear_2
    X_residual.norm                         X.layer_norm, before or after the residual (pre_norm)
    feed_forward.{inner, outer}             ffn.linear_0, ffn.linear_1
    feed_forward.{gate, inner, outer}       ffn.linear_0, ffn.linear_0_noact, ffn.linear_1
    {source, target}_norm                   layernorm_embedding

A shortlist becomes the file vmap.txt, which ``translate_batch(use_vmap=True)`` reads; a batch then shares one list.

Positions are stored as a table, so every layout and offset of sinusoids is exact. The engine refuses sequences that are
longer than the table. Vocabularies are lists of tokens in the order of ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.bundle import Bundle, named_weights
from headway.config import nearest
from headway.engine import Shortlist
from headway.errors import ConfigError, MissingPackageError
from headway.interop.supported import (
    ANY,
    EQUAL_HEADS,
    SIZES,
    TRAINING,
    Supported,
    refuse_unsupported,
    transformer_of,
)
from headway.nn.positions import LearnedPositions
from headway.text.base import BOS, EOS, PAD, UNK
from headway.text.exporting import token_names

__all__ = ["SUPPORTED", "quantizations", "write_ctranslate2"]

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "silu": "SWISH",
    "glu": "Sigmoid",
    "reglu": "RELU",
    "geglu": "GELU",
    "swiglu": "SWISH",
}
_GATED = frozenset({"glu", "reglu", "geglu", "swiglu"})
SUPPORTED: Supported = {
    **SIZES,
    **TRAINING,
    **EQUAL_HEADS,
    **dict.fromkeys(("max_length", "position_offset", "scale_embedding", "embedding_norm", "output_bias"), ANY),
    "activation": tuple(_ACTIVATIONS),
    "norm": ("post", "pre"),
    "positions": ("sinusoidal", "learned"),
    "sinusoid_layout": ("interleaved", "halves"),
    "sinusoid_spacing": ("paper", "inclusive"),
    "tie": ("all", "target", "none"),
}


def quantizations() -> tuple[str, ...]:
    """Return the data types in which the installed CTranslate2 can store weights."""
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
        folder: An existing folder.
        quantization: Data type of the matrices, one of :func:`quantizations`. None means float32.
        max_positions: Rows of the sinusoid table, which is the longest sequence that the engine accepts.
        shortlist: The model's shortlist, if it has one.

    Raises:
        ConfigError: CTranslate2 does not support an option of the model, or the quantization is unknown.
        MissingPackageError: ctranslate2 is not installed.
    """
    package = _package()
    if quantization is not None and quantization not in quantizations():
        raise ConfigError(f"quantization {quantization!r}; {nearest(quantization, quantizations())}")
    config = transformer_of(bundle, "CTranslate2").config
    refuse_unsupported(config, "CTranslate2", SUPPORTED)
    spec = package.specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=package.specs.Activation[_ACTIVATIONS[config.activation]],
        layernorm_embedding=config.embedding_norm,
        ffn_glu=config.activation in _GATED,
    )
    weights = _Weights(bundle, max_positions)
    weights.fill_encoder(spec.encoder)
    weights.fill_decoder(spec.decoder)
    source, target = token_names(bundle.source_tokenizer), token_names(bundle.target_tokenizer)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = target[BOS], target[EOS], target[UNK]
    spec.config.decoder_start_token = target[BOS]
    spec.validate()
    spec.optimize(quantization=quantization or "float32")
    spec.save(str(folder))
    if shortlist is not None:
        (folder / "vmap.txt").write_text(_vocabulary_map(shortlist, source, target), encoding="utf-8")


def _vocabulary_map(shortlist: Shortlist, source: Sequence[str], target: Sequence[str]) -> str:
    """Return one line per source token: the token, a tab, and its target tokens. An empty source token means always.

    Names that contain spaces cannot be listed. They belong to special tokens, and the engine adds those that it needs.
    """
    rows = [("", shortlist.always), *zip(source, shortlist.table, strict=True)]
    lines = []
    for name, listed in rows:
        names = [each for each in (target[token] for token in sorted({*listed.tolist()} - {PAD})) if " " not in each]
        if names and " " not in name:
            lines.append(f"{name}\t{' '.join(names)}\n")
    return "".join(lines)


def _package() -> Any:
    try:
        import ctranslate2
        import ctranslate2.specs
    except ImportError:
        raise MissingPackageError("export to CTranslate2", "ctranslate2", "ctranslate2") from None
    return ctranslate2


class _Weights:
    """Copies the model's weights into the specification."""

    def __init__(self, bundle: Bundle, max_positions: int) -> None:
        self._model = transformer_of(bundle, "CTranslate2")
        self._config = self._model.config
        self._max_positions = max_positions
        self._tensors: Mapping[str, Tensor] = {
            name: _copy(tensor) for name, tensor in named_weights(self._model).items()
        }

    def fill_encoder(self, spec: Any) -> None:
        self._ends(spec, spec.embeddings[0], "source", "encoder")
        for index, layer in enumerate(spec.layer):
            block = f"encoder.blocks.{index}"
            self._attention(layer.self_attention, f"{block}.attention")
            self._feed_forward(layer.ffn, f"{block}.feed_forward")

    def fill_decoder(self, spec: Any) -> None:
        self._ends(spec, spec.embeddings, "target", "decoder")
        for index, layer in enumerate(spec.layer):
            block = f"decoder.blocks.{index}"
            self._attention(layer.self_attention, f"{block}.attention")
            self._attention(layer.attention, f"{block}.cross_attention", across=True)
            self._feed_forward(layer.ffn, f"{block}.feed_forward")
        projection = self._model.projection
        spec.projection.weight = _copy(projection.weight)
        if projection.bias is not None:
            spec.projection.bias = _copy(projection.bias)

    def _ends(self, spec: Any, embeddings: Any, side: str, stack: str) -> None:
        """Copy what precedes the first block, and the norm after the last."""
        embedding = getattr(self._model, f"{side}_embedding")
        embeddings.weight = _copy(embedding.weight)
        spec.scale_embeddings = float(embedding.scale)
        spec.position_encodings.encodings = self._positions(getattr(self._model, f"{side}_positions"))
        if self._config.embedding_norm:
            self._norm(spec.layernorm_embedding, f"{side}_norm")
        if self._config.norm == "pre":
            self._norm(spec.layer_norm, f"{stack}.norm")

    def _positions(self, positions: Any) -> Tensor:
        if not isinstance(positions, LearnedPositions):
            positions.reserve(self._max_positions)
        table: Tensor = _copy(positions.table)
        return table if isinstance(positions, LearnedPositions) else table[: self._max_positions]

    def _attention(self, spec: Any, name: str, *, across: bool = False) -> None:
        if across:
            self._linear(spec.linear[0], f"{name}.query")
            self._linear(spec.linear[1], f"{name}.key", f"{name}.value")
        else:
            self._linear(spec.linear[0], f"{name}.query", f"{name}.key", f"{name}.value")
        self._linear(spec.linear[-1], f"{name}.output")
        self._norm(spec.layer_norm, f"{name}_residual.norm")

    def _feed_forward(self, spec: Any, name: str) -> None:
        if self._config.activation in _GATED:
            self._linear(spec.linear_0, f"{name}.gate")
            self._linear(spec.linear_0_noact, f"{name}.inner")
        else:
            self._linear(spec.linear_0, f"{name}.inner")
        self._linear(spec.linear_1, f"{name}.outer")
        self._norm(spec.layer_norm, f"{name}_residual.norm")

    def _linear(self, spec: Any, *names: str) -> None:
        """Stack one or several linear layers into one matrix."""
        spec.weight = torch.cat([self._tensors[f"{name}.weight"] for name in names])
        spec.bias = torch.cat([self._tensors[f"{name}.bias"] for name in names])

    def _norm(self, spec: Any, name: str) -> None:
        spec.gamma, spec.beta = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]


def _copy(tensor: Tensor) -> Tensor:
    """Return a float32 copy on the CPU, because quantization works in place."""
    return tensor.detach().to("cpu", torch.float32, copy=True)
