"""Convert the lines of a chunk whose workers have died, and find the line that caused it.

A line may crash the process that converts it: a kernel fails, or the system kills the process because it uses too much
memory. The lines are therefore converted in a forked process. If this process dies, each half of the lines is converted
in another process, and so on, down to a single line. A line that ends two processes has failed.
"""

from __future__ import annotations

import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress

from headway.errors import HeadwayError
from headway.jobs.line_map import ConvertedBatch, Line, LineMap

_ATTEMPTS = 2  # attempts per single line, because a process may also be killed for another reason
_children = set[int]()


def convert_isolated(line_map: LineMap, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch:
    """Return the result of ``line_map.convert``, in which lines that end the process are marked as failed."""
    cause = ""
    for _ in range(_ATTEMPTS if len(lines) == 1 else 1):
        batch = _in_child(line_map, lines, first_line, location)
        if isinstance(batch, ConvertedBatch):
            return batch
        cause = batch
    if len(lines) == 1:
        reason = f"crashes the process that converts it ({cause})"
        return ConvertedBatch([line_map.make_failed_line(lines[0], first_line, location, reason)])
    half = len(lines) // 2
    first = convert_isolated(line_map, lines[:half], first_line, location)
    second = convert_isolated(line_map, lines[half:], first_line + half, location)
    return ConvertedBatch([*first.lines, *second.lines], first.counts + second.counts)


def kill_children() -> None:
    """Kill the processes that this process has forked."""
    for child in _children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def _in_child(line_map: LineMap, lines: Sequence[Line], first_line: int, location: str) -> ConvertedBatch | str:
    """Convert lines in a forked process. If the process dies, return the reason.

    Raises:
        HeadwayError: The operation has raised this exception.
    """
    receiving, sending = os.pipe()
    with warnings.catch_warnings():
        # Python warns because the thread that renews the lease is running. The child does not use any lock that this
        # thread may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(receiving)
        _become_child(line_map, lines, first_line, location, sending)
    _children.add(child)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    _children.discard(child)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return signal.Signals(-code).name
    if code:
        return f"exit code {code}"
    outcome = pickle.loads(content)
    if isinstance(outcome, Exception):
        raise outcome
    assert isinstance(outcome, ConvertedBatch)
    return outcome


def _become_child(line_map: LineMap, lines: Sequence[Line], first_line: int, location: str, sending: int) -> None:
    """Convert lines, send the outcome to the parent process, and exit."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        outcome: object
        try:
            outcome = line_map.convert(lines, first_line, location)
        except HeadwayError as error:
            outcome = error
        with os.fdopen(sending, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
