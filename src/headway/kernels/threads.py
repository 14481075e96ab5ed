"""Running a kernel on several threads.

A kernel uses as many threads as the library that calls it (:class:`headway.kernels.HostThreads`). Only one kernel at a
time uses threads: if several threads decode at once, each with its own rows, there is nothing to gain.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any, ParamSpec

import numba
from numba.np.ufunc import parallel

from headway.kernels import host_threads
from headway.kernels.jit import SerialAndParallel

__all__ = ["run_serial_and_parallel", "run_threaded", "run_threaded_if_few_rows"]

_launch_threads: Any = parallel._launch_threads
P = ParamSpec("P")

_MAX_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # set at run time
_FEW_ROWS = 32
_lock = threading.Lock()
_both_forms = False
_requested = threading.local()  # the number of Numba threads that each thread last requested


def run_threaded_if_few_rows(
    rows: int, kernel: SerialAndParallel[P], /, *arguments: P.args, **keywords: P.kwargs
) -> None:
    """Run a matrix product; threads help with few rows, because two threads read the weights faster than one."""
    if rows > _FEW_ROWS:
        kernel.serial(*arguments, **keywords)
    else:
        run_threaded(kernel, *arguments, **keywords)


@contextlib.contextmanager
def run_serial_and_parallel() -> Iterator[None]:
    """Run both forms of each kernel inside the block, so that both are compiled."""
    global _both_forms
    _both_forms = True
    try:
        yield
    finally:
        _both_forms = False


def run_threaded(kernel: SerialAndParallel[P], /, *arguments: P.args, **keywords: P.kwargs) -> None:
    """Run the parallel form of ``kernel`` if threads are available, otherwise its serial form."""
    if _both_forms:
        kernel.serial(*arguments, **keywords)
        kernel.parallel(*arguments, **keywords)
        return
    threads = min(host_threads.get(), kernel.max_threads or _MAX_THREADS, _MAX_THREADS)
    if threads < 2 or not _lock.acquire(blocking=False):
        kernel.serial(*arguments, **keywords)
        return
    try:
        if not _threads_start_fast():
            kernel.serial(*arguments, **keywords)
            return
        if getattr(_requested, "threads", None) != threads:
            numba.set_num_threads(threads)
            _requested.threads = threads
        kernel.parallel(*arguments, **keywords)
    finally:
        _lock.release()


def _after_fork() -> None:
    """Use one thread in a forked process: OpenMP aborts if its parent process had used OpenMP."""
    global _MAX_THREADS, _lock
    _MAX_THREADS, _lock = 1, threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _threads_start_fast() -> bool:
    """Return whether Numba uses OpenMP or TBB. Its own thread pool takes 200 microseconds to start a loop.

    Starting OpenMP changes the number of threads of a library that uses it, too, so that is restored.
    """
    before = host_threads.get()
    _launch_threads()
    host_threads.set(before)
    layer: str = numba.threading_layer()  # type: ignore[attr-defined]  # imported at run time
    return layer in ("omp", "tbb")
