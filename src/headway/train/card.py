"""The model card: the README.md of a model folder, made from what the run knows."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from headway.config import to_toml
from headway.models.registry import Model
from headway.train.prepare import Prepared
from headway.train.recipe import Recipe
from headway.train.state import Progress

__all__ = ["model_card"]

_PACKAGES = ("headway", "torch", "tokenizers", "sacrebleu")


def model_card(
    recipe: Recipe, progress: Progress, scores: dict[str, float | str], prepared: Prepared, model: Model
) -> str:
    """What the model is, what it learned from, how well it does and how to repeat it."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    files = ", ".join(file for corpus in recipe.data.train for file in corpus.files)
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return f"""# {_title(recipe, prepared)}

A {recipe.model.kind} with {weights:,} weights, trained with Headway for {progress.step:,} steps
({progress.epoch + 1} epochs begun, {progress.elapsed_s / 60:.1f} minutes of training steps).

    headway {"classify" if prepared.labels else "translate"} THIS_FOLDER -i input.txt -o output.txt

## Data

{_data(prepared)} from {files}.

## Scores on the development set

{_score_lines(scores)}

## Versions

{versions}, Python {platform.python_version()}, {platform.machine()}

## Recipe

```toml
{to_toml(_shown(recipe)).strip()}
```
"""


def _title(recipe: Recipe, prepared: Prepared) -> str:
    if prepared.labels:
        return f"Classification of texts as {', '.join(prepared.labels)}"
    return f"Translation from {recipe.task.source_language} to {recipe.task.target_language}"


def _data(prepared: Prepared) -> str:
    data = prepared.train
    if prepared.labels:
        counts = ", ".join(f"{label} {count:,}" for label, count in prepared.labels.items())
        return f"{len(data):,} texts ({data.num_tokens('source'):,} tokens; {counts})"
    sources, targets = data.num_tokens("source"), data.num_tokens("target")
    return f"{len(data):,} pairs ({sources:,} source and {targets:,} target tokens)"


def _shown(recipe: Recipe) -> dict[str, Any]:
    """The recipe without the place of its files on one machine."""
    shown = recipe.as_dict()
    del shown["data"]["folder"]
    return shown


def _score_lines(scores: dict[str, float | str]) -> str:
    lines = []
    for name, value in scores.items():
        if isinstance(value, float):
            signature = scores.get(f"{name} signature")
            lines.append(f"- {name}: {value:.2f}" + (f" ({signature})" if signature else ""))
    return "\n".join(lines) or "None were computed."
