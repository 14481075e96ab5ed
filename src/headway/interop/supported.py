"""Reject the export of models that another toolkit cannot represent, with an error that names the unsupported option.

For each field of a model config, an exporter lists the values that it supports. A field that is not listed must have
its inert value (:mod:`headway.config`), with which a model computes the same result as before the field was added. An
exporter that does not list a new option yet therefore rejects all other values of the option. The tables of
docs/export_options.md are generated from these lists (:mod:`headway.interop.reference`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from headway.bundle import AnyBundle, Bundle, ClassifierBundle, LanguageModelBundle, MaskedLanguageModelBundle
from headway.config import ANY_VALUE, Config
from headway.errors import ConfigError
from headway.kinds import Capability
from headway.models.classifier import EncoderClassifier
from headway.models.decoder_only import DecoderOnly
from headway.models.masked import MaskedTransformer
from headway.models.sequence_classifier import SequenceClassifier
from headway.models.transformer import Transformer
from headway.nn.block_config import BlockConfig

Supported = Mapping[str, Sequence[Any] | None]
"""The supported values of each field of a config. None means any value."""

ExportedModel = Transformer | EncoderClassifier | SequenceClassifier | MaskedTransformer | DecoderOnly
_ARCHITECTURES: Mapping[Capability, tuple[str, ...]] = {
    "translates": ("transformer",),
    "labels": ("classifier", "sequence_classifier"),
    "continues": ("decoder_only",),
    "fills": ("masked",),
}
ANY = ANY_VALUE
_HEAD_WIDTH = "d_model / num_heads"  # represents this quotient in an exporter's list
SIZE_OPTIONS: Supported = dict.fromkeys(("d_model", "num_heads", "d_ff", "encoder_layers", "decoder_layers"), ANY)
EQUAL_HEAD_WIDTHS: Supported = dict.fromkeys(("d_key", "d_value"), (None, _HEAD_WIDTH))
GATE_ACTIVATIONS = {"glu": "sigmoid", "reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
"""Maps each gated activation to the function that it applies to its gate."""
_TRAINING = (
    *("dropout", "attention_dropout", "feed_forward_dropout", "layer_dropout"),
    *("embedding_dropout", "word_dropout", "pooled_dropout"),
)
COMMON_OPTIONS: Supported = {**SIZE_OPTIONS, **dict.fromkeys(_TRAINING, ANY)}
"""Fields that every exporter supports: sizes, and training options that do not affect an exported model."""


def refuse_unsupported(config: Config, toolkit: str, supported: Supported, module: str) -> None:
    """Raise :class:`ConfigError` for the first field of ``config`` whose value ``toolkit`` does not support.

    ``module`` is the name of the module that defines the table ``supported``. If the field is not in the table, the
    error names the module's file.
    """
    name = config.unsupported_option({name: _resolved(values, config) for name, values in supported.items()})
    if name is None:
        return
    problem = f"{name} = {getattr(config, name)!r} cannot be exported to {toolkit}"
    if name in supported:
        raise ConfigError(f"{problem}; supported: {supported_values(config, name, supported)}")
    file = f"{module.replace('.', '/')}.py"
    raise ConfigError(
        f"{problem}; supported: {supported_values(config, name, supported)} ({file} lists what can be exported)"
    )


def supported_values(config: type[Config] | Config, name: str, supported: Supported) -> str:
    """Describe the supported values of a field: "any", a list, or the inert value of a field that is not listed."""
    inert = config.inert_values().get(name)
    values = supported.get(name, (inert,))
    if values is ANY:
        return "any"
    return ", ".join(str(value).lower() for value in values if value is not None) or "the default"


def _resolved(values: Sequence[Any] | None, config: Config) -> Sequence[Any] | None:
    """Return the supported values of a field, with the head width as a number."""
    if values is ANY or _HEAD_WIDTH not in values:
        return values
    return [_head_width(config) if value == _HEAD_WIDTH else value for value in values]


def _head_width(config: Config) -> float:
    assert isinstance(config, BlockConfig)
    return config.d_model / config.num_heads


def require_exportable_model(bundle: AnyBundle, toolkit: str) -> ExportedModel:
    """Return the bundle's model if its architecture can be exported.

    Raises:
        ConfigError: The architecture or the task cannot be exported.
    """
    if not isinstance(bundle, Bundle | ClassifierBundle | LanguageModelBundle | MaskedLanguageModelBundle):
        raise ConfigError(f"task.kind = {bundle.task.kind!r}: its models cannot be exported to {toolkit}")
    kind, known = bundle.model.config.kind, _ARCHITECTURES[bundle.capability]
    if kind not in known:
        raise ConfigError(f"model.kind = {kind!r} cannot be exported to {toolkit}; supported: {' or '.join(known)}")
    return cast("ExportedModel", bundle.model)


def require_transformer(bundle: Bundle, toolkit: str) -> Transformer:
    """Return the bundle's model if it is a Transformer; raise :class:`ConfigError` otherwise."""
    model = require_exportable_model(bundle, toolkit)
    if not isinstance(model, Transformer):
        raise ConfigError(f"model.kind = {model.config.kind!r} cannot be exported to {toolkit}; supported: transformer")
    return model
