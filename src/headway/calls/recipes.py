"""Prepare the data of a validated recipe, train it, or distill it, for the Python functions and the commands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headway.corpus.cleaning.hint import cleaning_hint
from headway.data.store_builder import Shard
from headway.distillation import distill as translate_corpora
from headway.errors import HeadwayError
from headway.tasks import task_of
from headway.torchrun import is_first_start, is_main_process
from headway.training import loop
from headway.training.fine_tuning import complete_recipe
from headway.training.loop import Result
from headway.training.prepare import warm_up_kernels
from headway.training.previous_run import move_previous_run_aside
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.task import RunData


def train_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    fresh: bool,
    listener: Listener,
    stop: threading.Event | None = None,
    write_data: Callable[[], None] | None = None,
) -> Result:
    """Train a recipe in a run folder, or resume the run there; :func:`train` and ``headway train`` call this.

    Args:
        recipe: The recipe.
        folder: The run folder.
        fresh: Whether to start over. An earlier run is moved aside.
        listener: Receives messages and progress.
        stop: Event that ends training after the current step once it is set.
        write_data: Function that writes corpora passed from memory into the run folder. None if the corpora are files.
    """
    with move_previous_run_aside(folder, fresh, listener.on_message):
        if write_data is not None and is_main_process():
            write_data()
        _say_cleaning_hint(recipe, folder, listener.on_message)
        return loop.train(task_of(recipe), recipe, folder, listener=listener, stop=stop)


def distill_recipe(
    teacher: str | Path,
    recipe: Recipe,
    folder: Path,
    *,
    beam_size: int,
    keep_original: bool,
    fresh: bool,
    listener: Listener,
    stop: threading.Event | None = None,
    write_data: Callable[[], None] | None = None,
) -> Result:
    """Train a recipe on the translations of a teacher; :func:`distill` and ``headway distill`` call this.

    See :func:`distill` and :func:`train_recipe` for the arguments.
    """
    with move_previous_run_aside(folder, fresh, listener.on_message) as earlier:
        if write_data is not None and is_main_process():
            write_data()
        student = translate_corpora(
            teacher,
            complete_recipe(recipe, folder),
            folder,
            beam_size=beam_size,
            keep_original=keep_original,
            listener=listener,
            reused_run=earlier,
        )
        return loop.train(task_of(student), student, folder, listener=listener, stop=stop)


def prepare_recipe(
    recipe: Recipe, folder: Path, *, shard: Shard | None = None, listener: Listener | None = None
) -> RunData | None:
    """Train the tokenizer and tokenize the corpora of a recipe ahead of training; ``headway prepare`` calls this.

    Args:
        recipe: The recipe.
        folder: The run folder.
        shard: The part to prepare; None means everything. All parts share the run folder.
        listener: Receives messages and progress.

    Returns:
        The prepared data, or None if other parts are not prepared yet.
    """
    listener = listener or Listener()
    task, recipe = task_of(recipe), complete_recipe(recipe, folder)
    _say_cleaning_hint(recipe, folder, listener.on_message)
    prepared = task.prepare(recipe, folder, listener, shard or Shard())
    if prepared is not None:
        warm_up_kernels(task, recipe, prepared, listener)
    return prepared


def _say_cleaning_hint(recipe: Recipe, run: Path, say: Callable[[str], None]) -> None:
    """Report how to clean the corpus if more than 1 % of a sample of its pairs look wrong.

    Do nothing for tasks other than translation, or if the corpus has already been tokenized.
    """
    if recipe.capability != "translates" or (run / "tokens").exists() or not (is_main_process() and is_first_start()):
        return
    with suppress(HeadwayError):  # training will report the error
        task = dict(recipe.task)
        languages = task.get("source_language"), task.get("target_language")
        hint = cleaning_hint(recipe.data.train, Path(recipe.data.folder), languages)
        if hint is not None and hint.is_needed:
            say(str(hint))
