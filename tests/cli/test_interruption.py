"""Ctrl-C at moments when Python discards exceptions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOST = """
import os, signal, sys, time
from headway.cli import repeat_lost_interrupts

class Finalised:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def come_to_an_end():
    with repeat_lost_interrupts():
        Finalised()
        print("lost", flush=True)
        os.read(0, 1)

try:
    come_to_an_end()
except KeyboardInterrupt:
    print("heard")
"""


def test_what_a_finaliser_loses_is_heard_while_waiting_for_input() -> None:
    reading, writing = os.pipe()  # nothing is ever written
    done = subprocess.run([sys.executable, "-c", LOST], stdin=reading, capture_output=True, text=True, timeout=60)
    os.close(reading)
    os.close(writing)
    assert (done.stdout, done.stderr) == ("lost\nheard\n", "")


def test_other_errors_are_printed_and_all_settings_are_restored() -> None:
    script = """
import sys
from headway.cli import repeat_lost_interrupts

class Failing:
    def __del__(self):
        raise ValueError("in a finaliser")

before = sys.unraisablehook
with repeat_lost_interrupts():
    Failing()
assert sys.unraisablehook is before
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("ValueError: in a finaliser\n")


def test_the_exit_code_is_130_though_python_was_executing_a_string(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("""
import sys, typer
from headway import cli

cli.app = typer.Typer()

@cli.app.command()
def interrupted():
    exec("raise KeyboardInterrupt")

sys.argv = ["headway"]
cli.main()
""")
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "headway: interrupted\n")
