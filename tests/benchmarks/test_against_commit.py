from __future__ import annotations

import os
import sys

import pytest
from against_commit import Result, all_rows, median_interval, processor_seconds_of_command, seconds_per_1000_tokens


def test_the_interval_contains_the_median_and_narrows_with_more_pairs() -> None:
    few, many = ([0.9 + 0.01 * (number % 21) for number in range(count)] for count in (21, 210))
    (low, high), (lower, upper) = median_interval(few), median_interval(many)
    assert low < 1.0 < high
    assert lower < 1.0 < upper
    assert upper - lower < high - low


@pytest.mark.parametrize(
    ("ratios", "passes"),
    [([1.0] * 20, True), ([0.97] * 20, False), ([0.94, 1.06] * 10, True), ([0.9] * 15 + [1.2] * 5, False)],
)
def test_a_row_passes_if_it_may_be_as_fast(ratios: list[float], passes: bool) -> None:
    assert Result("row", ratios, [1.0], [1.0]).passes is passes


def test_names_select_rows_unambiguously() -> None:
    names = [row.name for row in all_rows(trained=True)]
    assert len(set(names)) == len(names)
    assert len(all_rows(trained=False)) == len(names) - sum("trained" in name for name in names)


def test_the_record_after_a_pause_is_not_counted() -> None:
    """Two steps of 2 s with 100 tokens each, after one that contains a pause of an hour: 20 s per 1,000 tokens."""
    rates = {"source_tokens_per_s": 30.0, "target_tokens_per_s": 20.0}
    records = [{"elapsed_s": seconds, **rates} for seconds in (3600.0, 3602.0, 3604.0)]
    assert seconds_per_1000_tokens(records) == pytest.approx(20.0)


def test_processor_time_leaves_out_waiting() -> None:
    waiting = [sys.executable, "-S", "-c", "import time; time.sleep(1)"]
    assert processor_seconds_of_command(waiting, dict(os.environ)) < 0.9
    with pytest.raises(AssertionError, match="ended with 3"):
        processor_seconds_of_command([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ))
