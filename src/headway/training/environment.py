"""The environment of a run: versions, commit, precision, threads and processor, recorded at every start.

The same recipe gives bit-identical results only in the same environment. ``environment.json`` in the run folder
contains one entry per start, in chronological order.
"""

from __future__ import annotations

import json
import platform
import subprocess
import warnings
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from headway.data.draws import ORDER_VERSION
from headway.errors import CheckpointError
from headway.hardware import has_fast_bfloat16, processor_name
from headway.storage import atomic_write_text
from headway.version import __version__

_FILE = "environment.json"
_AFFECTS_LAST_BITS = ("torch", "numpy", "tokenizers", "precision", "device", "processor", "threads", "processes")


def record_environment(
    run: Path,
    device: torch.device,
    precision: str,
    *,
    step: int,
    world_size: int = 1,
    order_version: int = ORDER_VERSION,
) -> str:
    """Record that training starts after ``step``, and return the precision to use: "float32" or "bfloat16".

    ``precision`` is the recipe's setting. If it is "auto", a resumed run keeps its original precision, so that resuming
    on another machine does not silently change the results. Warns about all other changes that may affect the last bits
    of the results, and also if the order of the data may have changed, which is possible only in version 1 of the
    order. In distributed training, only one process calls this function.
    """
    starts = _recorded_starts(run / _FILE)
    before = starts[-1] if step and starts else {}
    best = "bfloat16" if has_fast_bfloat16(device) else "float32"
    resolved = str(before.get("precision", best)) if precision == "auto" else precision
    now = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "headway": __version__,
        "commit": git_commit(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "tokenizers": version("tokenizers"),
        "python": platform.python_version(),
        "precision": resolved,
        "device": device.type,
        "processor": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "threads": torch.get_num_threads(),
        "processes": world_size,
    }
    if precision == "auto" and resolved != best:
        slow = f"{resolved} is slow on this machine" if best == "float32" else f"{best} is faster on this machine"
        warnings.warn(
            f"training.precision = 'auto': the run was started in {resolved} and continues in it, although {slow}; to "
            "change the precision, start over with --fresh",
            stacklevel=2,
        )
    if changes := [
        f"{name} was {before[name]}, is {now[name]}"
        for name in _AFFECTS_LAST_BITS
        if before.get(name, now[name]) != now[name]
    ]:
        warnings.warn(
            f"the environment has changed ({'; '.join(changes)}): the resumed run is just as good, but not "
            "bit-identical to a run without the change",
            stacklevel=2,
        )
    if order_version == 1 and before.get("numpy", now["numpy"]) != now["numpy"]:
        warnings.warn(
            f"data.order_version = 1: the order of the data depends on NumPy (numpy was {before['numpy']}, is "
            f"{now['numpy']}). If the order has changed, the rest of this epoch repeats some examples and skips "
            f"others; install numpy=={before['numpy']} to avoid this",
            stacklevel=2,
        )
    atomic_write_text(run / _FILE, json.dumps([*starts, now], indent=2) + "\n")
    return resolved


def _recorded_starts(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        starts = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(starts, list) and all(isinstance(start, dict) for start in starts):
            return starts
        reason = "not a list of starts"
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    raise CheckpointError(
        f"{path}: damaged ({reason}). It records the precision of the run: restore it from a copy, or remove it to "
        "resume in the precision that training.precision selects on this machine"
    )


def git_commit() -> str | None:
    """Return the commit of the Git checkout that contains this package, or None if the package is not in a checkout.

    "+" is appended if there are uncommitted changes. Returns None for a package installed inside another project's
    checkout.
    """
    folder = Path(__file__).parents[1]
    try:
        if not _git(folder, "ls-files", "--", "__init__.py"):
            return None
        return _git(folder, "rev-parse", "HEAD") + ("+" if _git(folder, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
