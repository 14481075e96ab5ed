"""Ctrl-C stops a command, whatever it is doing at the moment."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["never_lost"]

_SOON = 0.01  # seconds


@contextmanager
def never_lost() -> Iterator[None]:
    """Interrupt once more where an interruption was lost.

    Python throws away what is raised in a finaliser (``__del__``) or in a callback from compiled code, a
    ``KeyboardInterrupt`` as well; compilers run many of both, and a command that then waits for its input would wait
    for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    report = sys.unraisablehook

    def notice(lost: sys.UnraisableHookArgs) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _SOON)  # not now, or it would be lost again in here
        else:
            report(lost)

    def repeat(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, repeat)
    sys.unraisablehook = notice
    try:
        yield
    finally:
        sys.unraisablehook = report
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
