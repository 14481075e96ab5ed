"""A service that runs in processes of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from unpacking import unpack_archive

_RECORDED = Path(__file__).parents[1] / "compat" / "recorded" / "bundle-transformer-int8.tar.xz"


def unpack_model(folder: Path) -> Path:
    """Return the folder of a small model that was never trained."""
    unpack_archive(_RECORDED, folder)
    return folder / "model"


class RunningService:
    """The process of a service, its address and what it has logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.log = process, list[str]()
        assert process.stderr is not None
        self.url = ""
        for line in process.stderr:
            self.log.append(line)
            if found := re.search(r"serving .* on (http://\S+)", line):
                self.url = found[1]
                break
        assert self.url, "".join(self.log)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # closed
            self.log.extend(self.process.stderr or ())

    def cpu_seconds(self) -> float:
        """Return the processor time that its processes have taken, which other work on the machine does not change."""
        ticks, pids = 0, [self.process.pid]
        for pid in pids:  # grows by the children
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        """End the service as an operator does, and return its exit status. No process may log a traceback."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(120)
        self._reader.join(120)
        assert not any("Traceback" in line for line in self.log), "".join(self.log)
        return status


@contextlib.contextmanager
def running(arguments: Sequence[str]) -> Iterator[RunningService]:
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "serve", *arguments, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    with process:
        try:
            yield RunningService(process)
        finally:
            process.kill()


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until ``condition`` is true. It fails after a time that is only reached if the condition never holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"nothing happened for {seconds} seconds"
        time.sleep(0.05)
