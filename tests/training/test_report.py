"""Metrics: after a kill at any moment, the files equal those of an undisturbed run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from headway.errors import OutputError
from headway.storage import lock_run_folder
from headway.training.report import MetricsWriter


@pytest.fixture(autouse=True)
def _first_writers_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard numbers the files of a process and reads them in the order of their names, where 10 precedes 9."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))


def write(run: Path, after: int, *steps: int, value: float) -> MetricsWriter:
    """Write the records of a start that resumes after a step; do not close it, as if it were killed."""
    metrics = MetricsWriter(run, after)
    for step in steps:
        metrics.write("train", step, {"loss": value + step})
    return metrics


def losses(run: Path) -> dict[int, float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len({record["step"] for record in records}) == len(records)
    return {record["step"]: record["loss"] for record in records}


def shown(run: Path) -> list[tuple[int, float]]:
    """Return what TensorBoard shows."""
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("train/loss")]


def test_records_after_the_resumed_step_are_removed(tmp_path: Path) -> None:
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


def test_an_incomplete_record_is_removed(tmp_path: Path) -> None:
    """A record that lacks only its line break is complete."""
    write(tmp_path, 0, 1, 2, value=0.0).close()
    path = tmp_path / "metrics.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    for length in range(len(second)):
        path.write_text(first + second[:length])
        write(tmp_path, 2, 3, value=0.0).close()
        whole = length == len(second) - 1
        assert losses(tmp_path) == ({1: 1.0, 2: 2.0, 3: 3.0} if whole else {1: 1.0, 3: 3.0})


def test_a_kill_while_records_are_removed(tmp_path: Path) -> None:
    """The file is either old or new; the temporary file is removed when the run folder is locked again."""
    write(tmp_path, 0, 1, 2, 3, value=0.0).close()
    aside = tmp_path / ".metrics.jsonl.7.part"
    aside.write_text((tmp_path / "metrics.jsonl").read_text()[:30])
    with lock_run_folder(tmp_path):
        write(tmp_path, 1, 2, value=0.5).close()
    assert losses(tmp_path) == {1: 1.0, 2: 2.5}
    assert not aside.exists()


def test_every_record_is_flushed_when_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure, a checkpoint must not lack the records before it."""
    flushed: list[str] = []

    def note(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().read_text())

    metrics = MetricsWriter(tmp_path, 0)
    monkeypatch.setattr(os, "fsync", note)
    for step in (1, 2):
        metrics.write("train", step, {"loss": float(step)})
    assert [len(text.splitlines()) for text in flushed] == [1, 2]
    assert shown(tmp_path) == [(1, 1.0), (2, 2.0)]
    metrics.close()


def test_records_of_averages_are_replaced(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path, 0)
    metrics.write("dev", 4, {"loss": 1.0})
    metrics.write("average", 4, {"loss": 0.5})
    metrics.close()
    MetricsWriter(tmp_path, 4).close()
    assert losses(tmp_path) == {4: 1.0}


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = MetricsWriter(tmp_path, 0)

    def no_room(_: int) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        with pytest.raises(OutputError, match=r"metrics\.jsonl: cannot be written .*free some space"):
            metrics.write("train", 1, {"loss": 1.0})
    metrics.close()
