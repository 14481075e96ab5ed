"""``headway distill``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.model_folders import MODEL
from headway.cli.training_runs import (
    print_next_command,
    resume_command,
    use_huge_pages,
    with_device_assignment,
)

GROUP = CommandGroup.TRAIN


def distill(
    teacher: Annotated[Path, typer.Argument(help="The teacher: a model folder, or hf:NAME."), MODEL],
    recipe: Annotated[Path, typer.Argument(help="The student's recipe: a TOML file.")],
    assignments: options.RecipeOverridesOption = None,
    device: options.TrainingDeviceOption = None,
    run: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/RECIPE-distilled.")] = None,
    beam_size: Annotated[int, typer.Option("--beam-size", help="The teacher's beam size; 1 is greedy search.")] = 4,
    keep_original: Annotated[bool, typer.Option("--keep-original", help="Also train on the original pairs.")] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Start from scratch. An earlier run is moved aside, and its translations are reused."
        ),
    ] = False,
) -> None:
    """Train a student on a teacher's translations: sequence-level knowledge distillation.

    The teacher translates the source side of the recipe's training corpora into RUN/distilled. Then the student is
    trained on these translations. If either part is interrupted, run the same command again to resume.
    """
    use_huge_pages()
    from headway.calls.progress import ProgressListener
    from headway.calls.recipes import distill_recipe
    from headway.hardware import keep_freed_memory
    from headway.tasks import load_recipe

    loaded = load_recipe(recipe, with_device_assignment(assignments, device))
    keep_freed_memory()
    with ProgressListener() as listener:
        try:
            result = distill_recipe(
                teacher,
                loaded,
                run or Path("runs") / f"{recipe.stem}-distilled",
                beam_size=beam_size,
                keep_original=keep_original,
                fresh=fresh,
                listener=listener,
            )
        except KeyboardInterrupt:
            listener.on_message(f"stopped; finished translations are kept; resume with: {resume_command()}")
            raise typer.Exit(130) from None
    print_next_command(result)
