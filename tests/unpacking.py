"""Unpack the archives of the tests."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack_archive(archive: Path, folder: Path) -> None:
    """Extract a tar archive into a folder. Newer versions of Python warn without a filter, and 3.11.2 has none."""
    with tarfile.open(archive) as file:
        if hasattr(tarfile, "data_filter"):
            file.extractall(folder, filter="data")
        else:
            file.extractall(folder)
