"""Draws from raw bits: the right distributions, and an order that does not rest on NumPy's own draws."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "compat"))
from orders import observed_orders, store

from headway.data.batching import TokenDataset
from headway.data.draws import StableGenerator


def test_uniform_numbers_are_the_high_bits() -> None:
    bits = np.random.Philox((3, 4)).random_raw(5)
    assert StableGenerator(3, 4).random(5).tolist() == [int(each >> np.uint64(11)) / 2**53 for each in bits]


def test_every_permutation_is_as_probable() -> None:
    """Chi-squared of 24 permutations in 4,800 draws: its mean is 23, its standard deviation 6.8. Five are allowed."""
    draws = StableGenerator(1)
    found = Counter(tuple(draws.permutation(4).tolist()) for _ in range(4800))
    assert len(found) == 24
    assert sum((count - 200) ** 2 / 200 for count in found.values()) < 23 + 5 * 6.8


def test_integers_and_trials_have_their_probabilities() -> None:
    draws = StableGenerator(2)
    counts = np.bincount(draws.integers(7, 7000), minlength=7)
    assert counts.sum() == 7000
    assert abs(counts - 1000).max() < 5 * (1000 * 6 / 7) ** 0.5
    trials = [draws.geometric(0.2) for _ in range(2000)]
    assert min(trials) == 1
    assert abs(np.mean(trials) - 5) < 5 * (20 / 2000) ** 0.5  # the variance is (1 - p) / p^2 = 20


def test_new_orders_do_not_use_the_draws_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy promises only the raw bits."""
    expected = observed_orders()

    def refuse(*_: Any) -> None:
        raise AssertionError("a draw of NumPy")

    monkeypatch.setattr(np.random, "default_rng", refuse)
    monkeypatch.setattr(np.random, "Generator", type("Refused", (), {}))
    assert observed_orders() == expected


def test_an_epoch_has_every_example_once_and_in_every_part(tmp_path: Path) -> None:
    """The batches are shuffled among eight pools, and the pools are random parts of the corpus."""
    dataset = TokenDataset([store(tmp_path / "s", [1 + i % 9 for i in range(4000)])])
    plan = dataset.plan_epoch(1, 0, max_batch_tokens=40, pool_size=50)
    rows = np.concatenate(list(plan))
    assert sorted(rows.tolist()) == list(range(4000))
    for part in np.split(rows, 10):
        # The mean of 400 different numbers below 4,000 has a standard deviation of 4000 / sqrt(12 * 400) = 58.
        assert abs(part.mean() - 2000) < 5 * 58
    lengths = [int(dataset.lengths("target", 0)[batch].max()) for batch in plan]
    rising = sum(a <= b for a, b in pairwise(lengths)) / (len(lengths) - 1)
    assert rising < 0.75, "batches are in the order of their lengths"
