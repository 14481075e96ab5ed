"""``headway train``."""

from __future__ import annotations

from pathlib import Path

from headway.cli import options
from headway.cli.command_groups import CommandGroup
from headway.cli.training_runs import print_next_command, say_cleaning_hint, use_huge_pages, with_device

GROUP = CommandGroup.TRAIN


def train(
    recipe: options.RecipeFile,
    assignments: options.RecipeOverrides = None,
    device: options.TrainingDeviceOption = None,
    run: options.RunFolder = None,
    fresh: options.FreshOption = False,
) -> None:
    """Train a model. Running the same command again resumes an interrupted run."""
    use_huge_pages()
    from headway.cli.progress import ProgressListener
    from headway.hardware import keep_freed_memory
    from headway.tasks import load_recipe, task_of
    from headway.training.loop import train as run_training
    from headway.training.previous_run import move_previous_run_aside

    keep_freed_memory()
    loaded = load_recipe(recipe, with_device(assignments, device))
    task = task_of(loaded)
    folder = run or Path("runs") / recipe.stem
    with ProgressListener(task.throughput_unit) as listener, move_previous_run_aside(folder, fresh, listener.say):
        say_cleaning_hint(loaded, folder, listener.say)
        result = run_training(task, loaded, folder, listener=listener)
    print_next_command(result, task.command)
