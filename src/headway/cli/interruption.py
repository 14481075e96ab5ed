"""Ctrl-C stops a command whatever it is doing: a lost KeyboardInterrupt is repeated."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["repeat_lost_interrupts"]

_SOON = 0.01  # seconds


@contextmanager
def repeat_lost_interrupts() -> Iterator[None]:
    """Interrupt again if an interrupt was lost and the command has not ended.

    Python discards exceptions raised in a finalizer (``__del__``) or in a callback from compiled code, including
    ``KeyboardInterrupt``. Compilers run many of both, and a command that then waits for its input would never end.
    """
    main = threading.main_thread().ident
    if threading.get_ident() != main or not hasattr(signal, "pthread_kill"):  # missing on Windows
        yield
        return
    report, timers = sys.unraisablehook, list[threading.Timer]()

    def notice(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            report(lost)
            return
        # Interrupt later, because an exception raised here would be lost again. A signal also ends a blocking read.
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
