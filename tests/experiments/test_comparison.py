from __future__ import annotations

from headway.experiments.comparison import column, format_mean_std, median_ci


def test_the_interval_of_a_median_leaves_out_what_is_far_off() -> None:
    # Of 25 values 12.5 are expected below the median, give or take 1.96 sqrt(25) / 2 = 4.9: the 8th to the 18th.
    values = [float(number) for number in range(24)] + [1e9]
    assert median_ci(values) == (7.0, 12.0, 17.0)
    assert median_ci([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)


def test_columns_and_means() -> None:
    runs = [{"variant": "a", "bleu": 1}, {"variant": "b", "bleu": 2.5}, {"variant": "a", "bleu": 3}]
    assert column(runs, "bleu", variant="a") == [1, 3]
    assert format_mean_std(runs, "bleu", variant="a") == "2 ± 1.4"  # the standard deviation is sqrt(2)
    assert format_mean_std(runs, "bleu", variant="b") == "2.5"
