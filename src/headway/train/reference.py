"""The table of all recipe keys, made from the configuration classes: docs/recipe.md.

Made by ``python -m headway.train.reference``.
"""

from __future__ import annotations

from typing import Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from headway.data.readers import Corpus
from headway.data.store import FilterConfig
from headway.models.transformer import PRESETS
from headway.train.recipe import Recipe

__all__ = ["recipe_reference"]


def recipe_reference() -> str:
    """Markdown: a table for each section, a row for each key with its default and what it means."""
    lines = [
        "# Recipe keys",
        "",
        "Made by `python -m headway.train.reference`. A key that is left out has its default.",
    ]
    for name, field in Recipe.model_fields.items():
        if name == "model":
            for config in get_args(field.annotation):
                (kind,) = get_args(config.model_fields["kind"].annotation)
                lines += _section(f"[model] with kind = '{kind}'", config)
        else:
            assert isinstance(field.annotation, type)
            lines += _section(f"[{name}]", field.annotation)
        if name == "data":
            lines += _section("data.train = [{ ... }, ...] and data.dev = { ... }", Corpus)
            lines += _section("[data.filter]", FilterConfig)
        if name == "model":
            sizes = [
                f"`{preset}`: " + ", ".join(f"{k} {v}" for k, v in keys.items()) for preset, keys in PRESETS.items()
            ]
            lines += ["", "`preset` stands for the sizes of a known transformer; keys beside it win:", ""]
            lines += [f"- {size}" for size in sizes]
    return "\n".join(lines) + "\n"


def _section(name: str, model: type[BaseModel]) -> list[str]:
    lines = [
        "",
        f"## `{name}`",
        "",
        (model.__doc__ or "").strip().split("\n")[0],
        "",
        "| key | default | |",
        "|---|---|---|",
    ]
    for key, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "(required)" if default is PydanticUndefined else "none" if default is None else f"`{_toml(default)}`"
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        accepted = f" One of: {', '.join(choices)}." if len(choices) > 1 else ""
        lines.append(f"| `{key}` | {shown} | {field.description or ''}{accepted} |")
    return lines


def _toml(value: object) -> str:
    match value:
        case BaseModel():
            return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.model_dump().items()) + " }"
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case _:
            return str(value)


if __name__ == "__main__":
    print(recipe_reference(), end="")
