"""The check that a model is a Transformer, which most export formats require."""

from __future__ import annotations

from headway.bundle import Bundle
from headway.errors import ConfigError
from headway.models.transformer import Transformer

__all__ = ["transformer_of"]


def transformer_of(bundle: Bundle, form: str) -> Transformer:
    """Return the bundle's model if it is a Transformer.

    Raises:
        ConfigError: The model has another architecture, which ``form`` does not support.
    """
    if not isinstance(bundle.model, Transformer):
        raise ConfigError(
            f"model.kind = {bundle.model.config.kind!r}: {form} takes a transformer alone; this model cannot be "
            "exported to it"
        )
    return bundle.model
