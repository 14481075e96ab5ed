"""The format of a checkpoint: a snapshot of the training state in the folder ``checkpoints/step-N``.

    model.safetensors      the weights
    optimizer.safetensors  the optimizer's moments, each named WEIGHT/MOMENT
    ema.safetensors        the moving average of the weights, if enabled in the recipe
    carried.safetensors    the state that an objective carries from batch to batch, if any
    state.json             format version, position in the data, validation score, and a checksum of each file

In memory, a snapshot contains a single dictionary of tensors, whose keys begin with ``weights/``, ``moments/``,
``ema/`` or ``carried/``.

Checkpoints are written atomically. The state of random number generators is not saved, because they are seeded by
(seed, step, micro-batch). :mod:`headway.training.checkpoints` writes checkpoints in the background and removes old
ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import BundleError, CheckpointError
from headway.storage import atomic_write_folder, checksum
from headway.weights import load_weights, read_weights, write_weights

FORMAT_VERSION = 1
_SHARDS_FOLDER = "shards"  # folder in checkpoints of sharded runs from before version 0.1.0
_FILES = {
    "weights": "model.safetensors",
    "moments": "optimizer.safetensors",
    "ema": "ema.safetensors",
    "carried": "carried.safetensors",
}  # by kind
_STATE = "state.json"
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_DAMAGE = (*_ABSENT, ValueError, KeyError, TypeError, AttributeError, RecursionError, BundleError)


@dataclass
class Progress:
    """The scalar part of the training state, stored in ``state.json`` under the names of these attributes.

    Attributes:
        step: Number of steps taken.
        epoch: Epoch of the next batch, counted from 0.
        batch: Position of the next batch in its epoch, counted from 0.
        best: Best validation score; higher is better.
        best_loss: Development loss of the best model, which breaks ties between equal scores. None if it is unknown.
        best_metric: Metric of ``best``, as named by :meth:`Task.selection_metric`. None in runs of older versions means
            ``validation.metric``.
        best_step: Step of the best validation score.
        stale: Number of validations since the best score.
        elapsed_s: Seconds spent in training steps, summed over all starts of the run.
        loss: Loss summed over all targets since the last line of metrics.
        loss_targets: Number of targets over which ``loss`` is summed.
        skipped: Number of skipped steps since the last line of metrics.
        skipped_in_a_row: Number of consecutive steps skipped most recently.
        first_loss: Training loss of the first step, per target. None if it was not finite or is unknown.
        train_loss: Training loss in the last line of metrics.
        dev_loss: Development loss in the last validation.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best: float | None = None
    best_loss: float | None = None
    best_metric: str | None = None
    best_step: int = 0
    stale: int = 0
    elapsed_s: float = 0.0
    loss: float = 0.0
    loss_targets: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    first_loss: float | None = None
    train_loss: float | None = None
    dev_loss: float | None = None


@dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint.

    Attributes:
        progress: The scalar part of the training state.
        tensors: All tensors, keyed by KIND/NAME. The kind is "weights", "moments", "ema" (the moving average of the
            weights) or "carried". The name is the public name of a weight, a name from :func:`optimizer_moments`, or a
            name chosen by the objective.
        score: Validation score of these weights, if they were validated; higher is better.
        dev_loss: Development loss of these weights, which breaks ties between equal scores.
        is_regular: False if the snapshot was taken because training was interrupted. An uninterrupted run would not
            have this checkpoint.
        counts_as_newest: False if the snapshot was taken only for its score. Such a checkpoint is not one of the newest
            checkpoints, which are kept and averaged.
    """

    progress: Progress
    tensors: dict[str, Tensor]
    score: float | None = None
    dev_loss: float | None = None
    is_regular: bool = True
    counts_as_newest: bool = True

    def tensors_of_kind(self, kind: str) -> dict[str, Tensor]:
        """Return the tensors of one kind, keyed by name (without the kind)."""
        start = f"{kind}/"
        return {key.removeprefix(start): tensor for key, tensor in self.tensors.items() if key.startswith(start)}


def prefixed_tensors(**kinds: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of all kinds in one dictionary, keyed by KIND/NAME."""
    return {f"{kind}/{name}": tensor for kind, tensors in kinds.items() for name, tensor in tensors.items()}


def optimizer_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state tensors, keyed by WEIGHT/MOMENT."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write the checkpoint ``step-N`` into ``folder`` atomically, or raise :class:`OutputError`."""
    with atomic_write_folder(folder / f"step-{snapshot.progress.step}") as aside:
        for kind in dict.fromkeys(key.partition("/")[0] for key in snapshot.tensors):
            write_weights(snapshot.tensors_of_kind(kind), aside / _FILES[kind])
        write_header(aside, snapshot)


def write_header(folder: Path, snapshot: Snapshot) -> None:
    """Write state.json, the last file of a checkpoint, with the checksums of all other files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    state: dict[str, Any] = {
        "format": FORMAT_VERSION,
        "regular": snapshot.is_regular,
        "counted": snapshot.counts_as_newest,
        "score": snapshot.score,
        "dev_loss": snapshot.dev_loss,
        "progress": asdict(snapshot.progress),
        "checksums": {path.relative_to(folder).as_posix(): checksum(path) for path in files},
    }
    state["checksum"] = _digest(state)
    (folder / _STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")


class DamageError(Exception):
    """A checkpoint is damaged; the message describes the damage."""


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """Convert errors caused by damage to :class:`DamageError`, and other read errors to :class:`CheckpointError`."""
    try:
        yield
    except _DAMAGE as error:
        raise DamageError(str(error)) from None
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror or error}); make it readable, then run the same command again"
        ) from None


def read_snapshot(path: Path) -> Snapshot:
    """Read a checkpoint and verify its checksums.

    Raises:
        DamageError: The checkpoint is damaged.
        CheckpointError: A newer version of Headway wrote it, or it was written with ``training.sharding = "full"``.
    """
    header = read_header(path)
    if any(name.startswith(f"{_SHARDS_FOLDER}/") for name in header["checksums"]):
        raise CheckpointError(
            f"{path}: its weights are split into shards, because the run used training.sharding = 'full', which "
            "version 0.1.0 removed; the run's model folders can still be used. To continue training, set "
            "training.start_from to one of them in another run folder, or start over with --fresh"
        )
    with _damage_reported(path):
        for name, expected in header["checksums"].items():
            if checksum(path / name) != expected:
                raise ValueError(f"{name} does not match its checksum")
        known = {field.name for field in fields(Progress)}
        present = {kind: file for kind, file in _FILES.items() if file in header["checksums"]}
        return Snapshot(
            progress=Progress(**{key: value for key, value in header["progress"].items() if key in known}),
            tensors=prefixed_tensors(**{kind: read_weights(path / file) for kind, file in present.items()}),
            score=header.get("score"),
            dev_loss=header.get("dev_loss"),
            is_regular=header.get("regular", True),
            counts_as_newest=header.get("counted", True),
        )


def read_header(path: Path) -> dict[str, Any]:
    """Return the content of state.json. Raises :class:`CheckpointError` if a newer version of Headway wrote it."""
    with _damage_reported(path):
        header: dict[str, Any] = json.loads((path / _STATE).read_text(encoding="utf-8"))
        if header.pop("checksum", None) not in (None, _digest(header)):
            raise ValueError(f"{_STATE} does not match its checksum")
        version = int(header["format"])
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: written by a newer version of Headway (format {version}; this version supports up to "
            f"{FORMAT_VERSION}); update Headway to resume, or start over with --fresh"
        )
    return header


def load_snapshot(snapshot: Snapshot, origin: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a snapshot's weights and moments into the model and its optimizer. ``origin`` is used in error messages."""
    load_weights(model, snapshot.tensors_of_kind("weights"), origin / _FILES["weights"])
    parameters = dict(model.named_parameters())
    counts_on_device = bool(optimizer.defaults.get("fused") or optimizer.defaults.get("capturable"))
    for name, tensor in snapshot.tensors_of_kind("moments").items():
        weight, _, key = name.rpartition("/")
        if (parameter := parameters.get(weight)) is None:
            raise CheckpointError(
                f"{origin / _FILES['moments']}: {name!r} does not belong to a weight of this model; start over with "
                "--fresh"
            )
        if key != "step" or counts_on_device:  # otherwise the counter stays on the host, where it is used at every step
            tensor = tensor.to(parameter.device)
        optimizer.state[parameter][key] = tensor


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the checkpoint folders, newest first."""
    folders = [path for path in folder.glob("step-*") if path.name[5:].isdecimal()]
    return sorted(folders, key=checkpoint_step, reverse=True)


def intact_headers(paths: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield each checkpoint with an intact state.json, and the content of this file."""
    for path in paths:
        with suppress(DamageError):
            yield path, read_header(path)


def averageable_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that were not taken only for their score, newest first."""
    return [path for path, header in intact_headers(checkpoint_folders(folder)) if header.get("counted", True)]


def checkpoint_step(path: Path) -> int:
    """Return the step after which a checkpoint was saved."""
    return int(path.name.removeprefix("step-"))


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """Return the mean weights of several checkpoints (Vaswani et al. 2017, section 6.1), summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        try:
            weights = read_snapshot(path).tensors_of_kind("weights")
        except DamageError as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); remove this folder and run the command again"
            ) from None
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def _digest(header: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(header, sort_keys=True).encode()).hexdigest()
