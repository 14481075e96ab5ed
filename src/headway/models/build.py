"""From a configuration to a model: the one place that knows every architecture."""

from __future__ import annotations

from headway.models.transformer import Transformer, TransformerConfig

__all__ = ["Model", "ModelConfig", "build_model"]

ModelConfig = TransformerConfig
Model = Transformer


def build_model(config: ModelConfig, source_vocab_size: int, target_vocab_size: int) -> Model:
    """A freshly initialised model, from PyTorch's current random state."""
    return Transformer(config, source_vocab_size, target_vocab_size)
