"""Warn the user if other processes slow training down."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from headway.contention import OtherProcessLoad, exceeds_processors, num_cores, processor_wait_s, waiting_advice

_INTERVAL_S = 10.0
_MIN_SHARE_WAITED = 0.2


class SlowdownMonitor:
    """Reports once if training threads often wait for processors that other processes use.

    Time spent waiting for other threads or for data is not counted, and nothing is reported on an otherwise idle
    machine.

    Args:
        say: Function that shows a line of text to the user.
        processes: Number of processes of this training job on this machine. If there are several, their processor use
            cannot be distinguished from the use by other programs, so the notice appears only if they have too many
            threads.
    """

    def __init__(self, say: Callable[[str], None], processes: int = 1) -> None:
        self._say, self._processes = say, processes
        self._is_done = False
        self._start, self._waited, self._others = time.monotonic(), processor_wait_s(), OtherProcessLoad()

    def check(self) -> None:
        """Report a slowdown if one is detected. Call this after every step; it measures only every ten seconds."""
        elapsed = time.monotonic() - self._start
        if self._is_done or elapsed < _INTERVAL_S:
            return
        threads, others, before = torch.get_num_threads(), self._others.measure(), self._waited
        self._start, self._waited = time.monotonic(), processor_wait_s()
        share = min(1.0, (self._waited - before) / elapsed)
        if share < _MIN_SHARE_WAITED or not exceeds_processors(threads, others):
            return
        cores = num_cores()
        if self._processes > 1:
            if (total := self._processes * threads) > cores:
                self._is_done = True
                fewer = cores // self._processes
                self._say(
                    f"the {self._processes} processes of this run have {total} threads for {cores} processors, which "
                    f"slows training down: threads wait for a processor {share:.0%} of the time; "
                    + (f"set OMP_NUM_THREADS={fewer}" if fewer else "start fewer processes")
                )
            return
        self._is_done = True
        advice = ["stop other programs"]
        if (fewer := max(1, round(cores - others))) < threads:
            advice.append(f"train with OMP_NUM_THREADS={fewer}")
        if threads > 1 and (setting := waiting_advice()):
            advice.append(setting)
        self._say(
            f"other processes slow training down: they use {others:.1f} of {cores} processors, and training (with "
            f"{threads} thread{'s' * (threads > 1)}) waits for a processor {share:.0%} of the time; "
            f"{', or '.join(advice)}"
        )
