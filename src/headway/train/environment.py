"""Where a run was computed: versions, commit, precision, threads and processor, noted at every start.

The same recipe takes the same course bit for bit only where these are the same. ``environment.json`` in the run folder
holds one entry for each start, the newest last.
"""

from __future__ import annotations

import json
import platform
import subprocess
import warnings
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import headway
from headway.errors import CheckpointError
from headway.hardware import computes_bfloat16, processor_name
from headway.storage import atomic_write

__all__ = ["Environment", "commit", "note_start"]

_FILE = "environment.json"


@dataclass(frozen=True)
class Environment:
    """One start. ``precision`` is the one used, "float32" or "bfloat16"; ``commit`` is that of a checkout, or None."""

    started: str
    step: int
    headway: str
    commit: str | None
    torch: str
    numpy: str
    tokenizers: str
    python: str
    precision: str
    device: str
    processor: str
    threads: int
    processes: int


def note_start(run: Path, device: torch.device, precision: str, *, step: int, processes: int = 1) -> Environment:
    """Note this start, which goes on after ``step``, in the run folder, and return what it is computed with.

    ``precision`` is the recipe's. Where that is "auto", a run that is resumed stays with what it began with: another
    machine does not change its course silently. Whatever else may change the last bits is named in a warning. Of
    several processes one calls this for all.
    """
    entries = _entries(run / _FILE)
    before = entries[-1] if step and entries else {}
    best = "bfloat16" if computes_bfloat16(device) else "float32"
    resolved = before.get("precision", best) if precision == "auto" else precision
    now = Environment(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        step=step,
        headway=version("headway"),
        commit=commit(),
        torch=torch.__version__,
        numpy=version("numpy"),
        tokenizers=version("tokenizers"),
        python=platform.python_version(),
        precision=resolved,
        device=device.type,
        processor=torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        threads=torch.get_num_threads(),
        processes=processes,
    )
    if precision == "auto" and resolved != best:
        slow = f"{resolved} is slow here" if best == "float32" else f"{best} is faster here"
        warnings.warn(
            f"training.precision = 'auto': the run began in {resolved} and stays with it, though {slow}; "
            "to change it, start over with --fresh",
            stacklevel=2,
        )
    _warn_of_changes(before, asdict(now))
    with atomic_write(run / _FILE) as aside:
        aside.write_text(json.dumps([*entries, asdict(now)], indent=2) + "\n", encoding="utf-8")
    return now


def _warn_of_changes(before: dict[str, Any], now: dict[str, Any]) -> None:
    names = ("torch", "precision", "device", "processor", "threads", "processes")
    changed = [
        f"{name} was {before[name]}, is {now[name]}" for name in names if before.get(name, now[name]) != now[name]
    ]
    if changed:
        warnings.warn(
            f"resuming where {'; '.join(changed)}: training goes on as well as before, but not bit for bit as it would "
            "have without the change",
            stacklevel=3,
        )


def _entries(path: Path) -> list[dict[str, Any]]:
    """The starts so far."""
    if not path.exists():
        return []
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
            return entries
        reason = "not a list of starts"
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    raise CheckpointError(
        f"{path}: damaged ({reason}), and it tells which precision the run began with; put it back from a copy, or "
        "remove it to go on with what training.precision means on this machine"
    )


def commit() -> str | None:
    """The commit that the package runs from, with "+" where files differ from it; None outside a checkout."""
    folder = Path(headway.__file__).parent
    try:
        if not _git(folder, "ls-files", "--", "__init__.py"):  # inside another project's checkout, say
            return None
        return _git(folder, "rev-parse", "HEAD") + ("+" if _git(folder, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
