"""Train from Python. The recipe is a file, a table or keyword arguments, and the data are in files or in memory.

Examples from memory are written to ``data/`` in the run folder, and the run's recipe names these files. A run on
examples from memory therefore gives the same weights as a run on files. It can also be resumed by ``headway train
RUN/recipe.toml --run RUN``, and it rejects different data just as it rejects a changed file.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headway.calls.events import EventListener, TrainingEvent
from headway.calls.progress import show_training_progress
from headway.calls.recipes import distill_recipe, train_recipe
from headway.calls.run import Run
from headway.config import apply_overrides, read_toml
from headway.data.in_memory import write_examples
from headway.data.store import fingerprint
from headway.storage import lock_run_folder
from headway.tasks import parse_recipe, task_of
from headway.training.host_state import preserve_host_state
from headway.training.loop import Result
from headway.training.recipe import Recipe
from headway.training.snapshot import checkpoint_folders

# The column names of corpora, which are also the values of an example in memory, by the capability of the task's
# models.
_COLUMNS = {"translates": ("source", "target"), "labels": ("text", "label"), "continues": ("text",), "fills": ("text",)}
Table = Mapping[str, Any]


def train(
    recipe: str | Path | Table | None = None,
    *,
    train: Any = None,
    dev: Any = None,
    run: str | Path | None = None,
    overrides: Sequence[str] = (),
    fresh: bool = False,
    on_progress: Callable[[TrainingEvent], object] | None = None,
    progress: bool = True,
    task: Table | None = None,
    data: Table | None = None,
    tokenizer: Table | None = None,
    model: Table | None = None,
    optimizer: Table | None = None,
    training: Table | None = None,
    validation: Table | None = None,
    checkpoints: Table | None = None,
) -> Run:
    """Train a model, or resume an interrupted run in the same run folder.

    An interruption (Ctrl-C, or the notebook's stop button) ends training after the current step, saves a checkpoint,
    and returns a run with ``interrupted`` set. The same call then resumes training, with the same result as without an
    interruption. A second interruption has its usual effect. The states of random number generators, warnings, signals
    and the environment are restored at the end.

    Args:
        recipe: A recipe file, or its sections as a table; see docs/recipe.md. None means the defaults.
        train: Training examples from memory instead of ``data.train``: pairs (source, target), or (text, label) for
            classification, or texts for language models. They may be any iterable, a mapping of columns, a data frame
            or a Hugging Face dataset; see :mod:`headway.data.in_memory`. They are iterated over once.
        dev: Development examples, instead of ``data.dev``.
        run: The run folder. Default: ``runs/NAME``, where NAME is the name of the recipe file. Without a file, NAME is
            the kind of task and a hash of the recipe, so that different options get different folders.
        overrides: Changes to the recipe, such as "training.steps=500".
        fresh: Whether to start over. An earlier run is moved aside.
        on_progress: Function that receives events (:mod:`headway.calls.events`). ``event.stop()`` ends training after
            the current step, as an interruption does. If the function raises an exception, the state is saved before
            the exception is raised again.
        progress: Whether to show a progress bar in a terminal or below a notebook cell. Elsewhere, nothing is written.
        task: Keys of the section ``task``. They take precedence over the keys in ``recipe``.
        data: Keys of the section ``data``.
        tokenizer: Keys of the section ``tokenizer``.
        model: Keys of the section ``model``.
        optimizer: Keys of the section ``optimizer``.
        training: Keys of the section ``training``.
        validation: Keys of the section ``validation``.
        checkpoints: Keys of the section ``checkpoints``.

    Raises:
        ConfigError: The recipe is invalid.
        DataError: Examples are missing or damaged. For examples in memory, the message contains their index, counted
            from 0.
        CheckpointError: The folder contains a run with another recipe or other data, or another process is training in
            it.
        TrainingError: Training cannot continue.
    """
    sections = {
        "task": task, "data": data, "tokenizer": tokenizer, "model": model, "optimizer": optimizer,
        "training": training, "validation": validation, "checkpoints": checkpoints,
    }  # fmt: skip
    plan = _plan(recipe, sections, overrides, run, suffix="")
    return _carry_out(plan, {"train": train, "dev": dev}, fresh, on_progress, progress, train_recipe)


def distill(
    teacher: str | Path,
    recipe: str | Path | Table,
    *,
    train: Any = None,
    dev: Any = None,
    run: str | Path | None = None,
    beam_size: int = 4,
    keep_original: bool = False,
    overrides: Sequence[str] = (),
    fresh: bool = False,
    on_progress: Callable[[TrainingEvent], object] | None = None,
    progress: bool = True,
) -> Run:
    """Train a student on a teacher's translations of the training sources (sequence-level knowledge distillation).

    Args:
        teacher: The teacher's model folder.
        recipe: The student's recipe.
        train: In-memory training pairs; see :func:`train`.
        dev: Development pairs from memory.
        run: The run folder. Default: as for :func:`train`, with the suffix "-distilled".
        beam_size: The teacher's beam size; 1 is greedy search.
        keep_original: Whether the student also learns from the original targets.
        overrides: Changes to the recipe.
        fresh: Whether to start over. The teacher's translations of an earlier run are reused.
        on_progress: Function that receives events, as for :func:`train`.
        progress: Whether to show a progress bar, as for :func:`train`.

    Raises:
        ConfigError: A recipe or an option is invalid, or the task is not translation.
        BundleError: ``teacher`` is not a model folder.
        CheckpointError: The run was started with another teacher, another recipe or other data.
    """
    plan = _plan(recipe, {}, overrides, run, suffix="-distilled")
    run_recipe = partial(distill_recipe, teacher, beam_size=beam_size, keep_original=keep_original)
    return _carry_out(plan, {"train": train, "dev": dev}, fresh, on_progress, progress, run_recipe)


@dataclass(frozen=True)
class _Plan:
    """A recipe before it is validated, its origin for messages, and the run folder."""

    sections: dict[str, Any]
    origin: str
    folder: Path


def _plan(
    recipe: str | Path | Table | None,
    sections: Mapping[str, Table | None],
    overrides: Sequence[str],
    run: str | Path | None,
    suffix: str,
) -> _Plan:
    """Return the recipe with all changes, and the run folder. Its default name ends with ``suffix``."""
    path = Path(recipe) if isinstance(recipe, (str, Path)) else None
    table = recipe if isinstance(recipe, Mapping) else {}
    whole = dict(table) if path is None else read_toml(path)
    for name, keys in sections.items():
        if keys is not None:
            whole[name] = {**whole.get(name, {}), **keys}
    whole = apply_overrides(whole, overrides)
    if run is None:
        kind = whole.get("task", {}).get("kind", "translation")
        digest = fingerprint(json.dumps(whole, sort_keys=True))[:8]
        run = Path("runs") / ((f"{kind}-{digest}" if path is None else path.stem) + suffix)
    return _Plan(whole, "recipe" if path is None else str(path), Path(run))


def _carry_out(
    plan: _Plan,
    examples: Mapping[str, Any],
    fresh: bool,
    on_progress: Callable[[TrainingEvent], object] | None,
    progress: bool,
    run_recipe: Callable[..., Result],
) -> Run:
    """Train as planned. Use the ``examples`` from memory that are not None.

    ``run_recipe`` is :func:`train_recipe` or a function like it.
    """
    stop, folder = threading.Event(), plan.folder
    in_memory = {key: part for key, part in examples.items() if part is not None}
    result = None
    with preserve_host_state():
        recipe = parse_recipe(_with_corpora(plan.sections, folder, in_memory), plan.origin)
        recipe.refuse_options_without_effect(plan.origin)
        write_data = partial(_write_corpora, in_memory, folder, recipe) if in_memory else None
        with show_training_progress(task_of(recipe).throughput_unit, progress) as shown:
            listener = EventListener(on_progress or (lambda _: None), folder, stop, shown)
            try:
                result = run_recipe(recipe, folder, fresh=fresh, listener=listener, stop=stop, write_data=write_data)
            except KeyboardInterrupt:
                if stop.is_set():  # the second interruption
                    raise
            listener.on_finished(result.step if result else 0, result is None or result.interrupted)
    if listener.error is not None:
        raise listener.error
    if result is None:
        return Run(folder, interrupted=True)
    if result.divergence is not None:
        warnings.warn(result.divergence, stacklevel=3)
    return Run(folder, result.interrupted, result.divergence)


def _with_corpora(sections: Mapping[str, Any], folder: Path, in_memory: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe with the files of examples from memory as its corpora. The corpora keep their languages."""
    data = dict(sections.get("data", {}))
    home = folder / "data"
    if all(key in in_memory or not data.get(key) for key in ("train", "dev")):
        data["folder"], home = str(home), Path()
    elif in_memory:  # file paths would be relative to another folder
        home = home.resolve()
    for key in in_memory:
        replaced = data.get(key) or []
        tables = [table for table in ([replaced] if key == "dev" else replaced) if isinstance(table, Mapping)]
        languages = {name: {table.get(name) for table in tables} for name in ("source_language", "target_language")}
        kept = {name: values.pop() for name, values in languages.items() if len(values) == 1}
        corpus = {"files": [str(home / f"{key}.jsonl")]} | {name: value for name, value in kept.items() if value}
        data[key] = corpus if key == "dev" else [corpus]
    return {**sections, "data": data}


def _write_corpora(in_memory: Mapping[str, Any], folder: Path, recipe: Recipe) -> None:
    """Write the examples from memory into the run folder, unless the run was started with other examples."""
    has_begun = bool(checkpoint_folders(folder / "checkpoints"))
    languages = (recipe.task.source_language, recipe.task.target_language)
    with lock_run_folder(folder):  # another process may be training there
        for key, part in in_memory.items():
            path, columns = folder / "data" / f"{key}.jsonl", _COLUMNS[recipe.capability]
            write_examples(part, path, columns, key, languages=languages if len(columns) == 2 else (), keep=has_begun)
