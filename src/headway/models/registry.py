"""The table of architectures: configuration, model class, and the properties that other packages need.

To add an architecture, create a file in this package and add it to :data:`ARCHITECTURES`. Another package calls
:func:`register` (:mod:`headway.kinds`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast, overload

from torch import Tensor, nn

from headway.config import ConfigByKind, unregistered_hint
from headway.errors import ConfigError
from headway.kinds import Capability, KindRegistry
from headway.models.base import ArchitectureConfig, Model
from headway.models.classifier import ClassifierConfig, EncoderClassifier
from headway.models.decoder_only import DecoderOnly, DecoderOnlyConfig
from headway.models.masked import MaskedConfig, MaskedTransformer
from headway.models.recurrent import RecurrentConfig, RecurrentModel
from headway.models.recurrent_lm import RecurrentLM, RecurrentLMConfig
from headway.models.sequence_classifier import SequenceClassifier, SequenceClassifierConfig, body_weights, with_body
from headway.models.transformer import (
    Transformer,
    TransformerConfig,
    decoder_weights,
    encoder_weights,
    with_decoder,
    with_encoder,
)

_REGISTER = "headway.models.registry.register"
ModelConfig = Annotated[
    ArchitectureConfig,
    ConfigByKind(lambda: ARCHITECTURES, lambda architecture: architecture.config_class, _REGISTER),
]
"""The type of fields with the configuration of any architecture in the table."""


@dataclass(frozen=True)
class TrainingStart:
    """Describes how training for another task starts from a model.

    Attributes:
        config: Function that returns the options that the other model must have, given the configuration of this one.
            It raises :class:`ConfigError` if no model of the other architecture has these options.
        weights: Function that returns the weights of the other model that are taken from this one, given all weights
            of this one. Keys are names.
    """

    config: Callable[[dict[str, Any]], dict[str, Any]]
    weights: Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Architecture:
    """The properties of an architecture that other packages need.

    Attributes:
        config_class: The configuration class; its ``kind`` is the key in :data:`ARCHITECTURES`.
        model_class: The model class, called with the configuration, the source vocabulary size and the output size.
        capability: What the models can be trained to do.
        compilable: Whether ``torch.compile`` suits the model. It would unroll the time steps of a recurrent model.
        blocks: Function that returns the blocks of a model from its input to its output. None if it has none.
        cross_attentions: Function that returns the decoder's attention layers over the source, one per block. The list
            is empty if the model has none.
        starts: For each other capability, how training of a model with this capability starts from this architecture.
        decoder_start: How the decoder of an encoder-decoder starts from this model. None if it cannot.
    """

    config_class: type[ArchitectureConfig]
    model_class: Callable[..., Model]
    capability: Capability
    compilable: bool = True
    blocks: Callable[[Model], list[nn.Module]] | None = None
    cross_attentions: Callable[[Model], list[nn.Module]] = lambda _model: []
    starts: Mapping[Capability, TrainingStart] = field(default_factory=dict)
    decoder_start: TrainingStart | None = None


def _transformer_blocks(model: Model) -> list[nn.Module]:
    transformer = cast("Transformer", model)
    return [*transformer.encoder.blocks, *transformer.decoder.blocks]


def _decoder_only_blocks(model: Model) -> list[nn.Module]:
    return list(cast("DecoderOnly", model).decoder.blocks)


def _body_blocks(model: Model) -> list[nn.Module]:
    classifier = cast("SequenceClassifier", model)
    return blocks_of(classifier.body)


def _masked_blocks(model: Model) -> list[nn.Module]:
    return list(cast("MaskedTransformer", model).encoder.blocks)


def _transformer_cross_attentions(model: Model) -> list[nn.Module]:
    return [block.get_submodule("cross_attention") for block in cast("Transformer", model).decoder.blocks]


def _recurrent_attention(model: Model) -> list[nn.Module]:
    return [layer for name, layer in cast("RecurrentModel", model).decoder.named_children() if name == "attention"]


_CLASSIFIER_START = TrainingStart(with_body, body_weights)

_ARCHITECTURES: dict[str, Architecture] = {
    "transformer": Architecture(
        TransformerConfig,
        Transformer,
        "translates",
        blocks=_transformer_blocks,
        cross_attentions=_transformer_cross_attentions,
    ),
    "recurrent": Architecture(
        RecurrentConfig,
        RecurrentModel,
        "translates",
        compilable=False,
        cross_attentions=_recurrent_attention,
    ),
    "classifier": Architecture(ClassifierConfig, EncoderClassifier, "labels"),
    "decoder_only": Architecture(
        DecoderOnlyConfig,
        DecoderOnly,
        "continues",
        blocks=_decoder_only_blocks,
        starts={"labels": _CLASSIFIER_START},
        decoder_start=TrainingStart(with_decoder, decoder_weights),
    ),
    "recurrent_lm": Architecture(RecurrentLMConfig, RecurrentLM, "continues", compilable=False),
    "masked": Architecture(
        MaskedConfig,
        MaskedTransformer,
        "fills",
        blocks=_masked_blocks,
        starts={
            "labels": _CLASSIFIER_START,
            "translates": TrainingStart(with_encoder, encoder_weights),
        },
    ),
    "sequence_classifier": Architecture(SequenceClassifierConfig, SequenceClassifier, "labels", blocks=_body_blocks),
}


ARCHITECTURES: KindRegistry[Architecture] = KindRegistry("model.kind", _ARCHITECTURES, lambda entry: entry.model_class)


def register(architecture: Architecture) -> None:
    """Add an architecture, which recipes and model folders can then have as ``model.kind``.

    Its classes derive from those of :mod:`headway.models.base`, which say what they need.

    Raises:
        ConfigError: The kind is registered already.
    """
    ARCHITECTURES.register(architecture.config_class.model_fields["kind"].default, architecture)


def architecture_of(config: ArchitectureConfig) -> Architecture:
    """Return the table entry of a model configuration."""
    return ARCHITECTURES[config.kind]


def blocks_of(model: Model) -> list[nn.Module]:
    """Return the blocks of a model from its input to its output, or an empty list if it has none."""
    blocks = architecture_of(model.config).blocks
    return [] if blocks is None else blocks(model)


def architectures_that(capability: Capability) -> list[str]:
    """Return the kinds of all architectures with a capability."""
    return [kind for kind, architecture in ARCHITECTURES.items() if architecture.capability == capability]


def parse_model_config(data: Any, origin: str) -> ArchitectureConfig:
    """Validate a saved model configuration, whose ``kind`` selects the architecture.

    Error messages name ``origin``.
    """
    kind = data["kind"] if isinstance(data, dict) and "kind" in data else "transformer"
    try:
        architecture = ARCHITECTURES[kind]
    except KeyError:
        raise ConfigError(
            f"{origin}: kind = {kind!r}: {unregistered_hint(str(kind), ARCHITECTURES, _REGISTER)}"
        ) from None
    return architecture.config_class.parse_saved(data, origin)


@overload
def build_model(config: TransformerConfig, source_vocab_size: int, output_size: int) -> Transformer: ...
@overload
def build_model(config: RecurrentConfig, source_vocab_size: int, output_size: int) -> RecurrentModel: ...
@overload
def build_model(config: ClassifierConfig, source_vocab_size: int, output_size: int) -> EncoderClassifier: ...
@overload
def build_model(config: DecoderOnlyConfig, source_vocab_size: int, output_size: int) -> DecoderOnly: ...
@overload
def build_model(config: RecurrentLMConfig, source_vocab_size: int, output_size: int) -> RecurrentLM: ...
@overload
def build_model(config: MaskedConfig, source_vocab_size: int, output_size: int) -> MaskedTransformer: ...
@overload
def build_model(config: SequenceClassifierConfig, source_vocab_size: int, output_size: int) -> SequenceClassifier: ...
@overload
def build_model(config: ArchitectureConfig, source_vocab_size: int, output_size: int) -> Model: ...
def build_model(config: ArchitectureConfig, source_vocab_size: int, output_size: int) -> Model:
    """Build a model with fresh weights drawn from PyTorch's current random state.

    ``output_size`` is the size of the target vocabulary, or the number of classes.
    """
    return architecture_of(config).model_class(config, source_vocab_size, output_size)
