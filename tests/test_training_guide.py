"""docs/training.md: its recipes parse, and the keys and commands that it names exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from headway.cli import app
from headway.config import apply_overrides
from headway.models.registry import ARCHITECTURES
from headway.tasks import parse_recipe
from headway.training.recipe import Recipe

GUIDE = (Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
BLOCKS = [
    re.sub("^    ", "", block, flags=re.MULTILINE) for block in re.findall(r"(?:^    .*\n)+", GUIDE, re.MULTILINE)
]
RECIPES = [block for block in BLOCKS if block.startswith("[")]
DATA: dict[str, Any] = {"train": [{"files": ["a", "b"]}]}


@pytest.mark.parametrize("text", RECIPES)
def test_its_recipes_parse(text: str) -> None:
    sections = tomllib.loads(text)
    recipe = parse_recipe({**sections, "data": {**DATA, **sections.get("data", {})}}, "guide")
    for section, keys in sections.items():
        assert keys.keys() <= getattr(recipe, section).model_fields_set


def fields(model: type[BaseModel]) -> set[str]:
    """Return every section.key of a recipe."""
    architectures = [architecture.config_class for architecture in ARCHITECTURES.values()]
    return {
        f"{name}.{key}"
        for name, field in model.model_fields.items()
        for section in (field.annotation, *get_args(field.annotation), *architectures)
        if (section in architectures) == (name == "model")
        for key in getattr(section, "model_fields", {})
    }


def test_every_key_that_it_names_exists() -> None:
    sections = "|".join(Recipe.model_fields)
    named = set(re.findall(rf"`({sections})\.(\w+)", GUIDE))
    assert len(named) > 15
    assert {".".join(pair) for pair in named} <= fields(Recipe)
    for section, key, value in re.findall(rf"`({sections})\.(\w+) = ([^`]+)`", GUIDE):
        parse_recipe(apply_overrides({"data": DATA}, [f"{section}.{key}={value}"]), "guide")


def test_every_command_that_it_names_exists() -> None:
    callbacks = [command.callback for command in app.registered_commands if command.callback is not None]
    known = {callback.__name__.removesuffix("_") for callback in callbacks}
    named = set(re.findall(r"headway ([a-z]+)", GUIDE))
    assert {"train", "distill", "curves", "average", "prepare"} <= named
    assert named <= known
