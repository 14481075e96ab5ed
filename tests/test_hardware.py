"""Settings of the machine that change how a process uses its memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from pathlib import Path
from headway.hardware import move_to_huge_pages

def megabytes_in_huge_pages():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:")) // 1024

numbers = [str(number) for number in range(2_000_000)]
before = megabytes_in_huge_pages()
move_to_huge_pages(shares_weights=bool(sys.argv[1:]))
print(before, megabytes_in_huge_pages())
assert numbers == [str(number) for number in range(2_000_000)]
"""


def megabytes_before_and_after(*arguments: str) -> tuple[int, int]:
    """Return how much of the memory of a process is in huge pages before and after the move."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    version = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in platform.release().split(".")[:2])
    if version < (6, 1) or not setting.exists() or "[madvise]" not in setting.read_text():
        pytest.skip("needs Linux 6.1 or newer, and huge pages for those that request them")
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    before, after = subprocess.check_output(command, env=environment, text=True).split()
    return int(before), int(after)


@pytest.mark.slow
def test_objects_move_to_huge_pages() -> None:
    before, after = megabytes_before_and_after()
    assert before < 80 <= after  # the strings take 128 MB


@pytest.mark.slow
def test_nothing_moves_if_shared_weights_cannot_be_recognized() -> None:
    before, after = megabytes_before_and_after("shares weights")
    assert before == after
