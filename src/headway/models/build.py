"""From a configuration to a model: the one place that knows every architecture."""

from __future__ import annotations

from typing import Annotated, Any, overload

from pydantic import Field

from headway.config import nearest
from headway.errors import ConfigError
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.models.transformer import Transformer, TransformerConfig

__all__ = ["Model", "ModelConfig", "TranslationModel", "build_model", "parse_model_config"]

AnyConfig = TransformerConfig | RecurrentConfig | ClassifierConfig
ModelConfig = Annotated[AnyConfig, Field(discriminator="kind")]
TranslationModel = Transformer | RecurrentModel
Model = TranslationModel | EncoderClassifier

_CONFIGS: dict[str, type[TransformerConfig] | type[RecurrentConfig] | type[ClassifierConfig]] = {
    "transformer": TransformerConfig,
    "recurrent": RecurrentConfig,
    "classifier": ClassifierConfig,
}


def parse_model_config(data: Any, origin: str) -> AnyConfig:
    """The configuration that ``data``, read from ``origin``, describes; its ``kind`` tells of which architecture."""
    kind = data["kind"] if isinstance(data, dict) and "kind" in data else "transformer"
    if kind not in _CONFIGS:
        raise ConfigError(f"{origin}: kind = {kind!r}: {nearest(str(kind), _CONFIGS)}")
    return _CONFIGS[kind].parse(data, origin)


@overload
def build_model(config: TransformerConfig, source_vocab_size: int, target_size: int) -> Transformer: ...
@overload
def build_model(config: RecurrentConfig, source_vocab_size: int, target_size: int) -> RecurrentModel: ...
@overload
def build_model(config: ClassifierConfig, source_vocab_size: int, target_size: int) -> EncoderClassifier: ...
@overload
def build_model(config: AnyConfig, source_vocab_size: int, target_size: int) -> Model: ...
def build_model(config: AnyConfig, source_vocab_size: int, target_size: int) -> Model:
    """A freshly initialised model, from PyTorch's current random state.

    ``target_size`` counts the target's vocabulary, or the classes.
    """
    match config:
        case TransformerConfig():
            return Transformer(config, source_vocab_size, target_size)
        case RecurrentConfig():
            return RecurrentModel(config, source_vocab_size, target_size)
        case ClassifierConfig():
            return EncoderClassifier(config, source_vocab_size, target_size)
