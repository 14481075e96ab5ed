"""Save checkpoints in the background, prune them by fixed rules, and load the newest intact checkpoint.

A save copies the state to host memory, and a low-priority thread does the rest (files, checksums, flushing to disk).
The next save reuses the memory of the copy, because copying to newly allocated memory takes ten times as long. At most
one save is in progress at a time.

Which checkpoints are kept depends only on the regular checkpoints and their scores. A run that was killed or
interrupted therefore keeps the same checkpoints as an uninterrupted run.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from headway.errors import CheckpointError
from headway.training.snapshot import (
    DamageError,
    Snapshot,
    checkpoint_folders,
    checkpoint_step,
    intact_headers,
    read_snapshot,
    write_snapshot,
)

_NICENESS = 10


class Checkpoints:
    """The ``checkpoints`` folder of a run. As a context manager, it waits on exit until all checkpoints are written.

    It keeps the ``keep`` newest checkpoints that are regular and have ``counts_as_newest`` set (see
    :class:`~headway.training.snapshot.Snapshot`), and in addition the ``keep_best`` checkpoints with the highest
    scores. If scores are equal, the checkpoint with the lower development loss is kept; if the losses are also equal,
    the earlier checkpoint. An irregular checkpoint, which is saved when training is interrupted, is removed by the next
    save.

    If writing fails, the :class:`OutputError` is raised by the next call or on exit. Earlier checkpoints are unchanged.
    """

    def __init__(self, folder: Path, *, keep: int, keep_best: int = 0) -> None:
        self._folder, self._keep, self._keep_best = folder, keep, keep_best
        self._buffers: dict[str, Tensor] = {}
        self._writer = ThreadPoolExecutor(1, "checkpoint", _lower_priority)
        self._pending: Future[None] | None = None

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
            # only a warning, so that the error that ended training propagates
            warnings.warn(str(failure), stacklevel=2)

    def save(self, snapshot: Snapshot) -> None:
        """Copy the snapshot now, then write ``step-N`` and remove superseded checkpoints in the background."""
        self.wait()
        copy = replace(snapshot, progress=replace(snapshot.progress), tensors=self._copied(snapshot.tensors))
        self._pending = self._writer.submit(self._write, copy, _copies_done())  # Python waits for this thread at exit

    def wait(self) -> None:
        """Wait for the save in progress, if there is one, and raise its error if it failed."""
        if self._pending is not None:
            wait([self._pending])
            pending, self._pending = self._pending, None
            pending.result()

    def load_newest(self) -> tuple[Path, Snapshot] | None:
        """Return the newest intact checkpoint and its content, or None if there are no checkpoints.

        Warns about damaged checkpoints, and raises :class:`CheckpointError` if all of them are damaged.
        """
        self.wait()
        damaged: dict[Path, str] = {}
        for path in checkpoint_folders(self._folder):
            try:
                snapshot = read_snapshot(path)
            except DamageError as error:
                damaged[path] = str(error)
                continue
            for bad, reason in damaged.items():
                warnings.warn(f"{bad} is damaged ({reason}); resuming from {path.name} instead", stacklevel=2)
            self._remove(self._superseded(snapshot.progress.step))  # a killed process may have left some
            return path, snapshot
        if damaged:
            reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
            raise CheckpointError(
                f"{self._folder}: every checkpoint is damaged ({reasons}); "
                "restore one from a copy, or start over with --fresh"
            )
        return None

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy tensors to host memory. The copies are complete once the device has finished its queued work."""
        copies = {}
        for name, tensor in tensors.items():
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._buffers[name] = buffer
            copies[name] = buffer.copy_(tensor.detach(), non_blocking=True)
        return copies

    def _write(self, snapshot: Snapshot, copied: torch.cuda.Event | None) -> None:
        if copied is not None:
            copied.synchronize()
        write_snapshot(self._folder, snapshot)
        self._prune(snapshot.progress.step)

    def _prune(self, step: int) -> None:
        """Remove superseded checkpoints after the checkpoint of ``step`` has been written."""
        # Later checkpoints are damaged: otherwise training would have resumed from them.
        later = [path for path in checkpoint_folders(self._folder) if checkpoint_step(path) > step]
        remains_of_killed_processes = self._folder.glob(".step-*")
        self._remove([*self._superseded(step), *later, *remains_of_killed_processes])

    def _superseded(self, step: int) -> list[Path]:
        """Return the checkpoints up to ``step`` that are neither among the newest nor among the best."""
        newest: list[Path] = []
        scored: list[tuple[float, float, int, Path]] = []
        candidates = [path for path in checkpoint_folders(self._folder) if checkpoint_step(path) <= step]
        for path, header in intact_headers(candidates):
            if header.get("regular", True):
                if header.get("counted", True):
                    newest.append(path)
                if (score := header.get("score")) is not None:
                    loss = header.get("dev_loss")
                    scored.append((-score, -math.inf if loss is None else loss, checkpoint_step(path), path))
        kept = {*newest[: self._keep], *(path for *_, path in sorted(scored)[: self._keep_best])}
        return [path for path in candidates if path not in kept and checkpoint_step(path) != step]

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)


def _lower_priority() -> None:
    """Lower the priority of this thread, so that it does not delay training. Only Linux has per-thread priorities.

    If the threads of a training step use all processors, delaying one of them delays the whole step. At normal
    priority, the writer thread doubled the time of the step after a save.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


def _copies_done() -> torch.cuda.Event | None:
    """Return an event that the GPU records after the queued copies, or None if training does not use a GPU."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None  # training runs on the CPU, even if the machine has a GPU
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
