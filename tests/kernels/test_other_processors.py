"""Tiles of other processors. The slow tests compile everything again for one more processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway import kernels

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

SCRIPT = Path(__file__).with_name("emulation.py")


@pytest.mark.parametrize(
    "processor",
    ["avx2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("avx2-vnni", "avx512", "avx512-vnni"))],
)
def test_products_are_those_of_numpy(processor: str, tmp_path: Path) -> None:
    # Code compiled for another processor must not be reused, and the features are those of the emulated processor.
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "HEADWAY_CPU_FEATURES": ""}
    command = [sys.executable, str(SCRIPT), processor]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
