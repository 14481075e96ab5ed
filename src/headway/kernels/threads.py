"""When threads share a loop.

They do where PyTorch may use several threads (``torch.set_num_threads``), and only one loop at a time: where several
threads search at once, each on rows of its own, there is nothing to gain.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch

from headway.kernels.compiling import compiled_for_threads

__all__ = ["share", "share_few"]

_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # which it sets at run time
_FEW = 32  # rows
_MOST = 8  # threads, which read as fast as the memory gives
_one_at_a_time = threading.Lock()
_asked = threading.local()  # for how many threads each thread has asked last


def share_few(rows: int, shared: Callable[..., None], alone: Callable[..., None], *arguments: Any) -> None:
    """:func:`share` a product that few rows make as long as reading its weights: two threads read more in a second."""
    if rows > _FEW:
        alone(*arguments)
    else:
        share(shared, alone, *arguments, most=_MOST)


def share(shared: Callable[..., None], alone: Callable[..., None], *arguments: Any, most: int = _THREADS) -> None:
    """Call ``shared``, whose loops at most so many threads share, or ``alone``, which is the same without them."""
    threads = min(torch.get_num_threads(), _THREADS, most)
    if threads < 2 or not _one_at_a_time.acquire(blocking=False):
        alone(*arguments)
        return
    try:
        if not _starts_fast():
            alone(*arguments)
            return
        if getattr(_asked, "threads", None) != threads:
            numba.set_num_threads(threads)
            _asked.threads = threads
        shared(*arguments)
    finally:
        _one_at_a_time.release()


def _after_fork() -> None:
    """OpenMP ends a process that was forked from one which had used it, and uses it again."""
    global _THREADS, _one_at_a_time
    _THREADS, _one_at_a_time = 1, threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _starts_fast() -> bool:
    """Whether Numba has OpenMP's or TBB's threads here. Those of its own take 200 microseconds to start.

    To start OpenMP's sets how many PyTorch uses, too; that is put back.
    """
    before = torch.get_num_threads()
    _touch(np.zeros(2))
    torch.set_num_threads(before)
    layer: str = numba.threading_layer()  # type: ignore[attr-defined]  # which it imports all the same
    return layer in ("omp", "tbb")


@compiled_for_threads
def _touch(x: Any) -> None:
    for i in numba.prange(len(x)):
        x[i] += 1
