"""Watch the parent process."""

from __future__ import annotations

import os
import threading
import time

_CHECK_S = 0.1


def end_with_parent(parent: int) -> None:
    """End this process soon after its parent process, whose id is ``parent``, has ended."""
    threading.Thread(target=_wait_and_end, args=(parent,), daemon=True).start()


def _wait_and_end(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_CHECK_S)
    os._exit(1)
