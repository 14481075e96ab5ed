"""Training commands let PyTorch use huge pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.training_runs import use_huge_pages

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PROGRAM = """
from headway.cli.training_runs import use_huge_pages
use_huge_pages()
import torch
large = torch.ones(16 << 20)
print(open("/proc/self/smaps_rollup").read().split("AnonHugePages:")[1].split()[0])
"""


def test_the_users_own_setting_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    use_huge_pages()
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == "0"


@pytest.mark.skipif(
    not _SETTING.exists() or "[never]" in _SETTING.read_text(), reason="this system has no transparent huge pages"
)
@pytest.mark.slow
def test_large_tensors_are_in_huge_pages() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    found = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, env=environment, check=True
    )
    assert int(found.stdout) >= 32 << 10  # kB; half of the tensor, in case the system is short of whole huge pages
