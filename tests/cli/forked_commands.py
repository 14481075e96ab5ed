"""Run commands in forked processes of one Python process, which has imported PyTorch already.

Reads one JSON object per line from standard input: the words of a command, a folder to run in, and the descriptor that
the caller has closed, if any. Writes the exit code and the output of each command as a JSON object.
"""

from __future__ import annotations

import json
import locale
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch  # noqa: F401  # imported before the first fork

import headway.predict
import headway.training.loop  # noqa: F401
from headway.cli import main


def run_forked(words: list[str], folder: str, closed: int | None) -> dict[str, Any]:
    """Run a command as a program that is started with one closed descriptor."""
    with tempfile.TemporaryDirectory() as outputs:
        files = [Path(os.devnull), Path(outputs, "out"), Path(outputs, "err")]
        if (child := os.fork()) == 0:
            os.chdir(folder)
            encoding, errors = locale.getencoding(), ("strict", "strict", "backslashreplace")
            encoding = os.environ.get("PYTHONIOENCODING", encoding)
            for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
                mode = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT
                os.dup2(os.open(files[descriptor], mode), descriptor)
                stream = open(  # noqa: PTH123, SIM115
                    descriptor, "w" if descriptor else "r", encoding=encoding, errors=errors[descriptor]
                )
                setattr(sys, name, stream)
                setattr(sys, f"__{name}__", stream)
            if closed is not None:
                os.close(closed)
                setattr(sys, ("stdin", "stdout", "stderr")[closed], None)
            sys.argv = ["headway", *words]
            code = 1
            try:
                main()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        out, err = (path.read_bytes().decode("utf-8", "replace") if path.exists() else "" for path in files[1:])
    return {"code": os.waitstatus_to_exitcode(status), "out": out, "err": err}


if __name__ == "__main__":
    sys.stdin.reconfigure(encoding="ascii")  # type: ignore[union-attr]
    for line in sys.stdin:
        job = json.loads(line)
        words = [os.fsdecode(word.encode()) for word in job["words"]]  # as Python decodes arguments
        result = run_forked(words, os.fsdecode(job["folder"].encode()), job["closed"])
        print(json.dumps(result), flush=True)
