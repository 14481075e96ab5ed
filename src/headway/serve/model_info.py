"""Descriptions of the models of a service."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.decode.generation_options import DEFAULT_GENERATION, GenerationOptions
from headway.decode.request import PAPER_OPTIONS, DecodingOptions
from headway.kinds import Capability


@dataclass(frozen=True)
class ModelSpec:
    """A model of the service.

    Attributes:
        name: The name in the service.
        folder: The model folder.
        settings: How it decodes: arguments of :func:`headway.load`.
        on_demand: Whether it is loaded only when it is needed.
    """

    name: str
    folder: str
    settings: dict[str, Any] = field(default_factory=dict)
    on_demand: bool = False

    @property
    def stored_bytes(self) -> int:
        """The size of the model's weights on disk, a lower bound of its memory."""
        return sum(path.stat().st_size for path in Path(self.folder).glob("*.safetensors"))


@dataclass(frozen=True)
class ModelInfo:
    """The description of a model: its task, languages and labels.

    Attributes:
        name: The name in the service.
        kind: The kind of its task, such as "translation".
        capability: What it does.
        source_languages: The languages that it translates from; empty if unknown or if it does not translate.
        target_languages: The languages that it translates into.
        takes_target_language: Whether each call must name the target language.
        takes_source_language: Whether each call must name the source language.
        labels: The labels of a classifier.
        context_length: The context of a language model in tokens, or None.
        search: The search settings of a translation model, for requests that do not give others.
        generation: The settings of a language model's generation, for requests that do not give others.
    """

    name: str
    kind: str
    capability: Capability
    source_languages: tuple[str, ...] = ()
    target_languages: tuple[str, ...] = ()
    takes_target_language: bool = False
    takes_source_language: bool = False
    labels: tuple[str, ...] = ()
    context_length: int | None = None
    search: DecodingOptions = PAPER_OPTIONS
    generation: GenerationOptions = DEFAULT_GENERATION


@dataclass(frozen=True)
class PivotModels:
    """Two models that together translate through a third language; see :class:`headway.predict.PivotTranslator`.

    Attributes:
        first: The name of the first model.
        second: The name of the second model.
        languages: The language in between, as the first and as the second model call it.
        candidates: The number of pivots of each text.
    """

    first: str
    second: str
    languages: tuple[str, str]
    candidates: int
