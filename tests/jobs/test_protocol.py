"""The protocol in simulated schedules: no line is lost, doubled or changed, and planted faults are found.

The slow tests take 20,000 schedules (half a minute), or as many as the environment variable ``HEADWAY_SCHEDULES`` says:
100,000 after a change of the protocol.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from simulation import SimulatedFiles, Simulation

from headway.jobs.files import Files, LocalFiles
from headway.jobs.owner import Owner
from headway.jobs.protocol import ChunkProtocol, JobStoppedError, Lease, Timing, lease_name, result_name
from headway.jobs.results import ChunkResult

QUICK, SLOW, PARTS = 60, int(os.environ.get("HEADWAY_SCHEDULES", "20000")), 20


@pytest.fixture
def small_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder has two chunks, so that schedules of a few chunks have several folders."""
    monkeypatch.setattr("headway.jobs.protocol.CHUNKS_PER_FOLDER", 2)


def first_problem(seeds: range, protocol: type[ChunkProtocol] = ChunkProtocol) -> tuple[int, list[str]] | None:
    """Return the first seed whose schedule has a problem, with the problems."""
    for seed in seeds:
        simulation = Simulation(seed, protocol)
        simulation.run()
        if problems := simulation.problems():
            return seed, problems
    return None


@pytest.mark.usefixtures("small_folders")
def test_no_chunk_is_lost_doubled_or_changed() -> None:
    assert first_problem(range(QUICK)) is None


@pytest.mark.slow
@pytest.mark.usefixtures("small_folders")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_chunk_is_lost_doubled_or_changed_in_many_schedules(part: int) -> None:
    size = SLOW // PARTS
    assert first_problem(range(QUICK + part * size, QUICK + (part + 1) * size)) is None


@pytest.mark.slow
def test_schedules_contain_what_the_protocol_is_for() -> None:
    simulations = [Simulation(seed) for seed in range(60)]
    for simulation in simulations:
        simulation.run()
    names = [name for simulation in simulations for name in simulation.server.content]
    assert any(name.endswith(".2") for name in names)  # taken over twice
    assert any(name.endswith(".released") for name in names)
    assert any(name.startswith("temporary/") for name in names)  # left by a process that died while it wrote


class WritesInPlace(ChunkProtocol):
    """The first fault: a result is written under its final name."""

    def publish(self, name: str, content: bytes) -> bool:
        if self.files.read(name) is not None:
            return False
        self.files.write_durably(name, content)
        return True


class DeletesLeases(ChunkProtocol):
    """The second fault: an expired lease is removed, and created again."""

    def take(self, chunk: int, generation: int) -> Lease | None:
        if generation:
            self.files.remove(lease_name(chunk, 0))
            self.files.remove(f"{lease_name(chunk, 0)}.released")
        return super().take(chunk, 0)


class TrustsClocks(ChunkProtocol):
    """The third fault: a lease expires by the time of its file and the clock of the observer."""

    def has_expired(self, name: str, content: bytes) -> bool:
        assert isinstance(self.files, SimulatedFiles)
        return self.files.age_by_clock(name) > self.timing.expire_s


@pytest.mark.parametrize(
    "fault",
    [pytest.param(WritesInPlace, marks=pytest.mark.slow), DeletesLeases, TrustsClocks],
)
def test_planted_faults_are_found(fault: type[ChunkProtocol]) -> None:
    assert first_problem(range(3000), fault) is not None


def protocol_in(folder: Path, owner: str = "a", num_chunks: int = 2, files: Files | None = None) -> ChunkProtocol:
    process = Owner(owner, owner, "", 1, "")
    return ChunkProtocol(
        files or LocalFiles(folder), process, num_chunks, Timing(poll_s=0), monotonic=lambda: 0.0, sleep=lambda _: None
    )


def test_a_different_result_stops_the_job_and_names_both_machines(tmp_path: Path) -> None:
    first, second = protocol_in(tmp_path), protocol_in(tmp_path, "b")
    first.commit(Lease(0, 0), ChunkResult(b"one\n", 1), {})
    second.commit(Lease(0, 0), ChunkResult(b"one\n", 1), {})
    with pytest.raises(JobStoppedError, match="the machines a and b have computed different results"):
        second.commit(Lease(0, 0), ChunkResult(b"two\n", 1), {})
    with pytest.raises(JobStoppedError, match="the machines a and b"):
        first.next_lease()


def test_a_released_chunk_is_free_at_once(tmp_path: Path) -> None:
    first, second = protocol_in(tmp_path, num_chunks=1), protocol_in(tmp_path, "b", num_chunks=1)
    lease = first.next_lease()
    assert lease is not None
    assert not second.renew(Lease(0, -1))
    first.release(lease)
    again = second.next_lease()
    assert again is not None
    assert (again.generation, again.needs_isolation) == (1, False)
    assert not first.renew(lease)
    second.commit(again, ChunkResult(b"one\n", 1), {})
    assert second.next_lease() is None


def test_a_chunk_whose_owners_have_died_twice_needs_care(tmp_path: Path) -> None:
    for number in range(3):
        process = Owner(str(number), "host", "", 1, "")
        protocol = ChunkProtocol(
            LocalFiles(tmp_path),
            process,
            1,
            Timing(),
            monotonic=lambda: 0.0,
            sleep=lambda _: None,
            has_died=lambda owner: True,
        )
        lease = protocol.next_lease()
        assert lease is not None
        assert (lease.generation, lease.needs_isolation) == (number, number == 2)


class WithoutLinks(LocalFiles):
    """A file system that has no hard links."""

    def link(self, source: str, name: str) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.link", self._refuse)
            return super().link(source, name)

    @staticmethod
    def _refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")


def test_without_hard_links_results_are_renamed(tmp_path: Path) -> None:
    protocol = protocol_in(tmp_path, files=WithoutLinks(tmp_path))
    protocol.commit(Lease(1, 0), ChunkResult(b"one\n", 1, ((7, "too long"),)), {})
    protocol.commit(Lease(1, 0), ChunkResult(b"one\n", 1, ((7, "too long"),)), {})
    assert (tmp_path / result_name(1)).read_bytes().endswith(b"one\n")
    assert json.loads((tmp_path / "failed" / "0000" / "1.jsonl").read_text()) == {"line": 7, "reason": "too long"}
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.slow
def test_a_few_operations_for_each_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most eight besides renewals, with many workers on several folders of chunks."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    counts = {"operations": 0}

    class Counted(LocalFiles):
        def __getattribute__(self, name: str) -> object:
            if not name.startswith("_"):
                counts["operations"] += 1
            return super().__getattribute__(name)

    num_chunks = 2200
    workers = [protocol_in(tmp_path, str(number), num_chunks, Counted(tmp_path)) for number in range(20)]
    leases: list[tuple[ChunkProtocol, Lease]] = []
    done = 0
    while done < num_chunks:
        for protocol in workers:
            if done + len(leases) < num_chunks and (lease := protocol.next_lease()):
                leases.append((protocol, lease))
        for protocol, lease in leases:
            protocol.commit(lease, ChunkResult(b"", 0), {})
            done += 1
        leases.clear()
    assert counts["operations"] <= 8 * num_chunks
