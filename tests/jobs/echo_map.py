"""An operation that needs no model: it upper-cases lines, and fails for some."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError
from headway.jobs.line_map import ConvertedBatch, ConvertedLine, Line
from headway.jobs.plan import JobRequest, Plan, make_plan
from headway.jobs.protocol import Timing


class EchoMap:
    """Upper-cases lines. ``bad`` fails, ``kill`` ends the process, ``sleep`` takes a second, ``stop`` ends the job.

    Args:
        processor: What results seem to depend on.
    """

    def __init__(self, processor: dict[str, Any] | None = None) -> None:
        self.processor = processor or {"features": ["none"]}

    def convert(self, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch:
        batch = ConvertedBatch([], Counter())
        for number, line in enumerate(lines, start=first_line):
            text = "|".join(part.decode("utf-8", "replace") for part in line)
            if text == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if text == "sleep":
                time.sleep(1)
            if text == "stop":
                raise HeadwayError("the operation stops", where=f"{location}, line {number}")
            if text == "bad":
                batch.lines.append(self.make_failed_line(line, number, location, "a bad line"))
            else:
                batch.lines.append(ConvertedLine(f"{number} {text.upper()}\n"))
                batch.counts["lines"] += 1
        return batch

    def make_failed_line(self, line: Line, number: int, location: str, reason: str) -> ConvertedLine:
        return ConvertedLine("\n", reason)


def echo_plan(folder: Path, *inputs: Sequence[Path], chunk_lines: int | None = 3, **options: Any) -> Plan:
    """Return the plan of a job that echoes files."""
    timing = Timing(renew_s=0.2, expire_s=2.0, poll_s=0.05)
    return make_plan(folder, JobRequest("echo", options, {}, inputs, chunk_lines, timing))


if __name__ == "__main__":  # the process that supervises workers: python echo_map.py FOLDER WORKERS
    import sys

    from headway.jobs.processes import supervise

    supervise(Plan(Path(sys.argv[1])), EchoMap, int(sys.argv[2]))
