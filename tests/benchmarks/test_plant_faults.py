"""Faults that are planted in a corpus, and counting those that were found."""

from __future__ import annotations

import json
from pathlib import Path

import plant_faults
import pytest
import zstandard
from plant_faults import Planter, count_found, write_pairs

WORDS = ["haus", "baum", "grün", "straße", "kind", "7", "läuft", "singt", "über", "feld"]


@pytest.fixture(scope="module")
def planter() -> Planter:
    """Return a damaged corpus of 3,000 pairs, of which each target has the words of its source in upper case."""
    pairs = []
    for number in range(3_000):
        words = [f"{WORDS[(number * step) % 10]}{number % 7 if step == 3 else ''}" for step in (1, 3, 7, 9)]
        source = f"Satz {number}, {' '.join(words)} {' '.join(reversed(words))}."
        pairs.append((source, source.upper().replace("SATZ", "SENTENCE")))
    damaged = Planter(pairs, [f"une phrase française {number}" for number in range(50)], seed=1)
    damaged.plant()
    return damaged


def test_a_fifth_of_the_pairs_is_damaged_and_recorded(planter: Planter) -> None:
    records = list(planter.records())
    assert len(records) == len(planter.pairs) // 5
    assert {record["kind"] for record in records} == {*plant_faults.SHARES}
    for index, (before, after) in enumerate(zip(planter.pairs, planter.damaged, strict=True)):
        assert (before != after) == (index in planter.kinds)


def test_dropped_and_repaired_faults_are_found_and_good_pairs_are_lost(tmp_path: Path, planter: Planter) -> None:
    faults, cleaned = tmp_path / "faults", tmp_path / "cleaned"
    faults.mkdir()
    cleaned.mkdir()
    write_pairs(planter.damaged, faults / "damaged")
    records = list(planter.records())
    (faults / "faults.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    repaired = {record["line"] for record in records if record["kind"] == "markup"}
    dropped = {record["line"] for record in records if record["kind"] in ("copy", "random")}
    good = next(line for line in range(1, 3_000) if line - 1 not in planter.kinds)
    log = "".join(json.dumps({"line": line, "rule": "some"}) + "\n" for line in {*dropped, good})
    (cleaned / "dropped.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(log.encode()))
    kept = [
        planter.pairs[line - 1] if line in repaired else planter.damaged[line - 1]
        for line in range(1, 3_001)
        if line not in dropped and line != good
    ]
    write_pairs(kept, cleaned / "kept")
    counts = count_found(faults, cleaned)
    for kind, row in counts["kinds"].items():
        assert row["found"] == (row["planted"] if kind in ("markup", "copy", "random") else 0), kind
        assert row["repaired"] == (row["planted"] if kind == "markup" else 0)
    assert counts["lost lines"] == [good]
