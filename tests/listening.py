"""Helpers for tests of training: a listener that stores messages, and data preparation without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.data.store_builder import Shard
from headway.tasks import task_of
from headway.training.fine_tuning import complete_recipe
from headway.training.recipe import Recipe
from headway.training.report import Listener


class Heard(Listener):
    """A listener that stores the messages."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def prepare(recipe: Recipe, run: Path, listener: Listener) -> Any:
    """Build the tokenizers and stores of a run, and return its data."""
    prepared = prepare_shard(recipe, run, listener, Shard())
    assert prepared is not None
    return prepared


def prepare_shard(recipe: Recipe, run: Path, listener: Listener, shard: Shard) -> Any:
    """Build one shard's part of the stores. Return None if parts of other shards are missing."""
    return task_of(recipe).prepare(complete_recipe(recipe, run), run, listener, shard)
