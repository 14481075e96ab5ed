"""``headway distill``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.train import RecipeOverrides, move_previous_run_aside, print_next_command, resume_command
from headway.errors import ConfigError

__all__ = ["distill"]


def distill(
    teacher: Annotated[Path, typer.Argument(help="The teacher: a model folder.")],
    recipe: Annotated[Path, typer.Argument(help="The student's recipe: a TOML file.")],
    assignments: RecipeOverrides = None,
    run: Annotated[Path | None, typer.Option(help="The run folder; default runs/RECIPE-distilled.")] = None,
    beam_size: Annotated[int, typer.Option("--beam-size", help="Beam of the teacher's search; 1 is greedy.")] = 4,
    keep_original: Annotated[
        bool, typer.Option("--keep-original", help="Train on the original pairs as well, beside the distilled ones.")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Train from the start; an earlier run is moved aside, and its translations are used again."
        ),
    ] = False,
) -> None:
    """Train a student on what a teacher translates: sequence-level knowledge distillation.

    The teacher translates the source side of the recipe's training corpora into RUN/distilled; then the recipe is
    trained on that. Running the same command again resumes, in either part.
    """
    from headway.cli.progress import ProgressListener
    from headway.distill import distill as translate_corpora
    from headway.tasks import load_recipe, train
    from headway.train.fine_tuning import complete_recipe

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "headway distill translates in one process, but torchrun has started several; start it alone, stop it with "
            "Ctrl-C once it trains, and go on with `torchrun ... -m -- headway train RUN/recipe.toml --run RUN`"
        )
    loaded = load_recipe(recipe, assignments or [])
    folder = run or Path("runs") / f"{recipe.stem}-distilled"
    with ProgressListener() as listener, move_previous_run_aside(folder, fresh, listener.say) as earlier:
        if earlier is not None and (earlier / "distilled").is_dir():
            shutil.copytree(earlier / "distilled", folder / "distilled")
        try:
            student = translate_corpora(
                teacher,
                complete_recipe(loaded, folder),
                folder,
                beam_size=beam_size,
                keep_original=keep_original,
                listener=listener,
            )
        except KeyboardInterrupt:
            listener.say(f"stopped; what has been translated is kept, go on with: {resume_command()}")
            raise typer.Exit(130) from None
        result = train(student, folder, listener=listener)
    print_next_command(result)
