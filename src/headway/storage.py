"""Files and folders that appear whole or not at all: written aside, flushed to the disk, then renamed into place.

And checksums, and locks for what one process at a time may do.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headway.errors import CheckpointError, OutputError

__all__ = ["checksum", "held_folder", "locked", "replaced_file", "replaced_folder"]


def checksum(path: Path) -> str:
    """The BLAKE2b hash of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on leaving it becomes ``path``. On any error ``path`` stays as it was.

    A link is followed. What is neither a file nor absent (a pipe, a device) cannot be replaced: it is written to.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        _flush(aside)
        if path.exists():
            shutil.copymode(path, aside)
        aside.replace(path)
    except OSError as error:
        raise _explained(path, error) from None
    finally:
        with suppress(OSError):
            aside.unlink()


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; on leaving it becomes ``path``. On any error ``path`` stays as it was.

    A process that dies leaves at most ``.NAME.part`` and ``.NAME.old``; the next call puts the old folder back if it
    died between the two renames, and removes the rest.
    """
    aside, old = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.old")
    try:
        _recover(path, aside, old)
        aside.mkdir(parents=True)
        yield aside
        for file in (aside, *aside.rglob("*")):
            _flush(file)
        if path.exists():
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder")
            path.rename(old)
        aside.rename(path)
        _flush(path.parent)
    except OSError as error:
        raise _explained(path, error) from None
    finally:
        with suppress(OSError):
            _recover(path, aside, old)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``; other processes, on other machines that share the file system too, wait.

    A process that dies lets go of it. The file stays.
    """
    descriptor = _opened_lock(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            _warn_of_no_locks(path.parent, error)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for this training alone; :class:`CheckpointError` where another process holds it.

    The file ``lock`` in it is locked with flock(2) and tells who holds it; the system frees it when that process ends,
    however it ends. What a killed holder left of :func:`replaced_file` is removed.
    """
    descriptor = _opened_lock(folder / "lock")
    try:
        _hold(descriptor, folder)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        for stray in folder.glob(".*.part"):
            if stray.is_file():
                stray.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


def _hold(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "?"
        raise CheckpointError(
            f"{folder}: process {holder} is training there; wait for it, stop it (kill {holder}: it saves first), or "
            "choose another --run"
        ) from None
    except OSError as error:
        _warn_of_no_locks(folder, error)


def _warn_of_no_locks(folder: Path, error: OSError) -> None:
    """Some file systems on a network have none."""
    warnings.warn(
        f"{folder}: this file system has no locks ({error.strerror}); see to it that one training at a time "
        "works there",
        stacklevel=5,
    )


def _opened_lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _explained(path, error) from None


def _recover(path: Path, aside: Path, old: Path) -> None:
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(aside, ignore_errors=True)


def _explained(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written ({error.strerror or error}); what was there before is unchanged")


def _flush(path: Path) -> None:
    """Force a file, or a folder's entries, from the cache to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
