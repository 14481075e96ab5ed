"""Base classes of the configurations and models of all architectures: the interface that the rest of Headway uses.

:mod:`headway.models.registry` lists the architectures. A model has one of the four capabilities in
:mod:`headway.kinds`, each with a base class in this module. Architectures in other packages derive their classes from
these base classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import model_validator
from torch import Tensor, nn

from headway.config import Config, ConfigT, apply_preset

if TYPE_CHECKING:
    from headway.decode.protocol import Step


class ArchitectureConfig(Config):
    """Base class of the configurations of all architectures.

    Each configuration has the fields ``kind``, with a single literal value, and ``d_model``, on which the learning rate
    may depend. Configurations of models that continue, fill or label also have ``max_length``, the maximum length of a
    text in tokens. Configurations of classifiers also have ``pad_to_max_length`` and ``pooling``.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # named settings, such as the sizes of published models

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        """Replace a key such as ``preset = "base"`` with the preset's options. Other given keys take precedence."""
        return apply_preset(data, cls.presets) if isinstance(data, dict) and cls.presets else data

    @classmethod
    def preset(cls: type[ConfigT], name: str, **changes: Any) -> ConfigT:
        """Return the configuration of a preset with ``changes``.

        Raises:
            ConfigError: The preset does not exist, or a change is invalid.
        """
        return cls.parse({"preset": name, **changes}, f"preset {name}")

    if TYPE_CHECKING:  # the subclasses declare these fields, each in its own field order

        @property
        def kind(self) -> str:
            """Name of the architecture."""

        @property
        def d_model(self) -> int:
            """Width of the model's states, in units."""


class Model(nn.Module):
    """Base class of the models of all architectures.

    Attributes:
        config: The model's configuration.
        int8_weights: The stored weights if the model folder contains 8-bit integers, otherwise None
            (:mod:`headway.engine.int8_weights`).
        projection: The layer that computes the logits.
        hidden: In models that predict tokens, the method that returns the states from which the projection computes
            logits.
    """

    config: Any
    hidden: Any
    projection: Any
    int8_weights: Any = None

    @property
    def max_length(self) -> int | None:
        """Maximum length of a sequence in tokens, including EOS. None means no limit."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """The device that the weights are on."""
        weights = self.projection.weight if self.int8_weights is None else self.int8_weights
        device: torch.device = weights.device
        return device


class _SearchedModel(Model):
    """Base class of models that can be searched. See :class:`headway.decode.protocol.SearchModel`."""

    def start(self, sources: Sequence[Sequence[int]], *, beams: int = 1) -> Any:
        """Encode the sources and begin decoding, with ``beams`` rows per source."""
        raise NotImplementedError

    def admit(self, state: Any, sources: Sequence[Sequence[int]]) -> None:
        """Encode more sources and append them to ``state``, with the same number of rows per source."""
        raise NotImplementedError

    def step(self, state: Any, tokens: Int[Tensor, " R"], *, attention: bool = False) -> Step:
        """Append one token to each row and predict the next."""
        raise NotImplementedError

    def reorder_rows(self, state: Any, rows: Int[Tensor, " R2"], sequences: Int[Tensor, " B2"] | None = None) -> None:
        """Reorder the rows, and keep only the given ``sequences``. None keeps all."""
        raise NotImplementedError


class TranslationModel(_SearchedModel):
    """Base class of models that translate, with an encoder and a decoder of any kind."""

    def hidden(self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the states from which :attr:`projection` computes the logits of the token after each target token."""
        raise NotImplementedError


class ContinuationModel(_SearchedModel):
    """Base class of models that continue texts."""

    @property
    def carries_state(self) -> bool:
        """Whether the model processes texts of any length block by block, and carries a state between blocks."""
        return False

    def hidden(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Return the states from which :attr:`projection` computes the logits of the token after each token."""
        raise NotImplementedError


class ClassificationModel(Model):
    """Base class of models that label texts. ``forward`` returns the logits (B, C) of sources (B, S) that end with EOS.

    :meth:`embed_source` and :meth:`logits_from` are used for explanations, which need gradients with respect to the
    model's input vectors.
    """

    @property
    def max_length(self) -> int:
        """Maximum length of a text in tokens, including EOS."""
        raise NotImplementedError

    def embed_source(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B S2 D"]:
        """Return the model's input vectors, before element-wise dropout."""
        raise NotImplementedError

    def encoder_tokens(self, source: Int[Tensor, "B S"]) -> Int[Tensor, "B S2"]:
        """Return the tokens that :meth:`embed_source` embeds, including BOS if the model adds it."""
        raise NotImplementedError

    def logits_from(self, embedded: Float[Tensor, "B S2 D"], source: Int[Tensor, "B S"]) -> Float[Tensor, "B C"]:
        """Return the logits, given the output of :meth:`embed_source`."""
        raise NotImplementedError


class FillingModel(Model):
    """Base class of models that fill in hidden tokens.

    Attributes:
        head: The layer that converts states to the input of the projection.
    """

    head: Any

    def hidden(self, tokens: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """Return the state of each position, which is the input of :attr:`head`."""
        raise NotImplementedError
