"""The models of a translator, one or several whose probabilities are averaged: what scores, and what searches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headway.decode import Ensemble, SearchModel
from headway.engine import Precision, Shortlist, for_search, unsupported_reason
from headway.interop.onnx import OnnxModel
from headway.models.registry import TranslationModel

__all__ = ["Member", "Members", "no_faster_form"]


@dataclass(frozen=True)
class Member:
    """A model, which computes scores, and what searches with its weights."""

    model: TranslationModel | OnnxModel
    precision: Precision
    shortlist: Shortlist | None = None

    @cached_property
    def searcher(self) -> SearchModel[Any]:
        """Made when it is first needed."""
        return for_search(self.model, self.precision, shortlist=self.shortlist)


@dataclass(frozen=True)
class Members:
    """One model or more, with the same tokenizers and on one device."""

    each: tuple[Member, ...]

    @property
    def positions(self) -> int | None:
        """The fewest positions that one of them has learned; None: no limit."""
        return min((one.model.max_length for one in self.each if one.model.max_length is not None), default=None)

    @property
    def model(self) -> Any:
        """What computes scores, and tells what it attends to."""
        return _joined([one.model for one in self.each])

    @property
    def searcher(self) -> Any:
        """What searches."""
        return _joined([one.searcher for one in self.each])


def no_faster_form(model: TranslationModel) -> str | None:
    """Return why a model searches in its own form, in float32; None if it has a faster one."""
    return unsupported_reason(model)


def _joined(models: list[Any]) -> Any:
    return models[0] if len(models) == 1 else Ensemble(models)
