"""``headway train``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["move_aside", "train"]


def train(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a TOML file.")],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a value of the recipe; may be repeated."),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="The run folder; default runs/RECIPE.")] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; an earlier run is moved aside, not deleted.")
    ] = False,
) -> None:
    """Train a model. Running the same command again resumes."""
    from headway.cli.progress import ProgressListener
    from headway.train.loop import train as run_training
    from headway.train.recipe import Recipe
    from headway.validation import translation_validator

    loaded = Recipe.load(recipe, assignments or [])
    folder = run or Path("runs") / recipe.stem
    with ProgressListener() as listener:
        if fresh and folder.exists():
            listener.say(f"the earlier run is now {move_aside(folder)}")
        result = run_training(loaded, folder, validate=translation_validator(loaded), listener=listener)
    command = shlex.join(["headway", *(word for word in sys.argv[1:] if word != "--fresh")])
    if result.interrupted:
        print(f"stopped and saved after step {result.step:,}; go on with: {command}", file=sys.stderr)
        raise typer.Exit(130)
    print(f"model: {result.model}\ntranslate with: headway translate {result.model}", file=sys.stderr)


def move_aside(folder: Path) -> Path:
    """Rename a folder to the first free NAME.1, NAME.2, … and return that."""
    number = 1
    while (target := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return folder.rename(target)
