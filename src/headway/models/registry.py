"""The table of architectures, with each one's configuration class, model class, and properties that others need.

To add an architecture, create a file in this package and add an entry to :data:`ARCHITECTURES`. Other packages call
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
from headway.models.sequence_classifier import (
    SequenceClassifier,
    SequenceClassifierConfig,
    body_weights,
    config_with_body,
)
from headway.models.transformer import (
    Transformer,
    TransformerConfig,
    config_with_decoder,
    config_with_encoder,
    decoder_weights,
    encoder_weights,
)

_REGISTER = "headway.models.registry.register"
ModelConfig = Annotated[
    ArchitectureConfig,
    ConfigByKind(lambda: ARCHITECTURES, lambda architecture: architecture.config_class, _REGISTER),
]
"""The type of a field that contains the configuration of any architecture in the table."""


@dataclass(frozen=True)
class TrainingStart:
    """Describes how training a model of another architecture starts from an existing model.

    Attributes:
        make_config: Function that maps the existing model's configuration to the options that the new model must have.
            It raises :class:`ConfigError` if no model of the new architecture has these options.
        convert_weights: Function that maps the existing model's weights, by name, to the initial weights of the new
            model.
    """

    make_config: Callable[[dict[str, Any]], dict[str, Any]]
    convert_weights: Callable[[dict[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class Architecture:
    """The properties of an architecture that other packages need.

    Attributes:
        config_class: The configuration class. Its ``kind`` is the key in :data:`ARCHITECTURES`.
        model_class: The model class. It is called with the configuration, source vocabulary size and output size.
        capability: The task that the models can be trained for.
        is_compilable: Whether ``torch.compile`` is useful for the model. It would unroll a recurrent model's time
            steps.
        get_blocks: Function that returns a model's blocks in order, from input to output. None if the model has no
            blocks.
        get_cross_attentions: Function that returns the decoder's attention layers over the source, one per block. The
            list is empty if the model has no such layers.
        training_starts: For each other capability, how a model with that capability starts training from this
            architecture.
        decoder_training_start: How an encoder-decoder's decoder starts training from this model. None if it cannot.
    """

    config_class: type[ArchitectureConfig]
    model_class: Callable[..., Model]
    capability: Capability
    is_compilable: bool = True
    get_blocks: Callable[[Model], list[nn.Module]] | None = None
    get_cross_attentions: Callable[[Model], list[nn.Module]] = lambda _model: []
    training_starts: Mapping[Capability, TrainingStart] = field(default_factory=dict)
    decoder_training_start: TrainingStart | None = None


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


_CLASSIFIER_START = TrainingStart(config_with_body, body_weights)

_ARCHITECTURES: dict[str, Architecture] = {
    "transformer": Architecture(
        TransformerConfig,
        Transformer,
        "translates",
        get_blocks=_transformer_blocks,
        get_cross_attentions=_transformer_cross_attentions,
    ),
    "recurrent": Architecture(
        RecurrentConfig,
        RecurrentModel,
        "translates",
        is_compilable=False,
        get_cross_attentions=_recurrent_attention,
    ),
    "classifier": Architecture(ClassifierConfig, EncoderClassifier, "labels"),
    "decoder_only": Architecture(
        DecoderOnlyConfig,
        DecoderOnly,
        "continues",
        get_blocks=_decoder_only_blocks,
        training_starts={"labels": _CLASSIFIER_START},
        decoder_training_start=TrainingStart(config_with_decoder, decoder_weights),
    ),
    "recurrent_lm": Architecture(RecurrentLMConfig, RecurrentLM, "continues", is_compilable=False),
    "masked": Architecture(
        MaskedConfig,
        MaskedTransformer,
        "fills",
        get_blocks=_masked_blocks,
        training_starts={
            "labels": _CLASSIFIER_START,
            "translates": TrainingStart(config_with_encoder, encoder_weights),
        },
    ),
    "sequence_classifier": Architecture(
        SequenceClassifierConfig, SequenceClassifier, "labels", get_blocks=_body_blocks
    ),
}


ARCHITECTURES: KindRegistry[Architecture] = KindRegistry("model.kind", _ARCHITECTURES, lambda entry: entry.model_class)


def register(architecture: Architecture) -> None:
    """Register an architecture, so that recipes and model folders can use it as ``model.kind``.

    Its classes must derive from the base classes in :mod:`headway.models.base`, which document the requirements.

    Raises:
        ConfigError: The kind is already registered.
    """
    ARCHITECTURES.register(architecture.config_class.model_fields["kind"].default, architecture)


def architecture_of(config: ArchitectureConfig) -> Architecture:
    """Return the architecture of a model configuration."""
    return ARCHITECTURES[config.kind]


def blocks_of(model: Model) -> list[nn.Module]:
    """Return a model's blocks in order, from input to output, or an empty list if it has no blocks."""
    blocks = architecture_of(model.config).get_blocks
    return [] if blocks is None else blocks(model)


def architectures_with_capability(capability: Capability) -> list[str]:
    """Return the kinds of all architectures with this capability."""
    return [kind for kind, architecture in ARCHITECTURES.items() if architecture.capability == capability]


def parse_model_config(data: Any, origin: str) -> ArchitectureConfig:
    """Parse and validate a saved model configuration. Its ``kind`` selects the architecture.

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
    """Build a model with new weights, drawn with PyTorch's global random generator.

    ``output_size`` is the size of the target vocabulary, or the number of classes.
    """
    return architecture_of(config).model_class(config, source_vocab_size, output_size)
