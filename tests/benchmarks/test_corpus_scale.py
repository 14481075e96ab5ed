"""Many simulated workers on a large job: every line once, few operations for each chunk, and a fast status."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_scale import simulate


@pytest.mark.slow
def test_many_workers_share_a_large_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million lines; ``benchmarks/corpus_scale.py`` does a billion by hand."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    scale = simulate(tmp_path / "job", 10_000_001, 40)
    assert scale.lines_done == 10_000_001
    assert scale.deaths == 2
    assert scale.chunks_again <= scale.deaths
    assert scale.operations_per_chunk <= 8
