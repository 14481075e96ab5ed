"""Choose the model, or two models with a pivot language, for a pair of languages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from headway.serve.errors import UnknownLanguageError
from headway.serve.languages import find_language
from headway.serve.model_info import ModelInfo, PivotModels
from headway.text.languages import base_language


@dataclass(frozen=True)
class LanguagePair:
    """A source and a target language, and the models that translate between them.

    Attributes:
        source: Code of the source language.
        target: Code of the target language.
        model: The only model, or the first of two models.
        second: The second model, or None.
        pivot_codes: The codes of the pivot language in the first and in the second model, or None.
    """

    source: str
    target: str
    model: ModelInfo
    second: ModelInfo | None = None
    pivot_codes: tuple[str, str] | None = None


@dataclass(frozen=True)
class Direction:
    """The model, or the two models, chosen for a request, and the languages to call them with.

    Attributes:
        model: The model, or two models with a pivot language.
        source: Code of the source language.
        target: Code of the target language.
        language_arguments: Language arguments for the model's methods.
        pivot: Code of the pivot language if there are two models, otherwise None.
    """

    model: ModelInfo | PivotModels
    source: str
    target: str
    language_arguments: dict[str, Any] = field(default_factory=dict)
    pivot: str | None = None

    @property
    def name(self) -> str:
        """The name of the model, or the names of both models."""
        return self.model.name if isinstance(self.model, ModelInfo) else f"{self.model.first}, {self.model.second}"


class Directions:
    """The pairs of languages that the service translates.

    A pair that no model translates directly is translated by the first two models with a common language.

    Args:
        models: All translation models of the service.
        pivot_candidates: Number of pivot translations per text (:class:`headway.predict.PivotTranslator`). 0 means that
            models are not combined.
    """

    def __init__(self, models: Sequence[ModelInfo], *, pivot_candidates: int) -> None:
        self._models, self._candidates = list(models), pivot_candidates

    def pairs(self) -> list[LanguagePair]:
        """Return all pairs: first the pairs of single models, in the order of the models, then pairs of two models."""
        pairs = [
            LanguagePair(source, target, model)
            for model in self._models
            for source in model.source_languages
            for target in model.target_languages
        ]
        known = {(pair.source, pair.target) for pair in pairs}
        for first, second in product(self._models, repeat=2) if self._candidates else ():
            pivots = _pivots(first, second)
            for source, target in product(first.source_languages, second.target_languages) if pivots else ():
                if (source, target) not in known and (pivot := _pivot(pivots, source, target)) is not None:
                    known.add((source, target))
                    pairs.append(LanguagePair(source, target, first, second, pivot))
        return pairs

    def may_use(self, model: ModelInfo, target: str) -> bool:
        """Return whether ``model`` can take part in a translation into ``target``, alone or before another model."""
        return self._candidates > 0 or find_language(target, model.target_languages) is not None

    def find(self, source: str, target: str, model: ModelInfo | None = None, *, direct: bool = False) -> Direction:
        """Return the model, or the two models, that translate from ``source`` to ``target``.

        Args:
            source: The source language, as written by the client.
            target: The target language, as written by the client.
            model: The only model to consider. None means to consider all models, and pairs of models if no single model
                translates the pair.
            direct: Whether a single model must translate the pair.

        Raises:
            UnknownLanguageError: No model translates this pair.
        """
        is_source = False
        considered = self._models if model is None else [model]
        for candidate in considered:
            source_code = find_language(source, candidate.source_languages)
            if source_code is None:
                continue
            is_source = True
            target_code = find_language(target, candidate.target_languages)
            if target_code is not None:
                pair = LanguagePair(source_code, target_code, candidate)
                return Direction(candidate, source_code, target_code, _arguments(pair))
        if model is None and not direct and self._candidates:
            firsts = [(candidate, find_language(source, candidate.source_languages)) for candidate in self._models]
            seconds = [(candidate, find_language(target, candidate.target_languages)) for candidate in self._models]
            for first, source_code in firsts:
                for second, target_code in seconds:
                    if source_code is not None and target_code is not None:
                        pivot = _pivot(_pivots(first, second), source_code, target_code)
                        if pivot is not None:
                            pair = LanguagePair(source_code, target_code, first, second, pivot)
                            models = PivotModels(first.name, second.name, pivot, self._candidates)
                            return Direction(models, source_code, target_code, _arguments(pair), pivot[0])
        if not is_source:
            raise UnknownLanguageError(f"{source} is not supported", "source", source, target)
        if all(find_language(target, candidate.target_languages) is None for candidate in considered):
            raise UnknownLanguageError(f"{target} is not supported", "target", source, target)
        raise UnknownLanguageError(f"No model translates from {source} into {target}", "pair", source, target)


def _pivots(first: ModelInfo, second: ModelInfo) -> list[tuple[str, str]]:
    """Return the languages that ``first`` translates into and ``second`` translates from, as codes of both models."""
    if first is second:
        return []
    codes = ((pivot, find_language(pivot, second.source_languages)) for pivot in first.target_languages)
    return [(pivot, pivot_source) for pivot, pivot_source in codes if pivot_source is not None]


def _pivot(pivots: Sequence[tuple[str, str]], source: str, target: str) -> tuple[str, str] | None:
    """Return the first pivot whose language differs from source and target, or None if there is none."""
    ends = {base_language(source), base_language(target)}
    if len(ends) < 2:
        return None
    return next((pivot for pivot in pivots if base_language(pivot[0]) not in ends), None)


def _arguments(pair: LanguagePair) -> dict[str, Any]:
    """Return the language arguments for the model's methods."""
    arguments = {}
    if pair.model.takes_source_language:
        arguments["source_language"] = pair.source
    if (pair.second or pair.model).takes_target_language:
        arguments["target_language"] = pair.target
    return arguments
