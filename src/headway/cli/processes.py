"""One training in several processes, which torchrun starts: they speak with one voice, that of process 0."""

from __future__ import annotations

import os
import time

__all__ = ["is_first_start", "is_main", "leave_to_main", "may_be_restarted"]

_POLITENESS_S = 5.0


def is_main() -> bool:
    """Whether this is process 0, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def is_first_start() -> bool:
    """Whether torchrun has not started this process again after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"


def may_be_restarted() -> bool:
    """Whether torchrun starts this process again if it fails."""
    done, most = (int(os.environ.get(f"TORCHELASTIC_{name}", "0")) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return done < most


def leave_to_main() -> str:
    """Before an end that is no success: let process 0 speak first, and return how another one is to introduce itself.

    Mostly all end for one reason. When process 0 has said it, torchrun ends the others while they wait here.
    """
    if is_main():
        return ""
    time.sleep(_POLITENESS_S)
    return f"process {os.environ['RANK']}: "
