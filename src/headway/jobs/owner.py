"""Identify the process that works on a chunk, and detect whether it has died on this machine."""

from __future__ import annotations

import os
import platform
import secrets
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Owner:
    """A process that works on chunks.

    Attributes:
        id: A random name that is unique to the process.
        host: Host name of the machine, for messages.
        machine: Identifies the boot of the machine and the process namespace. Empty if the system does not report them.
        pid: Process id.
        started: Start time of the process in clock ticks since boot, because process ids are reused.
    """

    id: str
    host: str
    machine: str
    pid: int
    started: str

    @classmethod
    def this_process(cls) -> Owner:
        """Return the identity of this process, with a new random name."""
        pid = os.getpid()
        host = platform.node() or "unknown"
        return cls(f"{host}-{pid}-{secrets.token_hex(6)}", host, _machine(), pid, _started(pid))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Owner:
        """Create an owner from a dictionary that :meth:`as_dict` returned."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__})

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return asdict(self)

    def has_died(self) -> bool:
        """Return whether the process is known to have ended: it ran on this machine and no longer exists."""
        return bool(self.machine) and self.machine == _machine() and _started(self.pid) != self.started


@cache
def _machine() -> str:
    """Return an identifier of this boot of the machine and of the process namespace, which differs by container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Return the start time of a process, or "" if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]  # proc(5): fields 3 (state) and 22 (starttime)
