"""Renew a lease in a thread while the work is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from headway.jobs.protocol import ChunkProtocol, Lease


@contextmanager
def keep_renewed(protocol: ChunkProtocol, lease: Lease, on_loss: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Renew a lease in a thread until the end of the block. The thread calls ``on_loss`` if the chunk is taken over."""
    done = threading.Event()

    def renew() -> None:
        while not done.wait(protocol.timing.renew_s):
            with suppress(OSError):  # the next renewal may succeed
                if not protocol.renew(lease):
                    on_loss()
                    return

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
