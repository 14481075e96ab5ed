"""What a run writes down: after a kill at any moment it reads as if nothing had happened."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from headway.errors import OutputError
from headway.storage import locked_folder
from headway.train.report import Metrics


@pytest.fixture(autouse=True)
def _first_writers_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard numbers a process's files and reads them in their names' order, where 10 comes before 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def write(run: Path, after: int, *steps: int, value: float) -> Metrics:
    """What a start that goes on after a step writes; it is not closed, as where it is killed."""
    metrics = Metrics(run, after)
    for step in steps:
        metrics.write("train", step, {"loss": value + step})
    return metrics


def losses(run: Path) -> dict[int, float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len({record["step"] for record in records}) == len(records)
    return {record["step"]: record["loss"] for record in records}


def shown(run: Path) -> list[tuple[int, float]]:
    """What TensorBoard shows."""
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("train/loss")]


def test_records_after_the_resumed_step_are_forgotten(tmp_path: Path) -> None:
    killed = write(tmp_path, 0, 1, 2, 3, 4, value=0.0)
    second = write(tmp_path, 2, 3, 4, 5, value=0.5)
    expected = {1: 1.0, 2: 2.0, 3: 3.5, 4: 4.5, 5: 5.5}
    assert losses(tmp_path) == expected
    assert shown(tmp_path) == sorted(expected.items())
    killed.close()
    second.close()


def test_three_starts_from_the_same_step(tmp_path: Path) -> None:
    starts = [
        write(tmp_path, 2 if value else 0, 1 if not value else 3, 2 if not value else 4, value=value)
        for value in (0.0, 0.25, 0.5)
    ]
    assert losses(tmp_path) == {1: 1.0, 2: 2.0, 3: 3.5, 4: 4.5}
    assert shown(tmp_path) == [(1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5)]
    for start in starts:
        start.close()


def test_a_record_torn_anywhere_is_forgotten(tmp_path: Path) -> None:
    """Only a record without its last line break is whole already."""
    write(tmp_path, 0, 1, 2, value=0.0).close()
    path = tmp_path / "metrics.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    for length in range(len(second)):
        path.write_text(first + second[:length])
        write(tmp_path, 2, 3, value=0.0).close()
        whole = length == len(second) - 1
        assert losses(tmp_path) == ({1: 1.0, 2: 2.0, 3: 3.0} if whole else {1: 1.0, 3: 3.0})


def test_killed_while_forgetting(tmp_path: Path) -> None:
    """The file is as before or after, never between; what lay aside goes when the run is held again."""
    write(tmp_path, 0, 1, 2, 3, value=0.0).close()
    aside = tmp_path / ".metrics.jsonl.7.part"
    aside.write_text((tmp_path / "metrics.jsonl").read_text()[:30])
    with locked_folder(tmp_path):
        write(tmp_path, 1, 2, value=0.5).close()
    assert losses(tmp_path) == {1: 1.0, 2: 2.5}
    assert not aside.exists()


def test_every_record_is_on_the_disk_when_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is flushed later must find the records before it, after a power cut too."""
    flushed: list[str] = []

    def note(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().read_text())

    metrics = Metrics(tmp_path, 0)
    monkeypatch.setattr(os, "fsync", note)
    for step in (1, 2):
        metrics.write("train", step, {"loss": float(step)})
    assert [len(text.splitlines()) for text in flushed] == [1, 2]
    assert shown(tmp_path) == [(1, 1.0), (2, 2.0)]
    metrics.close()


def test_the_average_is_written_anew(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, 0)
    metrics.write("dev", 4, {"loss": 1.0})
    metrics.write("average", 4, {"loss": 0.5})
    metrics.close()
    Metrics(tmp_path, 4).close()
    assert losses(tmp_path) == {4: 1.0}


def test_a_full_disk_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics(tmp_path, 0)

    def no_room(_: int) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(OutputError, match=r"metrics\.jsonl: cannot be written .*free some space"):
            metrics.write("train", 1, {"loss": 1.0})
    metrics.close()
