"""Ctrl-C stops a command, whatever it is doing at the moment."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["never_lost"]

_SOON = 0.01  # seconds


@contextmanager
def never_lost() -> Iterator[None]:
    """Interrupt once more where an interruption was lost, if the command has not ended by then.

    Python throws away what is raised in a finaliser (``__del__``) or in a callback from compiled code, a
    ``KeyboardInterrupt`` as well; compilers run many of both, and a command that then waits for its input would wait
    for ever.
    """
    main = threading.main_thread().ident
    if threading.get_ident() != main or not hasattr(signal, "pthread_kill"):  # Windows has it not
        yield
        return
    report, timers = sys.unraisablehook, list[threading.Timer]()

    def notice(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report(lost)
            return
        # Not now, or it would be lost again in here; and as a signal to the thread, which ends its waiting.
        timers.append(threading.Timer(_SOON, signal.pthread_kill, (main, signal.SIGINT)))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = notice
    try:
        yield
    finally:
        sys.unraisablehook = report
        for timer in timers:
            timer.cancel()
