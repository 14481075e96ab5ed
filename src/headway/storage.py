"""Atomic writes of files and folders, checksums and file locks.

Atomic writes use a temporary file or folder, which is flushed to disk and then renamed to its final name.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from headway.errors import CheckpointError, OutputError


def checksum(path: Path) -> str:
    """Return the BLAKE2b hash of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces ``path`` on exit. After an error ``path`` is unchanged.

    A symbolic link is followed. A pipe or a device cannot be replaced, so it is written to directly.
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
        raise _cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            aside.unlink()


def atomic_write_text(path: Path, text: str) -> None:
    """Replace the content of the file ``path`` with ``text`` in UTF-8. After an error ``path`` is unchanged."""
    with atomic_write(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def atomic_write_folder(path: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, which replaces ``path`` on exit. After an error ``path`` is unchanged.

    A killed process leaves at most the folders ``.NAME.part`` and ``.NAME.old``. The next call restores the old folder
    if the process was killed between the two renames, and removes the remaining temporary folders. If ``path`` is a
    symbolic link, the folder that it points to is replaced.
    """
    path = path.resolve()
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
        raise _cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            _recover(path, aside, old)


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Reserve ``folder`` for this training run.

    The file ``lock`` in the folder is locked, and ``lock.pid`` contains the id of the process that locked it. Temporary
    files that a killed process left from :func:`atomic_write` are removed.

    Raises:
        CheckpointError: Another process is using the folder.
    """
    holder = folder / "lock.pid"
    try:
        with lock_file(folder / "lock", wait=False):
            holder.write_text(f"{os.getpid()}\n", encoding="ascii")
            for stray in folder.glob(".*.part"):
                if stray.is_file():
                    stray.unlink(missing_ok=True)
            yield
    except Timeout:
        pid = "?"
        with suppress(OSError):
            pid = holder.read_text(encoding="ascii", errors="replace").strip() or pid
        raise CheckpointError(
            f"{folder}: process {pid} is training there; wait for it, stop it (kill {pid}; it saves first), or "
            "choose another --run"
        ) from None


@contextmanager
def lock_file(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock the file ``path``. If another process has locked it, wait, or raise Timeout if ``wait`` is False.

    The lock also applies to processes on other machines that share the file system. If the file system has no locks, a
    warning is emitted. The system releases the lock when the process ends, even if it is killed. The file is not
    removed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise _cannot_write(path, error) from None
    lock = FileLock(path, fallback_to_soft=False)  # the existence of this file must not mean that it is locked
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        raise
    except OSError as error:
        warnings.warn(
            f"{path.parent}: this file system has no locks ({error.strerror}); train one run at a time in this folder",
            stacklevel=5,
        )
    try:
        yield
    finally:
        lock.release()


def _recover(path: Path, aside: Path, old: Path) -> None:
    if old.exists() and not path.exists():
        old.rename(path)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(aside, ignore_errors=True)


def _cannot_write(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written ({error.strerror or error}); its previous content is unchanged")


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
