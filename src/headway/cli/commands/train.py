"""``headway train``."""

from __future__ import annotations

from pathlib import Path

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.training_runs import print_next_command, use_huge_pages, with_device_assignment

GROUP = CommandGroup.TRAIN


def train(
    recipe: options.RecipeArgument,
    assignments: options.RecipeOverridesOption = None,
    device: options.TrainingDeviceOption = None,
    run: options.RunFolderOption = None,
    fresh: options.FreshOption = False,
) -> None:
    """Train a model. Running the same command again resumes an interrupted run."""
    use_huge_pages()
    from headway.calls.progress import ProgressListener
    from headway.calls.recipes import train_recipe
    from headway.hardware import keep_freed_memory
    from headway.tasks import load_recipe, task_of

    keep_freed_memory()
    loaded = load_recipe(recipe, with_device_assignment(assignments, device))
    task = task_of(loaded)
    with ProgressListener(task.throughput_unit) as listener:
        result = train_recipe(loaded, run or Path("runs") / recipe.stem, fresh=fresh, listener=listener)
    print_next_command(result, task.command)
