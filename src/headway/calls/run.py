"""A training run as a Python object. Its model, metrics and scores are read from its folder."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from headway.bundle import CHOSEN_MODEL_FILE, find_model_folder
from headway.config import read_toml
from headway.errors import BundleError, CheckpointError, ConfigError
from headway.notebook_html import badge, join_fragments, line_plot, paragraph, table, text
from headway.tasks import load, parse_saved_recipe
from headway.training.averaging import average_checkpoints
from headway.training.recipe import Recipe
from headway.training.report import Scores
from headway.training.snapshot import checkpoint_folders, intact_headers


@dataclass(frozen=True)
class Run:
    """A training run, as returned by :func:`headway.train` and :func:`headway.open_run`.

    All attributes except ``interrupted`` and ``divergence`` are read from the folder when they are accessed.

    Attributes:
        folder: The run folder.
        interrupted: Whether training has not finished. Training with the same arguments then resumes it.
        divergence: A description of how training has diverged and what to change. None if training has not diverged, or
            if this is unknown.
    """

    folder: Path
    interrupted: bool
    divergence: str | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, with all defaults."""
        path = self.folder / "recipe.toml"
        return parse_saved_recipe(read_toml(path), str(path))

    @property
    def step(self) -> int:
        """Number of steps of the newest checkpoint; 0 if there is none."""
        return int(_newest_progress(self.folder).get("step", 0))

    @property
    def model_folder(self) -> Path | None:
        """The folder of the final model, or of the best model so far. None if no model has been written yet."""
        return find_model_folder(self.folder)

    @cached_property
    def model(self) -> Any:
        """The model, as :func:`headway.load` returns it, on a GPU if there is one.

        Raises:
            BundleError: Training has not written a model yet.
        """
        folder = self.model_folder
        if folder is None:
            raise BundleError(
                "no model yet", where=str(self.folder), hint="the first validation writes one, or the end of training"
            )
        return load(folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The records of metrics.jsonl, in the order in which they were written; empty if there are none yet.

        Each record contains ``kind`` ("train", "dev", and at the end "average" or "ema"), ``step`` and metrics:
        ``loss`` in nats per target token, ``learning_rate``, ``target_tokens_per_s``, ``elapsed_s``, scores and their
        signatures.
        """
        try:
            lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        records = []
        for line in lines:
            try:
                records.append(json.loads(line))
            except ValueError:  # another process is writing this line
                break
        return records

    @property
    def scores(self) -> Scores:
        """The development scores of ``model_folder``'s model and their signatures; empty without a development set."""
        folder = self.model_folder
        if folder is None:
            return {}
        kind, step = folder.name, None
        if folder.name == "best":
            kind, step = "dev", _newest_progress(self.folder).get("best_step")
        records = [
            record for record in self.metrics if record["kind"] == kind and (step is None or record["step"] == step)
        ]
        return {key: value for key, value in records[-1].items() if key not in ("kind", "step")} if records else {}

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.2f}" for name, value in self.scores.items() if isinstance(value, float))
        state = "interrupted" if self.interrupted else "finished"
        return f"<Run {str(self.folder)!r}: {state} at step {self.step:,}{', ' * bool(scores)}{scores}>"

    def _repr_html_(self) -> str:
        records, scores = self.metrics, self.scores
        state = "interrupted" if self.interrupted else "finished"
        parts = [paragraph(f"<b>{text(str(self.folder))}</b> {badge(state)} step {self.step:,}")]
        numbers = [(name, f"{value:.4g}") for name, value in scores.items() if isinstance(value, float)]
        if numbers:
            parts.append(table(("development score", ""), numbers, numbers=(1,)))
        for kind, title in (("train", "training loss"), ("dev", "development loss")):
            points = [(record["step"], record["loss"]) for record in records if record["kind"] == kind]
            parts.append(line_plot(points, title))
        if self.divergence is not None:
            parts.append(paragraph(text(self.divergence)))
        if self.interrupted:
            command = (
                f"headway train {shlex.quote(str(self.folder / 'recipe.toml'))} --run {shlex.quote(str(self.folder))}"
            )
            parts.append(paragraph(f"To resume, run the same call again, or <code>{escape(command)}</code>", note=True))
        return join_fragments(*parts)


def open_run(folder: str | Path) -> Run:
    """Open a run folder written by :func:`headway.train` or ``headway train``, even while training is in progress.

    Raises:
        CheckpointError: ``folder`` is not a run folder.
    """
    folder = Path(folder)
    if not (folder / "recipe.toml").is_file():
        raise CheckpointError("no run folder: it has no recipe.toml", where=str(folder), accepted="a folder of a run")
    run = Run(folder, interrupted=True)
    progress, recipe = _newest_progress(folder), run.recipe
    patience = recipe.validation.patience
    is_out_of_patience = patience is not None and progress.get("stale", 0) >= patience
    is_at_end = progress.get("step", 0) >= recipe.training.steps or is_out_of_patience
    return Run(folder, interrupted=not (is_at_end and (folder / CHOSEN_MODEL_FILE).is_file()))


def _newest_progress(folder: Path) -> dict[str, Any]:
    """Return the numbers in the newest checkpoint of a run, or an empty dictionary if there is no checkpoint."""
    headers = intact_headers(checkpoint_folders(folder / "checkpoints"))
    return next((dict(header["progress"]) for _, header in headers), {})


def resolve_model(model: Any, device: str = "auto") -> Any:
    """Return the model for a function's ``model`` argument: a run, the folder of a run or of a model, or a model."""
    if isinstance(model, Run):
        return model.model
    if not isinstance(model, (str, Path)):
        return model
    folder = Path(model)
    inside = None if (folder / "config.json").is_file() else find_model_folder(folder)
    return load(inside or folder, device=device)


def average(run: str | Path | Run, *, last: int = 5, output: str | Path | None = None) -> Path:
    """Average the newest checkpoints of a run into a model folder, and return the folder.

    Args:
        run: A run, or its folder.
        last: Number of newest checkpoints to average. If there are fewer, all are averaged.
        output: The model folder to write. None means ``average`` in the run folder.

    Raises:
        ConfigError: ``last`` is less than 1.
        CheckpointError: The run has no checkpoint, or no model yet.
    """
    if last < 1:
        raise ConfigError(f"last = {last}: expected 1 or more")
    home = run.folder if isinstance(run, Run) else Path(run)
    folder = home / "average" if output is None else Path(output)
    average_checkpoints(home, last, folder)
    return folder
