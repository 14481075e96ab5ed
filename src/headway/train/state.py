"""The training state: all that changes, and how it is written down and read again.

A checkpoint is a folder ``checkpoints/step-N``:

    model.safetensors      the weights
    optimizer.safetensors  the optimiser's moments, each named WEIGHT/MOMENT
    ema.safetensors        the moving average of the weights, where the recipe asks for one
    state.json             format version, position in the data, validation score, and a checksum of each file

Where the state is split over processes, a folder ``shards`` takes the place of the first three; see
:mod:`headway.train.sharding`. Either is read by one process as by many.

It appears whole or not at all. Random numbers need no state: they are seeded from (seed, step, micro-batch). Which
checkpoints stay, and when they are written, is decided in :mod:`headway.train.checkpoints`.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.bundle import load_weights, placed_like, read_weights, write_weights
from headway.errors import BundleError, CheckpointError
from headway.storage import atomic_write_folder, checksum

__all__ = [
    "DamageError",
    "Progress",
    "Snapshot",
    "average_weights",
    "checkpoint_folders",
    "counted_checkpoints",
    "header_of",
    "load",
    "moments",
    "read",
    "read_header",
    "sound_headers",
    "step_of",
    "write",
    "write_header",
]

FORMAT = 1
SHARDS = "shards"
_WEIGHTS, _MOMENTS, _EMA, _STATE = "model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_DAMAGE = (*_ABSENT, ValueError, KeyError, TypeError, AttributeError, RecursionError, BundleError)


@dataclass
class Progress:
    """Where training stands: numbers only.

    ``epoch`` and ``batch`` are the position of the next batch. ``best`` is the best validation score (higher is
    better), ``stale`` the number of validations since. ``elapsed_s`` is time spent training, over all resumptions.
    ``loss`` is summed over ``loss_targets`` tokens since the last record of metrics, and ``skipped`` counts the steps
    without effect since; ``skipped_in_a_row`` those up to now.
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
    skipped: int = 0
    skipped_in_a_row: int = 0


@dataclass(frozen=True)
class Snapshot:
    """All that a checkpoint holds.

    ``score`` is the validation score of these weights, if they were validated; higher is better. A snapshot that an
    interruption took between two intervals is not ``regular``: a run without the interruption would not have it. One
    that was taken for its score alone is not ``counted`` among the newest, which are averaged.
    """

    progress: Progress
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    ema: dict[str, Tensor] | None = None
    score: float | None = None
    regular: bool = True
    counted: bool = True


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's tensors, named by the weight they belong to."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }


def write(folder: Path, snapshot: Snapshot) -> Path:
    """Write ``step-N`` into ``folder``, whole or not at all; :class:`OutputError` where there is no room."""
    tensors = {_WEIGHTS: snapshot.weights, _MOMENTS: snapshot.moments}
    if snapshot.ema is not None:
        tensors[_EMA] = snapshot.ema
    path = folder / f"step-{snapshot.progress.step}"
    with atomic_write_folder(path) as aside:
        for name, content in tensors.items():
            write_weights(content, aside / name)
        write_header(aside, header_of(snapshot))
    return path


def header_of(snapshot: Snapshot) -> dict[str, Any]:
    """What state.json holds beside checksums."""
    facts = {"regular": snapshot.regular, "counted": snapshot.counted, "score": snapshot.score}
    return {"format": FORMAT, **facts, "progress": asdict(snapshot.progress)}


def write_header(folder: Path, header: dict[str, Any]) -> None:
    """Write state.json into a checkpoint whose other files are there: the last one."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    state = {**header, "checksums": {path.relative_to(folder).as_posix(): checksum(path) for path in files}}
    state["checksum"] = _digest(state)
    (folder / _STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")


class DamageError(Exception):
    """A checkpoint is not what was written; the message says why."""


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """What is not as it was written is damage; what cannot be read now may be sound, so training must not pass it."""
    try:
        yield
    except _DAMAGE as error:
        raise DamageError(str(error)) from None
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror or error}); run the same command again when it can be"
        ) from None


def read(path: Path) -> Snapshot:
    """Read a checkpoint; :class:`DamageError` where it is not what was written."""
    header = read_header(path)
    with _damage_told(path):
        for name, expected in header["checksums"].items():
            if checksum(path / name) != expected:
                raise ValueError(f"{name} does not match its checksum")
        known = {field.name for field in fields(Progress)}
        sharded = any(name.startswith(f"{SHARDS}/") for name in header["checksums"])
        tensors = _read_shards(path / SHARDS) if sharded else _read_files(path, header["checksums"])
        return Snapshot(
            progress=Progress(**{key: value for key, value in header["progress"].items() if key in known}),
            weights=tensors["weights"],
            moments=tensors["moments"],
            ema=tensors.get("ema"),
            score=header.get("score"),
            regular=header.get("regular", True),
            counted=header.get("counted", True),
        )


def _read_files(path: Path, names: Iterable[str]) -> dict[str, dict[str, Tensor]]:
    files = {"weights": _WEIGHTS, "moments": _MOMENTS} | ({"ema": _EMA} if _EMA in names else {})
    return {part: read_weights(path / name) for part, name in files.items()}


def _read_shards(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The whole tensors, whoever wrote the shards."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(folder)
    flat = {
        name: torch.empty(each.size, dtype=each.properties.dtype)
        for name, each in reader.read_metadata().state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as it is asked to be
        load(flat, storage_reader=reader, no_dist=True)
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        part, _, name = key.partition("/")
        parts.setdefault(part, {})[name] = tensor
    return parts


def read_header(path: Path) -> dict[str, Any]:
    """What state.json holds; :class:`DamageError`, or :class:`CheckpointError` where a newer Headway wrote it."""
    with _damage_told(path):
        header: dict[str, Any] = json.loads((path / _STATE).read_text(encoding="utf-8"))
        if header.pop("checksum", None) not in (None, _digest(header)):
            raise ValueError(f"{_STATE} does not match its checksum")
        version = int(header["format"])
    if version > FORMAT:
        raise CheckpointError(
            f"{path}: written by a newer Headway (format {version}, this one reads up to {FORMAT}); "
            "update Headway to go on, or start over with --fresh"
        )
    return header


def load(snapshot: Snapshot, origin: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put weights and moments, read from ``origin``, where they belong."""
    load_weights(model, snapshot.weights, origin / _WEIGHTS)
    parameters = dict(model.named_parameters())
    counts_on_device = bool(optimizer.defaults.get("fused") or optimizer.defaults.get("capturable"))
    for name, tensor in snapshot.moments.items():
        weight, _, key = name.rpartition("/")
        if weight not in parameters:
            raise CheckpointError(
                f"{origin / _MOMENTS}: {name!r} belongs to no weight of this model; start over with --fresh"
            )
        stays = key == "step" and not counts_on_device  # read by the host at every step
        if not stays:
            tensor = placed_like(tensor, parameters[weight]) if tensor.dim() else tensor.to(parameters[weight].device)
        optimizer.state[parameters[weight]][key] = tensor


def checkpoint_folders(folder: Path) -> list[Path]:
    """The checkpoints, newest first."""
    found = [path for path in folder.glob("step-*") if path.name[5:].isdecimal()]
    return sorted(found, key=step_of, reverse=True)


def sound_headers(paths: Iterable[Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Those of ``paths`` whose state.json is not damaged, with what it holds."""
    for path in paths:
        with suppress(DamageError):
            yield path, read_header(path)


def counted_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that are not there for their score alone, newest first."""
    return [path for path, header in sound_headers(checkpoint_folders(folder)) if header.get("counted", True)]


def step_of(path: Path) -> int:
    """The step after which a checkpoint was taken."""
    return int(path.name.removeprefix("step-"))


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints (Vaswani et al. 2017, section 6.1), summed in float64."""
    total: dict[str, Tensor] = {}
    for path in paths:
        try:
            weights = read(path).weights
        except DamageError as error:
            raise CheckpointError(f"{path} is damaged ({error}); remove that folder and run again") from None
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def _digest(header: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(header, sort_keys=True).encode()).hexdigest()
