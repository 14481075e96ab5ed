from __future__ import annotations

from headway.experiments.comparison import column, format_mean_std


def test_columns_and_means() -> None:
    runs = [{"variant": "a", "bleu": 1}, {"variant": "b", "bleu": 2.5}, {"variant": "a", "bleu": 3}]
    assert column(runs, "bleu", variant="a") == [1, 3]
    assert format_mean_std(runs, "bleu", variant="a") == "2 ± 1.4"  # the standard deviation is sqrt(2)
    assert format_mean_std(runs, "bleu", variant="b") == "2.5"
