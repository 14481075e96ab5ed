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
    """Yield a path to write to; on leaving it becomes ``path``. On any error ``path`` stays as it was."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        _flush(aside)
        aside.replace(path)
    except OSError as error:
        raise _explained(path, error) from None
    finally:
        with suppress(OSError):
            aside.unlink()


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; on leaving it becomes ``path``. On any error ``path`` stays as it was."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
        for file in (aside, *aside.rglob("*")):
            _flush(file)
        if path.exists():
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder")
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        aside.rename(path)
        _flush(path.parent)
    except OSError as error:
        raise _explained(path, error) from None
    finally:
        with suppress(OSError):
            if old.exists() and not path.exists():  # stopped between the two renames
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
