"""Limits of the length ratio, and lines with equal keys, against results worked out by hand or by brute force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.corpus.cleaning import repeats
from headway.corpus.cleaning.length_ratio import RatioHistogram
from headway.corpus.cleaning.repeats import KeyPartitions
from headway.corpus.cleaning.similarity import comparison_key, copy_similarity, repetition_share


def test_faults_in_a_fifth_of_the_corpus_hardly_change_the_limits() -> None:
    dice = np.random.default_rng(0)
    source = dice.integers(20, 200, 20_000).astype(np.float32)
    clean = np.maximum(np.round(source * np.exp(dice.normal(0.1, 0.15, len(source)))), 1).astype(np.float32)
    damaged = clean.copy()
    damaged[:4000] = dice.permutation(clean[:4000])
    spreads = []
    for target in (clean, damaged):
        histogram = RatioHistogram()
        histogram.add(source, target)
        limits = histogram.limits()
        assert limits is not None
        assert np.median(limits.medians) == pytest.approx(0.1, abs=0.03)
        spreads.append(float(np.median(limits.spreads)))
    assert spreads[0] == pytest.approx(0.15, rel=0.1)
    assert spreads[1] < 1.5 * spreads[0]
    assert limits is not None
    assert limits is not None
    low, high = limits.ratios_at(60, 4)
    assert low < np.exp(0.1 - 3 * 0.15) < np.exp(0.1 + 3 * 0.15) < high


def test_a_corpus_without_pairs_has_no_limits() -> None:
    assert RatioHistogram().limits() is None


@pytest.mark.parametrize("partition_lines", [7, 1 << 20])
def test_repeats_and_contradictions_are_those_of_brute_force(
    partition_lines: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "_PARTITION_LINES", partition_lines)
    monkeypatch.setattr(repeats, "_BUFFER_LINES", 50)
    dice = np.random.default_rng(1)
    lines = np.arange(300)
    keys, others = (dice.integers(0, high, 300).astype(np.uint64) for high in (60, 3))
    batches = [
        (lines[start : start + 40], keys[start : start + 40], others[start : start + 40]) for start in range(0, 300, 40)
    ]
    partitions = KeyPartitions(tmp_path / "keys", 300, batches)
    repeated, contradictory = np.zeros(300, bool), np.zeros(300, bool)
    expected = [key in keys[:number] for number, key in enumerate(keys)]
    assert partitions.mark_repeats(repeated) == sum(expected) == partitions.count_repeats()
    assert repeated.tolist() == expected
    labels = {key: {*others[keys == key].tolist()} for key in keys.tolist()}
    assert partitions.mark_contradictions(contradictory) == contradictory.sum()
    assert contradictory.tolist() == [len(labels[key]) > 1 for key in keys.tolist()]
    partitions.remove()
    assert not (tmp_path / "keys").exists()


def test_keys_ignore_case_and_punctuation_only() -> None:
    assert comparison_key("Hallo, Welt!") == comparison_key("hallo Welt") == "hallo welt"
    assert comparison_key("5 €") != comparison_key("5 $")
    assert comparison_key("...") == "..."
    assert comparison_key("कि") != comparison_key("के")


def test_copies_are_similar_and_translations_are_not() -> None:
    assert copy_similarity("das ist ein haus", "das ist ein haus") == 1.0
    similar = copy_similarity("das ist ein großes haus", "ist ein großes haus")
    assert similar is not None
    assert similar > 0.9
    different = copy_similarity("tom ist heute in boston", "tom is in boston today")
    assert different is not None
    assert different < 0.8
    assert copy_similarity("tom", "tom") is None


def test_repetition_is_the_share_of_repeated_ngrams() -> None:
    assert repetition_share("Ja, ja.") is None
    assert repetition_share("ha" * 50) == pytest.approx(1 - 2 / 95)
    once = repetition_share("Der Hund läuft über die Wiese und bellt den Mond an.")
    assert once == 0.0
