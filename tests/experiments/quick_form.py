"""The quick form of all experiments, run once for all tests here: as a user does, so without the checks of shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.experiments import NAMES
from headway.experiments.experiment import Numbers, Settings


@pytest.fixture(scope="session")
def quick_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of ``headway experiment all --quick --seeds 1``."""
    folder = tmp_path_factory.mktemp("quick")
    words = ["experiment", "all", "--quick", "--seeds", "1", "-o", str(folder)]
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-m", "headway", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="session")
def quick_settings(quick_folder: Path) -> Settings:
    """Its settings, with its trained models."""
    return Settings(True, (1,), None, quick_folder / "work" / "quick", lambda line: None)


@pytest.fixture(scope="session")
def measured(quick_folder: Path) -> dict[str, Numbers]:
    """The numbers of each experiment."""
    return {name: json.loads((quick_folder / f"{name}.json").read_text(encoding="utf-8"))["numbers"] for name in NAMES}
