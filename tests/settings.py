"""Run the suite once in each setting that changes how numbers are computed or how the tests are started.

    make test-settings                             # all settings, one after another; 8 minutes each on 2 cores
    make test-settings SETTINGS="onednn-avx2 no-numba" TESTS="tests/nn tests/engine"

Each setting imitates other hardware or another environment: fewer vector instructions for PyTorch or oneDNN, fewer
processor features for our own kernels, a machine without Numba, two threads, and a parent process that ignores Ctrl-C
(``nohup make test &``). The exit code is 1 if a setting fails, and the last lines show which settings failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent

# The environment variables of each setting.
SETTINGS: dict[str, dict[str, str]] = {
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "aten-avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "two-threads": {"OMP_NUM_THREADS": "2", "HEADWAY_TEST_THREADS": "2"},
    "kernels-avx2": {"HEADWAY_CPU_FEATURES": "avx2"},
    "kernels-none": {"HEADWAY_CPU_FEATURES": "none"},
    "no-numba": {"PYTHONPATH": str(TESTS / "without_numba")},
    "sigint-ignored": {},
}


def run(setting: str, arguments: list[str]) -> int:
    """Return the exit code of the suite in a setting."""
    variables = dict(SETTINGS[setting])
    if "PYTHONPATH" in variables and os.environ.get("PYTHONPATH"):
        variables["PYTHONPATH"] += os.pathsep + os.environ["PYTHONPATH"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal", *arguments]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if setting == "sigint-ignored" else None
    try:
        return subprocess.run(command, cwd=TESTS.parent, env=environment, check=False).returncode
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def main() -> None:
    """Run the settings named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description="Run the suite in several settings.")
    parser.add_argument("settings", nargs="*", help=f"any of {', '.join(SETTINGS)}; default: all")
    parser.add_argument("--tests", nargs="*", default=[], help="test files or folders, or options of pytest")
    asked = parser.parse_args()
    unknown = set(asked.settings) - SETTINGS.keys()
    if unknown:
        parser.error(f"unknown settings: {', '.join(sorted(unknown))}; known: {', '.join(SETTINGS)}")
    results = []
    for setting in asked.settings or SETTINGS:
        print(f"== {setting}: {SETTINGS[setting] or 'SIGINT is ignored'}", flush=True)
        start = time.monotonic()
        code = run(setting, asked.tests)
        results.append((setting, code, time.monotonic() - start))
    for setting, code, seconds in results:
        print(f"{setting:<15} {'passed' if code == 0 else f'FAILED (exit code {code})'} in {seconds:.0f} s")
    sys.exit(any(code for _, code, _ in results))


if __name__ == "__main__":
    main()
