"""Workers: failed lines stay in their places, dead workers are replaced, and faults of the system lose nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from echo_map import EchoMap, echo_plan

from headway.errors import ConfigError, HeadwayError, OutputError
from headway.jobs.files import LocalFiles
from headway.jobs.join import count_missing_chunks, join_results
from headway.jobs.owner import Owner
from headway.jobs.plan import Plan
from headway.jobs.processes import WorkersStopped, run_workers
from headway.jobs.protocol import lease_name
from headway.jobs.status import read_status
from headway.jobs.worker import Worker

SUPERVISE = str(Path(__file__).with_name("echo_map.py"))


def plan_of(folder: Path, *lines: str, chunk_lines: int = 3) -> Plan:
    path = folder / "in"
    path.write_text("".join(line + "\n" for line in lines))
    return echo_plan(folder / "job", [path], chunk_lines=chunk_lines)


def joined(plan: Plan) -> list[str]:
    output = plan.folder.parent / "out"
    join_results(plan, output, verify=True)
    return output.read_text().split("\n")[:-1]


def test_failed_lines_stay_in_their_places(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "a", "bad", "c", "d", "bad")
    Worker(plan, EchoMap()).run()
    assert joined(plan) == ["1 A", "", "3 C", "4 D", ""]
    result = join_results(plan, tmp_path / "out", failures=tmp_path / "failed.jsonl")
    assert (result.num_lines, result.num_failed, result.counts) == (5, 2, {"lines": 3})
    failed = [json.loads(line) for line in (tmp_path / "failed.jsonl").read_text().splitlines()]
    assert failed == [{"file": str(tmp_path / "in"), "line": number, "reason": "a bad line"} for number in (2, 5)]
    status = read_status(plan)
    assert (status.is_done, status.failed_chunks, [line.line for line in status.failures]) == (True, 2, [2, 5])
    assert [machine.num_lines for machine in status.machines] == [5]


def leave_lease(plan: Plan, chunk: int, generation: int) -> None:
    """Leave the lease of a process that has died on this machine."""
    done = subprocess.Popen(["true"])
    done.wait()
    owner = Owner.this_process()
    content = {**owner.as_dict(), "id": f"dead{generation}", "pid": done.pid, "started": "1"}
    assert LocalFiles(plan.folder).create(lease_name(chunk, generation), f"0 {json.dumps(content)}\n".encode())


def test_the_chunk_of_a_dead_worker_of_this_machine_is_taken_over_at_once(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, *"abcd")
    leave_lease(plan, 1, 0)
    assert read_status(plan).chunks_running == 1
    Worker(plan, EchoMap()).run()
    assert joined(plan) == ["1 A", "2 B", "3 C", "4 D"]
    assert read_status(plan).chunks_repeated == 1


def test_a_line_that_ends_workers_is_found(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "a", "b", "c", "d", "kill", "f", chunk_lines=6)
    leave_lease(plan, 0, 0)
    leave_lease(plan, 0, 1)
    Worker(plan, EchoMap()).run()
    assert joined(plan) == ["1 A", "2 B", "3 C", "4 D", "", "6 F"]
    assert [line.reason for line in read_status(plan).failures] == ["crashes the process that converts it (SIGKILL)"]


def test_an_error_of_the_operation_ends_the_job_and_releases_the_chunk(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "a", "stop")
    with pytest.raises(HeadwayError, match="in, line 2: the operation stops"):
        Worker(plan, EchoMap()).run()
    assert (plan.folder / f"{lease_name(0, 0)}.released").exists()
    leave_lease(plan, 0, 1)
    leave_lease(plan, 0, 2)  # in a forked process, too
    with pytest.raises(HeadwayError, match="in, line 2: the operation stops"):
        Worker(plan, EchoMap()).run()


class Faulty(LocalFiles):
    """A file system whose ``operation`` fails on results, once."""

    def __init__(self, folder: Path, operation: str, error: int) -> None:
        super().__init__(folder)
        self.operation, self.error = operation, error

    def _fail(self, operation: str, name: str) -> None:
        if operation == self.operation:
            raise OSError(self.error, os.strerror(self.error), name)

    def write_durably(self, name: str, content: bytes) -> None:
        self._fail("write", name)
        super().write_durably(name, content)

    def link(self, source: str, name: str) -> bool:
        self._fail("link", name)
        return super().link(source, name)


@pytest.mark.parametrize("operation", ["write", "link"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_faults_of_the_system_are_one_line_and_lose_nothing(tmp_path: Path, operation: str, error: int) -> None:
    plan = plan_of(tmp_path, *"abcd")
    with pytest.raises(OutputError) as raised:
        Worker(plan, EchoMap(), files=Faulty(plan.folder, operation, error)).run()
    message = str(raised.value)
    assert os.strerror(error) in message
    assert "nothing is lost; remove the cause, and repeat the command" in message
    assert "\n" not in message
    Worker(plan, EchoMap()).run()
    assert joined(plan) == ["1 A", "2 B", "3 C", "4 D"]


@pytest.mark.parametrize("call", ["fsync", "close"])
def test_errors_of_flushing_and_closing_are_noticed(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network file systems report a full disk only there."""
    files, real = LocalFiles(tmp_path), getattr(os, call)

    def fail(descriptor: int) -> None:
        real(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"os.{call}", fail)
        with pytest.raises(OSError, match=r"No space left on device: '.*temporary/x'"):
            files.write_durably("temporary/x", b"content")


def test_a_machine_that_computes_differently_is_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "a")
    Worker(plan, EchoMap({"features": ["avx2"]})).run()
    with pytest.raises(
        ConfigError, match=r"computes different results .*\(features: \[\"avx2\"\] there, \[\] here\).*mixed"
    ):
        Worker(plan, EchoMap({"features": []})).run()
    mixed = echo_plan(tmp_path / "mixed", [tmp_path / "in"], mixed_processors=True)
    for features in (["avx2"], []):
        Worker(mixed, EchoMap({"features": features})).run()


class TestProcesses:
    @pytest.mark.slow
    def test_dead_workers_are_replaced_and_a_deadly_line_is_found(self, tmp_path: Path) -> None:
        lines = [f"line {number}" for number in range(20)]
        lines[7] = "kill"
        plan = plan_of(tmp_path, *lines)
        done: list[int] = []
        run_workers([SUPERVISE, str(plan.folder), "2"], one_thread=True, on_chunk=done.append)
        assert sum(done) == 20
        assert joined(plan) == [
            f"{n} {line.upper()}" if line != "kill" else "" for n, line in enumerate(lines, start=1)
        ]

    def test_an_error_reaches_the_command(self, tmp_path: Path) -> None:
        plan = plan_of(tmp_path, "a", "stop")
        with pytest.raises(HeadwayError, match="in, line 2: the operation stops"):
            run_workers([SUPERVISE, str(plan.folder), "2"], one_thread=True)

    @pytest.mark.slow
    def test_sigterm_gives_chunks_back(self, tmp_path: Path) -> None:
        plan = plan_of(tmp_path, *["sleep"] * 40, chunk_lines=20)
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        begin = time.monotonic()
        with pytest.raises(WorkersStopped):
            run_workers([SUPERVISE, str(plan.folder), "2"], one_thread=True)
        assert time.monotonic() - begin < 20
        assert count_missing_chunks(plan) == 2
        assert len(list((plan.folder / "leases").rglob("*.released"))) == 2
        assert list((plan.folder / "temporary").glob("*")) == []
