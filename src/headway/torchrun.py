"""Rank and restarts of the current process. If torchrun started several processes, only rank 0 writes messages."""

from __future__ import annotations

import os
import time

_WAIT_FOR_MAIN_S = 5.0


def is_main_process() -> bool:
    """Return whether this is process 0, or the only process."""
    return os.environ.get("RANK", "0") == "0"


def is_first_start() -> bool:
    """Return whether this is the first start, not a restart by torchrun after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def may_be_restarted() -> bool:
    """Return whether torchrun will restart this process if it fails."""
    done, most = (int(os.environ.get(f"TORCHELASTIC_{name}", "0")) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return done < most


def let_main_report_first() -> str:
    """Give process 0 time to report a failure first. Return the prefix for this process's own message.

    Usually all processes fail for the same reason. When process 0 exits, torchrun terminates the other processes while
    they wait here, so the reason is printed only once.
    """
    if is_main_process():
        return ""
    time.sleep(_WAIT_FOR_MAIN_S)
    return f"process {os.environ['RANK']}: "
