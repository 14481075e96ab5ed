"""Standard input, output and error of a command, whatever the locale is and even if the caller has closed them.

Results are UTF-8 in every locale, so that the output of one command is valid input for another. Messages and help are
in the locale's encoding, as the terminal expects; characters that it cannot encode are replaced.

On a terminal, control characters in results are shown as escapes (``\\x1b``), because texts and models from elsewhere
may contain sequences that change the terminal. Results are written to files and pipes unchanged.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from io import TextIOWrapper
from pathlib import Path
from typing import Any

_STREAMS = {"stdin": "r", "stdout": "w", "stderr": "w"}  # in the order of their file descriptors
# All of C0, DEL and C1, except tab, LF, and CR before LF. Format characters, such as the joiners in emoji, are text.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


class TerminalStream(TextIOWrapper):
    """A terminal that shows control characters as escapes."""

    def write(self, text: str, /) -> int:
        """Write a text, and return the length of the text before escaping."""
        super().write(_CONTROL.sub(_escape, text))
        return len(text)


def _escape(control: re.Match[str]) -> str:
    return control[0].encode("unicode_escape").decode("ascii")


def prepare_standard_streams() -> None:
    """Open closed standard streams as the null device, and replace characters that messages cannot encode.

    Schedulers and launchers close descriptors (``<&-``, ``>&-``). Python then sets the stream to None, and the next
    file that is opened gets its descriptor, so other code would write messages into that file.
    """
    for name, mode in _STREAMS.items():
        stream = getattr(sys, name)
        if stream is None:
            # The null device gets the lowest free descriptor, which is the descriptor of the closed stream.
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115  # open until the process ends
            os.set_inheritable(stream.fileno(), True)  # worker processes also need it
            setattr(sys, name, stream)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Python does this for standard error by default


def write_results_as_utf8() -> None:
    """Encode standard output as UTF-8 from now on, and escape control characters if it is a terminal.

    File names that are not valid UTF-8 are written unchanged.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.flush()
            terminal = os.fdopen(sys.stdout.fileno(), "wb", closefd=False)
            sys.stdout = TerminalStream(terminal, line_buffering=True)
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")


def with_utf8_results(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with standard output in UTF-8 while it runs; its help stays in the locale's encoding."""

    @wraps(command)
    def run(*arguments: Any, **keywords: Any) -> None:
        write_results_as_utf8()
        command(*arguments, **keywords)

    return run
