"""Control how the threads of matrix products wait for each other while other processes use the same processors.

PyTorch and Numba divide products among the threads of GNU OpenMP, which wait for each other hundreds of times per
training step. A waiting thread spins for several milliseconds before it sleeps. This is fastest on an idle machine,
because waking a sleeping thread takes longer than most of these waits. If another process is busy, however, a spinning
thread occupies the processor needed by the thread that it is waiting for, and training becomes up to ten times slower.

OpenMP reads the environment variables that shorten spinning (OMP_WAIT_POLICY, GOMP_SPINCOUNT) only when it is loaded,
and no single setting is right for both cases. According to its manual (under GOMP_SPINCOUNT), however, threads also
sleep almost immediately if OpenMP manages more threads than there are processors. :func:`adapt_openmp_waiting`
therefore adds idle threads while other processes are busy. The number of computing threads does not change, and neither
do results.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_INTERVAL_S = 0.5
_MIN_OTHERS = 0.3  # number of processors; a half-second measurement has an error of about 0.1
_QUIET_INTERVALS = 2  # threads spin again after this many intervals without contention
_POLICIES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_adapting = threading.Lock()


def num_cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OtherProcessLoad:
    """Measures how many processors other processes use, on average since the last call of :meth:`measure`.

    In a virtual machine, this includes the time that the host gives to other machines.
    """

    def __init__(self) -> None:
        self._before = _times()

    def measure(self) -> float:
        """Return the average number of processors used by other processes since the last call; 0.0 if it is unknown."""
        before, now = self._before, _times()
        self._before = now
        if before is None or now is None or now[0] <= before[0]:
            return 0.0
        elapsed, busy, own_busy = (end - begin for begin, end in zip(before, now, strict=True))
        return max(0.0, (busy - own_busy) / elapsed)


def exceeds_processors(threads: int, others: float) -> bool:
    """Return whether ``threads`` plus ``others``, the processors used by other processes, exceed the available ones."""
    return others >= _MIN_OTHERS and threads + others >= num_cores() + _MIN_OTHERS


def processor_wait_s() -> float:
    """Return the total time for which this process's threads have waited for a processor, or 0.0 if it is unknown.

    Unlike processor time, this does not depend on how threads wait for each other.
    """
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended
            total += int(path.read_text(encoding="ascii").split()[1])
    return total / 1e9


def waiting_advice() -> str:
    """Return a suggestion for the user if :func:`adapt_openmp_waiting` has no effect, otherwise ""."""
    is_passive = os.environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive"
    others = _POLICIES[1:] if is_passive else _POLICIES  # GOMP_SPINCOUNT takes precedence
    if policies := [name for name in others if name in os.environ]:
        return f"unset {' and '.join(policies)}"
    return "" if is_passive or _openmp_libraries() else "set OMP_WAIT_POLICY=passive before Python starts"


@contextmanager
def adapt_openmp_waiting() -> Iterator[None]:
    """Make OpenMP threads wait without spinning inside the block whenever other processes need the same processors.

    Does nothing if the user has set a wait policy, or if the load of other processes cannot be measured. The previous
    behavior is restored at the end of the block.
    """
    if any(name in os.environ for name in _POLICIES) or _times() is None or not _adapting.acquire(blocking=False):
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_watch, args=(stop,), name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _adapting.release()


def _watch(stop: threading.Event) -> None:
    others, extra, quiet = OtherProcessLoad(), IdleThreads(), 0
    while not stop.wait(_INTERVAL_S):
        threads, cores = _torch_threads(), num_cores()
        is_contended = exceeds_processors(threads, others.measure())
        quiet = 0 if is_contended else quiet + 1
        if is_contended and 1 < threads <= cores:  # one thread never waits; too many threads sleep anyway
            extra.add(cores - threads + 1)
        elif quiet >= _QUIET_INTERVALS:
            extra.remove()
    extra.remove()


def _torch_threads() -> int:
    """Return PyTorch's number of threads, or 1 before PyTorch is imported."""
    with suppress(KeyError, AttributeError):  # PyTorch is not imported, or not completely
        threads: int = sys.modules["torch"].get_num_threads()
        return threads
    return 1


class IdleThreads:
    """Idle OpenMP threads that make all OpenMP threads sleep instead of spinning while they wait."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._starters: dict[str, threading.Thread] = {}

    def add(self, count: int) -> None:
        """Add ``count`` threads to each OpenMP library in this process that does not have them yet."""
        for path in _openmp_libraries() - self._starters.keys():
            self._starters[path] = starter = threading.Thread(
                target=_start_threads, args=(path, count, self._end), name="idle OpenMP", daemon=True
            )
            starter.start()

    def remove(self) -> None:
        """End all idle threads."""
        self._end.set()
        for starter in self._starters.values():
            starter.join()
        self._starters.clear()
        self._end.clear()


def _start_threads(path: str, count: int, end: threading.Event) -> None:
    """Start ``count`` OpenMP threads in a team of the current thread, and keep them until ``end`` is set."""
    with suppress(OSError, AttributeError):  # the library was unloaded, or is another library with this name
        run_parallel = ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
        run_parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        run_parallel.restype = None
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # a function that has no effect: free(NULL)
        run_parallel(nothing, None, count + 1, 0)  # including the current thread
        end.wait()


def _openmp_libraries() -> set[str]:
    """Return the paths of all loaded GNU OpenMP libraries. PyTorch and Numba usually have separate copies."""
    with suppress(OSError):
        names = (line.split()[-1] for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())
        return {name for name in names if Path(name).name.startswith("libgomp")}
    return set()


def _times() -> tuple[float, float, float] | None:
    """Return the wall time, the busy time of the processors available to this process, and its own processor time."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    processors = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
        ticks = [[int(word) for word in words[:8]] for name, *words in map(str.split, lines) if name in processors]
        # Fields: user, nice, system, idle, iowait, irq, softirq, steal.
        busy = sum(sum(fields) - fields[3] - fields[4] for fields in ticks)
    except (OSError, ValueError, IndexError):
        return None
    if not busy:  # this sandbox hides other processes
        return None
    return time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), time.process_time()
