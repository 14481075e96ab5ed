"""Computed permutations: each number once, all orders alike, and never the whole in memory."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from headway.data.permutation import Permutation


@pytest.mark.parametrize("size", [*range(1, 40), 255, 256, 257, 1000, 65_536, 100_003])
def test_each_number_occurs_once(size: int) -> None:
    moved = Permutation(size, np.random.default_rng(size))(np.arange(size))
    assert np.array_equal(np.sort(moved), np.arange(size))


def test_a_part_is_as_in_the_whole() -> None:
    permutation = Permutation(1000, np.random.default_rng(1))
    numbers = np.array([999, 0, 5, 5])
    assert np.array_equal(permutation(numbers), permutation(np.arange(1000))[numbers])


def test_all_orders_of_three_are_equally_frequent() -> None:
    draws = 6000
    found = Counter(tuple(Permutation(3, np.random.default_rng(seed))(np.arange(3)).tolist()) for seed in range(draws))
    assert set(found) == set(permutations(range(3)))
    deviation = (draws * 5 / 36) ** 0.5
    assert all(abs(count - draws / 6) < 5 * deviation for count in found.values())


def test_a_number_is_moved_anywhere_and_neighbors_apart() -> None:
    """Chi-squared over 100 cells of 1,000,000 numbers, and the correlation of neighbors: 5 standard deviations."""
    moved = Permutation(1_000_000, np.random.default_rng(1))(np.arange(100_000))
    counts = np.bincount(moved // 10_000, minlength=100)
    assert abs(((counts - 1000) ** 2 / 1000).sum() - 99) < 5 * (2 * 99) ** 0.5
    assert abs(np.corrcoef(moved[:-1], moved[1:])[0, 1]) < 5 / 100_000**0.5
