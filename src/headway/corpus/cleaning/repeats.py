"""Find lines with equal keys, using partitions on disk, so that memory does not grow with the corpus.

The value of a key determines its partition. Equal keys are therefore in the same partition, which is small enough to be
sorted in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ENTRY = np.dtype([("key", "<u8"), ("other", "<u8"), ("line", "<i8")])
_PARTITION_LINES = 1 << 20
_MAX_PARTITIONS = 1024
_BUFFER_LINES = 1 << 20

KeyBatch = tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]
"""The indices of lines, their keys, and their second keys."""


class KeyPartitions:
    """The keys of lines, partitioned into files in a temporary folder.

    Args:
        folder: The folder for the files. It is replaced if it exists.
        num_lines: Number of lines in the corpus.
        batches: The keys, in the order of the lines.
    """

    def __init__(self, folder: Path, num_lines: int, batches: Iterable[KeyBatch]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        count = min(-(-num_lines // _PARTITION_LINES), _MAX_PARTITIONS)
        self._paths = [folder / f"{number:04d}" for number in range(max(count, 1))]
        waiting: list[NDArray[Any]] = []
        for lines, keys, others in batches:
            entries = np.empty(len(lines), dtype=_ENTRY)
            entries["key"], entries["other"], entries["line"] = keys, others, lines
            waiting.append(entries)
            if sum(map(len, waiting)) >= _BUFFER_LINES:
                self._write(np.concatenate(waiting))
                waiting.clear()
        if waiting:
            self._write(np.concatenate(waiting))

    def _write(self, entries: NDArray[Any]) -> None:
        numbers = (entries["key"] % np.uint64(len(self._paths))).astype(np.int64)
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(self._paths)))
        for path, part in zip(self._paths, np.split(entries[order], ends[:-1]), strict=True):
            if len(part):
                with path.open("ab") as file:
                    part.tofile(file)

    def mark_repeats(self, flags: NDArray[np.bool_]) -> int:
        """Set the flag of each line whose key occurs in an earlier line. Return the number of such lines."""
        total = 0
        for entries in self._sorted_partitions():
            repeated = np.flatnonzero(entries["key"][1:] == entries["key"][:-1]) + 1
            flags[entries["line"][repeated]] = True
            total += len(repeated)
        return total

    def mark_contradictions(self, flags: NDArray[np.bool_]) -> int:
        """Set the flag of each line whose key also occurs with another second key. Return the number of such lines."""
        total = 0
        for entries in self._sorted_partitions():
            if not len(entries):
                continue
            is_new = np.concatenate([[True], entries["key"][1:] != entries["key"][:-1]])
            group = np.cumsum(is_new) - 1
            differs = entries["other"] != entries["other"][np.flatnonzero(is_new)][group]
            contradictory = np.bincount(group, weights=differs) > 0
            flags[entries["line"][contradictory[group]]] = True
            total += int(contradictory[group].sum())
        return total

    def count_repeats(self) -> int:
        """Return the number of lines whose key occurs in an earlier line."""
        return sum(len(entries) - len(np.unique(entries["key"])) for entries in self._sorted_partitions())

    def _sorted_partitions(self) -> Iterable[NDArray[Any]]:
        """Yield the entries of each partition, sorted by key and, within a key, by line."""
        for path in self._paths:
            if path.exists():
                entries = np.fromfile(path, dtype=_ENTRY)
                yield entries[np.argsort(entries["key"], kind="stable")]

    def remove(self) -> None:
        """Remove the folder with the files."""
        shutil.rmtree(self._paths[0].parent, ignore_errors=True)


def create_line_flags(path: Path, num_lines: int) -> NDArray[np.bool_]:
    """Return an array with a False flag for each line, mapped to a new file so that it does not occupy memory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return np.memmap(path, dtype=np.bool_, mode="w+", shape=(max(num_lines, 1),))
