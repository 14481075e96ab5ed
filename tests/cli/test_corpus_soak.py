"""A short soak of a corpus job; ``benchmarks/corpus_soak.py`` does a long one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from command_line import write_lines
from corpus_soak import soak

pytest_plugins = ["model_folders"]  # the fixtures of that file


@pytest.mark.slow
def test_a_disturbed_job_gives_the_output_of_one_process(folders: dict[str, Path], tmp_path: Path) -> None:
    draws, words = random.Random(1), ["das", "rote", "Haus", "der", "Baum", "und", "grüne"]
    lines = [" ".join(draws.choices(words, k=draws.randrange(6))) for _ in range(3000)]
    source = write_lines(tmp_path / "in", lines)
    left = {"kill": 3, "term": 2, "stop": 1}
    report = soak(folders["translator"], source, lines=20_000, chunk_lines=512, seconds=20, left=left)
    assert "output identical" in report
