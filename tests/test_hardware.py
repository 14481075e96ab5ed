"""Settings of the machine that change how a process uses its memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headway import hardware

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


@pytest.mark.parametrize(
    ("features", "name", "is_fast", "has_instructions"),
    [
        ({"avx2"}, "Intel(R) Core(TM) i7", False, False),
        ({"avx512_bf16"}, "AMD EPYC 9B45", True, True),
        ({"avx512_bf16"}, "Intel(R) Xeon(R) Processor", False, True),  # of a virtual machine that hides AMX
        ({"avx512_bf16", "amx_bf16"}, "Intel(R) Xeon(R) Processor", True, True),
    ],
)
def test_bfloat16_is_used_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, features: set[str], name: str, is_fast: bool, has_instructions: bool
) -> None:
    monkeypatch.setattr(hardware, "_processor_features", lambda: frozenset(features))
    monkeypatch.setattr(hardware, "processor_name", lambda: name)
    assert hardware.has_fast_bfloat16(torch.device("cpu")) == is_fast
    assert hardware.processor_has_bfloat16() == has_instructions
