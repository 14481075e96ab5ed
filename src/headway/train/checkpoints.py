"""The checkpoints of a run: written while training goes on, kept by rule, and the newest whole one found again.

A save copies the state to host memory, which takes as long as copying it, and leaves the rest (files, checksums,
flushing to the disk) to a thread that gives way to training. The copy's memory is kept for the next save: mapping it
anew would take ten times as long. One save is in flight at most.

Which checkpoints stay is a function of the regular steps and their scores alone, so that a run which was killed or
interrupted holds the same ones as a run which was not.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor, nn

from headway.bundle import named_weights
from headway.errors import CheckpointError
from headway.train import state
from headway.train.state import (
    DamageError,
    Progress,
    Snapshot,
    checkpoint_folders,
    counted_checkpoints,
    sound_headers,
    step_of,
)

__all__ = ["Checkpoints"]

_NICENESS = 10


class Checkpoints:
    """The folder ``checkpoints`` of a run; a context manager that leaves when everything is written.

    The ``keep`` newest regular and counted checkpoints are kept, and beside them the ``keep_best`` with the highest
    scores (the earliest of equal ones). An irregular one, which an interruption left between two intervals, goes at the
    next save.

    A failed write (:class:`OutputError`) is raised by the next call or on leaving; what was there before is unchanged.
    """

    def __init__(self, folder: Path, *, keep: int, keep_best: int = 0) -> None:
        self._folder, self._keep, self._keep_best = folder, keep, keep_best
        self._buffers: dict[str, Tensor] = {}
        self._writer: threading.Thread | None = None
        self._error: Exception | None = None

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            warnings.warn(str(failure), stacklevel=2)  # and what ended training goes on its way

    def save(
        self,
        progress: Progress,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        ema: Mapping[str, Tensor] | None = None,
        score: float | None = None,
        regular: bool = True,
        counted: bool = True,
    ) -> None:
        """Take a snapshot now and write ``step-N`` behind the scenes, then remove those that are not to be kept.

        ``score`` is the validation score of these weights, where they have one; higher is better. ``regular`` and
        ``counted`` are as in :class:`Snapshot`.
        """
        self.wait()
        snapshot = Snapshot(
            progress=replace(progress),
            weights=self._copied("weights", named_weights(model)),
            moments=self._copied("moments", state.moments(model, optimizer)),
            ema=None if ema is None else self._copied("ema", ema),
            score=score,
            regular=regular,
            counted=counted,
        )
        # Not a daemon: the interpreter does not end before the write does.
        self._writer = threading.Thread(target=self._write, args=(snapshot, _copies_done()), name="checkpoint")
        self._writer.start()

    def wait(self) -> None:
        """Wait for the save in flight, and raise the error it met."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def newest(self, count: int) -> list[Path]:
        """The ``count`` newest counted checkpoints, newest first, all of them whole on the disk."""
        self.wait()
        return counted_checkpoints(self._folder)[:count]

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Snapshot | None:
        """Load the newest checkpoint that is whole and return what it holds, as :meth:`find` does."""
        if (found := self.find()) is None:
            return None
        path, snapshot = found
        state.load(snapshot, path, model, optimizer)
        return snapshot

    def find(self) -> tuple[Path, Snapshot] | None:
        """The newest checkpoint that is whole, and what it holds; None where there is none.

        A damaged one is named in a warning, with the one used in its place; :class:`CheckpointError` where all are.
        """
        self.wait()
        damaged: dict[Path, str] = {}
        for path in checkpoint_folders(self._folder):
            try:
                snapshot = state.read(path)
            except DamageError as error:
                damaged[path] = str(error)
                continue
            for bad, reason in damaged.items():
                warnings.warn(f"{bad} is damaged ({reason}); going on from {path.name} instead", stacklevel=2)
            self._remove(self._superseded(snapshot.progress.step))  # a killed process did not come to that
            return path, snapshot
        if damaged:
            reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
            raise CheckpointError(
                f"{self._folder}: every checkpoint is damaged ({reasons}); "
                "put back a copy of one, or start over with --fresh"
            )
        return None

    def _copied(self, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copies in host memory, complete when what the device has been given to do so far is done."""
        copies = {}
        for name, tensor in tensors.items():
            key = f"{kind}/{name}"
            buffer = self._buffers.get(key)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._buffers[key] = buffer
            copies[name] = buffer.copy_(tensor.detach(), non_blocking=True)
        return copies

    def _write(self, snapshot: Snapshot, copied: torch.cuda.Event | None) -> None:
        _give_way()
        try:
            if copied is not None:
                copied.synchronize()
            self._put(snapshot)
        except Exception as error:
            self._error = error

    def _put(self, snapshot: Snapshot) -> None:
        """Write the copies, and remove what is not to be kept then."""
        state.write(self._folder, snapshot)
        self._prune(snapshot.progress.step)

    def _prune(self, step: int) -> None:
        """Remove what is not to be kept now that the checkpoint of ``step`` is whole."""
        # Later ones are damaged, or they would have been resumed from; strays are what a killed process left.
        later = [path for path in checkpoint_folders(self._folder) if step_of(path) > step]
        self._remove([*self._superseded(step), *later, *self._folder.glob(".step-*")])

    def _superseded(self, step: int) -> list[Path]:
        """Those older than ``step`` that are neither among the newest nor among the best."""
        counted: list[Path] = []
        scored: list[tuple[float, int, Path]] = []
        found = [path for path in checkpoint_folders(self._folder) if step_of(path) <= step]
        for path, header in sound_headers(found):
            if header.get("regular", True):
                if header.get("counted", True):
                    counted.append(path)
                if (score := header.get("score")) is not None:
                    scored.append((-score, step_of(path), path))
        kept = {*counted[: self._keep], *(path for _, _, path in sorted(scored)[: self._keep_best])}
        return [path for path in found if path not in kept and step_of(path) != step]

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)


def _give_way() -> None:
    """Let this thread run when others of this process need no more processors; Linux has priorities for each thread.

    Where the threads of a step share all processors, one that is delayed delays them all: as an equal the writer made
    the step after a save twice as long.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _copies_done() -> torch.cuda.Event | None:
    """What happens when the GPU, if there is one, has made the copies that it was given to make."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None  # training on a CPU; there may be a GPU beside it
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
