"""Recipes of language models that are small enough to be trained in a second."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.experiments.pool import merge_sections
from headway.tasks import parse_recipe
from headway.training.recipe import Recipe

CONTEXT = 24
DECODER_ONLY = {"d_model": 32, "num_heads": 2, "d_ff": 64, "decoder_layers": 2, "max_length": CONTEXT}
_COMMON: dict[str, dict[str, Any]] = {
    "task": {"kind": "language_model"},
    "tokenizer": {"kind": "characters"},
    "optimizer": {"learning_rate": 1e-2, "warmup_steps": 10, "schedule": "inverse_sqrt"},
    "training": {"precision": "float32", "device": "cpu"},
    "checkpoints": {"average": 0},
}


def small_recipe(*parts: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Return the common recipe with the sections of all parts; keys of later parts replace those of earlier ones."""
    return parse_recipe(merge_sections(_COMMON, *parts), "test")
