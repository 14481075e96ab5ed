"""The training state: all that changes, and how it is saved and found again.

A checkpoint is a folder ``checkpoints/step-N`` with the weights, the optimiser's moments and ``state.json``: the
position in the data, the best score so far, and a checksum of each file. It appears whole or not at all. Random
numbers need no state: they are seeded from (seed, step, micro-batch).
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.bundle import load_weights, named_weights, read_weights, write_weights
from headway.errors import BundleError, CheckpointError
from headway.storage import replaced_folder

__all__ = ["Progress", "average_weights", "checkpoint_folders", "restore", "save"]

_WEIGHTS, _MOMENTS, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass
class Progress:
    """Where training stands: numbers only.

    ``epoch`` and ``batch`` are the position of the next batch. ``best`` is the best validation score (higher is
    better), ``stale`` the number of validations since. ``elapsed_s`` is time spent training, over all resumptions.
    ``loss`` is summed over ``loss_targets`` tokens since the last record of metrics.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    elapsed_s: float = 0.0
    loss: float = 0.0
    loss_targets: int = 0


def save(
    folder: Path,
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    keep: int,
    *,
    regular: bool = True,
) -> Path:
    """Write ``step-N`` into ``folder``, then remove all but the ``keep`` newest.

    A checkpoint that an interruption left between two intervals is not ``regular``: it goes at the next save, because a
    run without the interruption would not have it to average. Later steps than this one are damaged, or they would have
    been resumed from: they go too.
    """
    path = folder / f"step-{progress.step}"
    with replaced_folder(path) as aside:
        write_weights(named_weights(model), aside / _WEIGHTS)
        write_weights(_moments(model, optimizer), aside / _MOMENTS)
        checksums = {name: _checksum(aside / name) for name in (_WEIGHTS, _MOMENTS)}
        content = {"format": 1, "regular": regular, "progress": asdict(progress), "checksums": checksums}
        content["checksum"] = _digest(content)
        (aside / _STATE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    found = checkpoint_folders(folder)
    worth_keeping = [old for old in found if old == path or (_step_of(old) < progress.step and _is_regular(old))]
    for old in set(found) - set(worth_keeping[:keep]):
        shutil.rmtree(old, ignore_errors=True)
    for stray in folder.glob(".step-*"):  # what a killed process left of a save
        shutil.rmtree(stray, ignore_errors=True)
    return path


def _is_regular(path: Path) -> bool:
    try:
        return bool(json.loads((path / _STATE).read_text(encoding="utf-8")).get("regular", True))
    except _DAMAGE:
        return False


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Load the newest checkpoint that is whole, or None where there is none. A damaged one is named in a warning."""
    damaged: list[Path] = []
    for path in checkpoint_folders(folder):
        try:
            progress = _read_progress(path)
            weights, moments = read_weights(path / _WEIGHTS), read_weights(path / _MOMENTS)
        except (*_DAMAGE, BundleError) as error:
            warnings.warn(f"{path} is damaged ({error}); trying the one before it", stacklevel=2)
            damaged.append(path)
            continue
        load_weights(model, weights, path / _WEIGHTS)
        _load_moments(model, optimizer, moments, path)
        return progress
    if damaged:
        raise CheckpointError(f"{folder}: every checkpoint is damaged; start over with --fresh")
    return None


def checkpoint_folders(folder: Path) -> list[Path]:
    """The checkpoints, newest first."""
    found = [path for path in folder.glob("step-*") if path.name[5:].isdecimal()]
    return sorted(found, key=_step_of, reverse=True)


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (Vaswani et al. 2017, section 6.1), summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        try:
            _read_progress(path)
        except _DAMAGE as error:
            raise CheckpointError(f"{path} is damaged ({error}); remove that folder and run again") from None
        for name, tensor in read_weights(path / _WEIGHTS).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def _read_progress(path: Path) -> Progress:
    content = json.loads((path / _STATE).read_text(encoding="utf-8"))
    if content.pop("checksum", None) not in (None, _digest(content)):
        raise ValueError(f"{_STATE} does not match its checksum")
    for name, checksum in content["checksums"].items():
        if _checksum(path / name) != checksum:
            raise ValueError(f"{name} does not match its checksum")
    known = {field.name for field in fields(Progress)}
    return Progress(**{key: value for key, value in content["progress"].items() if key in known})


def _digest(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors, named by the weight they belong to."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


def _load_moments(model: nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor], path: Path) -> None:
    parameters = dict(model.named_parameters())
    for name, tensor in moments.items():
        weight, _, key = name.rpartition("/")
        if weight not in parameters:
            raise CheckpointError(
                f"{path / _MOMENTS}: {name!r} belongs to no weight of this model; start over with --fresh"
            )
        optimizer.state[parameters[weight]][key] = tensor.to(parameters[weight].device)
