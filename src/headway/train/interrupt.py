"""Ctrl-C and SIGTERM: the first one asks training to finish its step and save, the next one acts as usual."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interruptible"]


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that the first signal sets. Only the main thread hears signals; in another the event stays unset."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in signals}

    def note(_number: int, _frame: FrameType | None) -> None:
        event.set()
        for number, handler in previous.items():
            signal.signal(number, handler)

    for number in signals:
        signal.signal(number, note)
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
