"""Model architectures as PyTorch modules that can be used on their own, one per file with its configuration.

:mod:`headway.models.registry` lists the architectures, and other packages can register more. A model has one of four
capabilities, each with a base class in :mod:`headway.models.base`.
"""

from headway.models.base import (
    ArchitectureConfig,
    ClassificationModel,
    ContinuationModel,
    FillingModel,
    Model,
    TranslationModel,
)
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from headway.models.registry import ARCHITECTURES, Architecture, build_model, register
from headway.models.sequence_classifier import SequenceClassifier, SequenceClassifierConfig
from headway.models.transformer import Transformer, TransformerConfig

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "ArchitectureConfig",
    "ClassificationModel",
    "ClassifierConfig",
    "ContinuationModel",
    "DecoderOnly",
    "DecoderOnlyConfig",
    "EncoderClassifier",
    "FillingModel",
    "MaskedConfig",
    "MaskedTransformer",
    "Model",
    "RecurrentConfig",
    "RecurrentLM",
    "RecurrentLMConfig",
    "RecurrentModel",
    "SequenceClassifier",
    "SequenceClassifierConfig",
    "Transformer",
    "TransformerConfig",
    "TranslationModel",
    "build_model",
    "register",
]
