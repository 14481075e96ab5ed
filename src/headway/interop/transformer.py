"""What can be exported: a Transformer."""

from __future__ import annotations

from headway.bundle import Bundle
from headway.errors import ConfigError
from headway.models.transformer import Transformer

__all__ = ["transformer_of"]


def transformer_of(bundle: Bundle, form: str) -> Transformer:
    """The bundle's model, where ``form`` can hold it.

    Raises:
        ConfigError: It is of another architecture.
    """
    if not isinstance(bundle.model, Transformer):
        raise ConfigError(
            f"model.kind = {bundle.model.config.kind!r}: {form} takes a transformer alone; this model cannot be "
            "exported to it"
        )
    return bundle.model
