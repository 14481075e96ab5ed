"""The models of a translator, one or several whose probabilities are averaged: what scores, and what searches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headway.decode import Ensemble
from headway.engine import InferenceTransformer, Precision, Shortlist, unsupported
from headway.interop.onnx import OnnxModel
from headway.models.registry import TranslationModel
from headway.models.transformer import Transformer

__all__ = ["Member", "Members", "no_faster_form"]


@dataclass(frozen=True)
class Member:
    """A model, which computes scores, and what searches with its weights."""

    model: TranslationModel | OnnxModel
    precision: Precision
    shortlist: Shortlist | None = None

    @cached_property
    def searcher(self) -> InferenceTransformer | TranslationModel | OnnxModel:
        """Made when it is first needed."""
        model = self.model
        if isinstance(model, Transformer) and no_faster_form(model) is None:
            return InferenceTransformer(model, self.precision, shortlist=self.shortlist)
        return model


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
    """Why a model searches in its own form, in float32; None where there is a faster one."""
    if isinstance(model, Transformer):
        return unsupported(model.config)
    return f"a {model.config.kind} model has no form that is laid out for speed; it decodes in float32"


def _joined(models: list[Any]) -> Any:
    return models[0] if len(models) == 1 else Ensemble(models)
