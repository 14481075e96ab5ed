"""Facts about the process of a command. Of several that torchrun started, only process 0 writes messages."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["is_first_start", "is_main", "let_main_report_first", "may_be_restarted", "without_garbage_collection"]

_WAIT_FOR_MAIN_S = 5.0


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect no garbage in the block, which imports modules; later collections skip what the first block created.

    Imports create hundreds of thousands of objects that stay. To look for garbage among them takes a fifth of the
    time of translating one sentence.
    """
    is_first = gc.get_freeze_count() == 0
    gc.disable()
    try:
        yield
    finally:
        if is_first:
            gc.freeze()
        gc.enable()


def is_main() -> bool:
    """Return whether this is process 0 or the only process."""
    return os.environ.get("RANK", "0") == "0"


def is_first_start() -> bool:
    """Return whether this is the first start, not a restart by torchrun after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def may_be_restarted() -> bool:
    """Return whether torchrun will restart this process if it fails."""
    done, most = (int(os.environ.get(f"TORCHELASTIC_{name}", "0")) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return done < most


def let_main_report_first() -> str:
    """Give process 0 time to report a failure first; return the prefix of this process's own message.

    Usually all processes fail for one reason. torchrun ends the others while they wait here, once process 0 has ended.
    """
    if is_main():
        return ""
    time.sleep(_WAIT_FOR_MAIN_S)
    return f"process {os.environ['RANK']}: "
