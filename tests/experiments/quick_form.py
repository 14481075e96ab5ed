"""The quick version of all experiments, run once for all tests of this folder, like a user and without shape checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from headway.experiments import EXPERIMENT_NAMES
from headway.experiments.experiment import Numbers, Settings


@pytest.fixture(scope="session")
def quick_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of ``headway experiment all --quick --seeds 1``, which all workers of a test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "quick"
    words = ["experiment", "all", "--quick", "--seeds", "1", "-o", str(folder)]
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").is_file():
            ended = subprocess.run(
                [sys.executable, "-W", "error", "-m", "headway", *words],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
            )
            assert ended.returncode == 0, ended.stderr
            (folder / "done").touch()
    return folder


@pytest.fixture(scope="session")
def quick_settings(quick_folder: Path) -> Settings:
    """The settings of the quick version, with its trained models."""
    return Settings(True, (1,), None, quick_folder / "work" / "quick", lambda line: None)


@pytest.fixture(scope="session")
def measured(quick_folder: Path) -> dict[str, Numbers]:
    """The numbers of each experiment in the quick version."""
    return {
        name: json.loads((quick_folder / f"{name}.json").read_text(encoding="utf-8"))["numbers"]
        for name in EXPERIMENT_NAMES
    }
