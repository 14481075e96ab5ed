"""A message to the user if processes that compete for the processors slow training down."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from headway.contention import OtherProcesses, exceeds_processors, num_cores, seconds_waited, waiting_advice

_INTERVAL_S = 10.0
_MIN_SHARE_WAITED = 0.2


class SlowdownNotice:
    """Reports once if the threads of training often wait for processors that other processes use.

    The waiting of threads for each other or for data does not count, and neither does a machine without other work.

    Args:
        say: Shows one line to the user.
        processes: How many processes of this training job run on this machine. If there are several, their use of the
            processors cannot be distinguished from that of other programs, so a report is made only if they have too
            many threads.
    """

    def __init__(self, say: Callable[[str], None], processes: int = 1) -> None:
        self._say, self._processes = say, processes
        self._is_done = False
        self._start, self._waited, self._others = time.monotonic(), seconds_waited(), OtherProcesses()

    def check(self) -> None:
        """Report a slowdown if one is detected. Measures every ten seconds, without any cost in between."""
        elapsed = time.monotonic() - self._start
        if self._is_done or elapsed < _INTERVAL_S:
            return
        threads, others, before = torch.get_num_threads(), self._others.processors(), self._waited
        self._start, self._waited = time.monotonic(), seconds_waited()
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
                    f"slows training down: a thread waits for a processor {share:.0%} of the time; "
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
            f"{threads} thread{'s' * (threads > 1)}) waits for one {share:.0%} of the time; {', or '.join(advice)}"
        )
