"""Waiting of OpenMP's threads beside other processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import pytest

from headway import cli, contention
from headway.contention import OtherProcessLoad, adapt_openmp_waiting, exceeds_processors, num_cores, waiting_advice

# Prints the number of OpenMP's libraries; whether a thread waits actively after products in two threads, before, with
# and without idle threads; and the numbers of threads.
_PROGRAM = """
import threading, time, torch
from pathlib import Path
from headway.contention import IdleThreads, _openmp_libraries
numbers = torch.rand(1 << 20)

def running_threads():
    states = (path.read_text().rpartition(") ")[2][0] for path in Path("/proc/self/task").glob("*/stat"))
    return sum(state == "R" for state in states)

def time_of_other_threads():
    return time.process_time() - time.thread_time()

def seconds_of_waiting():
    numbers.add_(1.0)
    begin = time_of_other_threads()
    while running_threads() > 1:  # on a busy machine a thread that waits actively stops doing so later
        time.sleep(0.002)
    return time_of_other_threads() - begin

def waits_actively():
    return any(seconds_of_waiting() > 3e-4 for _ in range(100))

idle, before = IdleThreads(), waits_actively()
threads = threading.active_count()
idle.add(1)
idle.add(1)
time.sleep(0.1)
print(len(_openmp_libraries()), int(before), int(waits_actively()), threading.active_count() - threads)
idle.remove()
print(int(waits_actively()), threading.active_count() - threads)
"""


def _run_with_two_threads(program: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    for name in contention._POLICIES:
        monkeypatch.delenv(name, raising=False)
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [int(word) for word in found.stdout.split()]


@pytest.mark.skipif(num_cores() != 2, reason="two threads wait actively only if there are two processors")
def test_idle_threads_let_openmp_sleep_until_they_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that waits repeats its test 300,000 times by default, and 100 times if there are more threads."""
    libraries, before, during, added, after, left = _run_with_two_threads(_PROGRAM, monkeypatch)
    if not libraries:
        pytest.skip("PyTorch uses another implementation of OpenMP")
    assert added == libraries
    assert (before, during, after) == (True, False, True)
    assert left == 0


@pytest.fixture
def processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "num_cores", lambda: 4)
    for name in contention._POLICIES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("processors")
@pytest.mark.parametrize(
    ("threads", "others", "exceeds"),
    [
        (4, 1.0, True),
        (4, 0.1, False),
        (4, 0.0, False),
        (2, 1.9, False),
        (2, 3.0, True),
        (1, 3.0, False),
        (8, 0.0, False),
    ],
)
def test_threads_and_others_exceed_four_processors(threads: int, others: float, exceeds: bool) -> None:
    assert exceeds_processors(threads, others) is exceeds


def test_other_processes_use_what_is_busy_and_not_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2 s, 3.0 s of all processors were used, 1.0 s of them by this process. Then nothing more is known."""
    readings = iter([(10.0, 50.0, 5.0), (12.0, 53.0, 6.0), None])
    monkeypatch.setattr(contention, "_times", lambda: next(readings))
    others = OtherProcessLoad()
    assert others.measure() == pytest.approx((3.0 - 1.0) / 2.0)
    assert others.measure() == 0.0


class _Recorder:
    """Takes the place of IdleThreads and records how many threads there are."""

    def __init__(self) -> None:
        self.count, self.history = 0, list[int]()

    def add(self, count: int) -> None:
        self.count = count
        self.history.append(count)

    def remove(self) -> None:
        self.count = 0


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, processors: None) -> Iterator[_Recorder]:
    found = _Recorder()
    monkeypatch.setattr(contention, "IdleThreads", lambda: found)
    monkeypatch.setattr(contention, "_INTERVAL_S", 0.005)
    monkeypatch.setattr(contention, "_times", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(contention, "_torch_threads", lambda: 3)
    yield found
    assert found.count == 0
    assert all(thread.name != "waiting" for thread in threading.enumerate())


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_waiting_follows_the_other_processes(recorder: _Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    use = 0.0
    monkeypatch.setattr(OtherProcessLoad, "measure", lambda _: use)
    with adapt_openmp_waiting(), adapt_openmp_waiting():
        time.sleep(0.03)
        assert recorder.history == []
        use = 2.0
        _wait_for(lambda: recorder.count == 4 - 3 + 1)  # one more than there are processors, with the three
        use = 0.0
        _wait_for(lambda: recorder.count == 0)
        use = 2.0
        _wait_for(lambda: recorder.count > 0)


@pytest.mark.parametrize("threads", [1, 5, 8])
def test_one_thread_and_more_threads_than_processors_need_no_others(
    recorder: _Recorder, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(OtherProcessLoad, "measure", lambda _: 4.0)
    monkeypatch.setattr(contention, "_torch_threads", lambda: threads)
    with adapt_openmp_waiting():
        time.sleep(0.03)
    assert recorder.history == []


def test_every_command_adapts(recorder: _Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # restored at the end
    monkeypatch.setattr(
        cli, "app", lambda _: found.append(any(each.name == "waiting" for each in threading.enumerate()))
    )
    cli.main()
    assert found == [True]


@pytest.mark.parametrize("name", contention._POLICIES)
def test_the_users_own_policy_stays(recorder: _Recorder, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with adapt_openmp_waiting():
        assert all(thread.name != "waiting" for thread in threading.enumerate())
    assert waiting_advice() == f"unset {name}"


@pytest.mark.usefixtures("processors")
def test_a_passive_policy_needs_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the advice to set it would be followed by the advice to unset it."""
    monkeypatch.setattr(contention, "_openmp_libraries", set)
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert waiting_advice() == ""
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000000")
    assert waiting_advice() == "unset GOMP_SPINCOUNT"


@pytest.mark.usefixtures("processors")
def test_another_openmp_is_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "_openmp_libraries", set)
    assert waiting_advice() == "set OMP_WAIT_POLICY=passive before Python starts"
