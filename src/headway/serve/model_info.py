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
    """Specifies a model to load.

    Attributes:
        name: Name of the model in the service.
        folder: Path of the model folder.
        load_options: Arguments of :func:`headway.load`, such as the precision.
        on_demand: Whether to load the model only when a request needs it.
    """

    name: str
    folder: str
    load_options: dict[str, Any] = field(default_factory=dict)
    on_demand: bool = False

    @property
    def stored_bytes(self) -> int:
        """Size of the model's weights on disk in bytes, a lower bound of the memory that the model needs."""
        return sum(path.stat().st_size for path in Path(self.folder).glob("*.safetensors"))


@dataclass(frozen=True)
class ModelInfo:
    """The description of a loaded model.

    Attributes:
        name: Name of the model in the service.
        kind: Kind of the model's task, such as "translation".
        capability: What the model does with text: "translates", "labels", "continues" or "fills".
        source_languages: Languages to translate from. Empty if they are unknown or the model does not translate.
        target_languages: Languages to translate into. Empty if they are unknown or the model does not translate.
        takes_target_language: Whether each call must specify the target language.
        takes_source_language: Whether each call must specify the source language.
        labels: Labels of a classifier.
        context_length: Context length of a language model in tokens, or None.
        search: Default search options of a translation model.
        generation: Default generation options of a language model.
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
        first: Name of the first model.
        second: Name of the second model.
        pivot_codes: The codes of the third language in the first and in the second model.
        num_candidates: Number of translations into the third language per text.
    """

    first: str
    second: str
    pivot_codes: tuple[str, str]
    num_candidates: int
