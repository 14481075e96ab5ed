"""The model card: the README.md of a model folder, with the model's data, scores, versions and recipe."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from headway.config import to_toml
from headway.models.base import Model
from headway.training.recipe import Recipe
from headway.training.report import Scores, format_number
from headway.training.snapshot import Progress
from headway.training.task import RunData, Task
from headway.version import __version__

_PACKAGES = ("torch", "tokenizers", "sacrebleu")


def model_card(
    task: Task[Any, Any, Any], recipe: Recipe, progress: Progress, scores: Scores, prepared: RunData, model: Model
) -> str:
    """Return the text of a model folder's README.md."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    files = ", ".join(corpus.shown_files for corpus in recipe.data.train)
    versions = ", ".join([f"headway {__version__}", *(f"{name} {version(name)}" for name in _PACKAGES)])
    title, data = task.describe_for_model_card(recipe, prepared)
    shown = recipe.as_dict()
    del shown["data"]["folder"]  # a path on one machine
    score_lines = "\n".join(
        f"- {name}: {format_number(value)}"
        + (f" ({signature})" if (signature := scores.get(f"{name} signature")) else "")
        for name, value in scores.items()
        if isinstance(value, float)
    )
    return f"""# {title}

A {recipe.model.kind} with {weights:,} weights, trained with Headway for {progress.step:,} steps
({progress.epoch + 1} epochs begun, {progress.elapsed_s / 60:.1f} minutes of training steps).

    headway {task.command} THIS_FOLDER -i input.txt -o output.txt

## Data

{data} from {files}.

## Scores on the development set

{score_lines or "No scores were computed."}

## Versions

{versions}, Python {platform.python_version()}, {platform.machine()}

## Recipe

```toml
{to_toml(shown).strip()}
```
"""
