"""Files and folders that appear whole or not at all: written aside, flushed to the disk, then renamed into place."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headway.errors import OutputError

__all__ = ["replaced_file", "replaced_folder"]


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
