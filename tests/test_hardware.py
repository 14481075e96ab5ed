"""Settings of the machine that change how a process uses its memory."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from pathlib import Path
from headway.hardware import move_to_huge_pages

def megabytes_in_huge_pages():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:")) // 1024

numbers = [str(number) for number in range(2_000_000)]
before = megabytes_in_huge_pages()
move_to_huge_pages()
print(before, megabytes_in_huge_pages())
assert numbers == [str(number) for number in range(2_000_000)]
"""


def test_objects_move_to_huge_pages() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    version = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in platform.release().split(".")[:2])
    if not setting.exists() or "[never]" in setting.read_text() or version < (6, 1):
        pytest.skip("this system cannot move memory to huge pages (Linux 6.1 or newer can, unless they are turned off)")
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after >= max(before, 80)  # the strings take 110 MB
