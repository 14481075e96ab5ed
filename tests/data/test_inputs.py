"""Hashes of files' contents: never stale, and not computed twice."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from headway.data import store
from headway.data.store import ContentHashes, fingerprint
from headway.errors import DataError

LONG_AGO_NS = 10**18


def write(path: Path, text: str, time_ns: int = LONG_AGO_NS) -> Path:
    path.write_text(text)
    os.utime(path, ns=(time_ns, time_ns))
    return path


def test_hashes_follow_content_not_names_or_times(tmp_path: Path) -> None:
    hashes = ContentHashes(tmp_path / "memory.json")
    one = hashes.hash_file(write(tmp_path / "one", "a\n"))
    assert hashes.hash_file(write(tmp_path / "copy", "a\n", LONG_AGO_NS + 5)) == one
    assert hashes.hash_file(write(tmp_path / "other", "b\n")) != one


def test_a_settled_file_is_read_once_also_by_later_programs(tmp_path: Path) -> None:
    """Content that changes without a change of size and time is not noticed, so the file was not read."""
    memory, path = tmp_path / "memory.json", tmp_path / "file"
    first = ContentHashes(memory).hash_file(write(path, "a\n"))
    write(path, "b\n")
    assert ContentHashes(memory).hash_file(path) == first
    for text, time_ns in [("b\n", LONG_AGO_NS + 1), ("bb\n", LONG_AGO_NS + 1)]:  # a different time and a different size
        found = ContentHashes(memory).hash_file(write(path, text, time_ns))
        assert found == ContentHashes(tmp_path / "none.json").hash_file(path) != first


def test_a_file_that_just_changed_is_read_again(tmp_path: Path) -> None:
    """A file is written twice within one tick of a coarse clock."""
    hashes, path, now = ContentHashes(tmp_path / "memory.json"), tmp_path / "file", time.time_ns()
    first = hashes.hash_file(write(path, "a\n", now))
    assert hashes.hash_file(write(path, "b\n", now)) != first


@pytest.mark.parametrize("damage", ["", "[1]", '{"x": 5}', "{"])
def test_a_damaged_memory_is_no_obstacle(tmp_path: Path, damage: str) -> None:
    memory, path = tmp_path / "memory.json", write(tmp_path / "file", "a\n")
    expected = ContentHashes(memory).hash_file(path)
    memory.write_text(damage.replace("x", json.dumps(str(path))[1:-1]))
    assert ContentHashes(memory).hash_file(path) == expected


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.txt: no such file; expected a corpus file"):
        ContentHashes(tmp_path / "memory.json").hash_file(tmp_path / "gone.txt")


def test_fingerprints_differ_where_any_part_does() -> None:
    parts = [("a", "b"), ("b", "a"), ("ab",), ("a", "b", None), ("a", {"b": 1}), ("a", {"b": 2})]
    assert len({fingerprint(*part) for part in parts}) == len(parts)
    assert fingerprint("a", {"b": 1}) == fingerprint("a", {"b": 1})


def test_a_pipe_is_refused_instead_of_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match=r"pipe.txt: is a pipe, but a corpus is read several times"):
        ContentHashes(tmp_path / "cache.json").hash_file(tmp_path / "pipe.txt")


def test_many_files_are_hashed_with_one_write_of_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write after each file takes quadratic time."""
    writes: list[Path] = []

    def counted(path: Path, text: str) -> None:
        writes.append(path)
        path.write_text(text)

    monkeypatch.setattr(store, "atomic_write_text", counted)
    paths = [write(tmp_path / f"{number}", f"{number}") for number in range(50)]
    hashes, progress = ContentHashes(tmp_path / "memory.json"), list[int]()
    first = hashes.hash_files(paths, progress.append)
    assert first == hashes.hash_files(paths) == ContentHashes(tmp_path / "memory.json").hash_files(paths)
    assert (len(writes), progress) == (1, list(range(1, 51)))
    with pytest.raises(DataError, match="no such file"):  # what was hashed before the error is remembered
        hashes.hash_files([write(tmp_path / "new", "n"), tmp_path / "missing"])
    assert len(writes) == 2
