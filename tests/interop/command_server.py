"""Run commands in processes that are forked from one that has imported PyTorch, but not the client of the Hub.

Each process has its own environment, which the client reads when it is imported, and costs no import of PyTorch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EndedCommand:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


class CommandServer:
    """The process that the commands are forked from."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, words: list[str], folder: Path, environment: dict[str, str], setup: str) -> EndedCommand:
        """Run a command of Headway in a working directory, after some code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"words": words, "folder": str(folder), "environment": environment, "setup": setup}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return EndedCommand(**json.loads(self._process.stdout.readline()))

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve() -> None:
    """Run the commands that standard input names, one after the other."""
    import headway.cli
    import headway.interop.importing
    import headway.predict.translation.translator
    import headway.tasks  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        output, errors = Path(request["folder"], ".out"), Path(request["folder"], ".err")
        if (pid := os.fork()) == 0:
            _run(request, output, errors)
        _, status = os.waitpid(pid, 0)
        texts = (path.read_text(encoding="utf-8") for path in (output, errors))
        answers.write(json.dumps(dict(zip(("stdout", "stderr"), texts, strict=True),
                                      returncode=os.waitstatus_to_exitcode(status))) + "\n")  # fmt: skip
        answers.flush()


def _run(request: dict[str, object], output: Path, errors: Path) -> None:
    """Run a command in this process, which ends with it."""
    import headway.cli

    code: object = 1
    try:
        os.chdir(str(request["folder"]))
        for descriptor, path in ((1, output), (2, errors)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]
        time.sleep = lambda seconds: None
        sys.argv = ["headway", *request["words"]]  # type: ignore[misc]
        exec(str(request["setup"]), {"sys": sys})
        headway.cli.main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve()
