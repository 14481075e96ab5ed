"""Numbers and costs that the paper states, computed again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from headway.models.transformer import PRESETS
from headway.nn.attention import MultiHeadAttention
from headway.nn.blocks import FeedForward

PLACES = [parent / "shared" / "data" / "multi30k" / "train.en" for parent in Path(__file__).resolve().parents]
TEXT = next((place for place in PLACES if place.is_file()), None)


def _multiplications(layer: nn.Module, *shape: int) -> int:
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        layer(torch.randn(1, *shape))
    return int(counter.get_total_flops()) // 2


def test_heads_cost_the_same_whatever_their_number() -> None:
    """By hand for n = 10 and d = 16: four projections of n d^2, and two products of n^2 d."""
    costs = {_multiplications(MultiHeadAttention(16, heads), 10, 16) for heads in (1, 2, 8, 16)}
    assert costs == {4 * 10 * 16 * 16 + 2 * 10 * 10 * 16}


def test_a_separable_convolution_over_all_positions_costs_what_the_paper_says() -> None:
    """Section 4: k n d + n d^2 for a separable convolution, with k = n as much as self-attention and feed-forward."""
    n, d = 13, 8
    by_position = _multiplications(nn.Conv1d(d, d, n, padding="same", groups=d), d, n)
    across = _multiplications(nn.Conv1d(d, d, 1), d, n)
    assert (by_position, across) == (n * n * d, n * d * d)
    # In the order of table 1, self-attention is n^2 d and a layer of feed-forward n d^2: the same sum.
    assert _multiplications(FeedForward(d, d), n, d) == 2 * across


def test_the_training_cost_of_table_2() -> None:
    """12 hours and 3.5 days on eight P100 at 9.5 TFLOPS (section 6.1, note 5); table 2 has 3.3e18 and 2.3e19."""
    speed = 8 * 9.5e12
    assert 12 * 3600 * speed == pytest.approx(3.3e18, rel=0.01)
    assert 3.5 * 24 * 3600 * speed == pytest.approx(2.3e19, rel=0.01)
    # 100,000 steps of 25,000 source and 25,000 target tokens: 6 operations a weight and token are 60 % of that speed.
    assert 0.5 < 6 * 65e6 * 100_000 * 25_000 * 2 / 3.3e18 < 0.7


def test_the_number_of_weights_of_table_3() -> None:
    """By hand, with 37,000 tokens in one matrix: 65 and 213 million in the paper."""

    def count(preset: str) -> float:
        d, inner = PRESETS[preset]["d_model"], PRESETS[preset]["d_ff"]
        layer = 4 * d * d + 4 * d + 2 * d * inner + inner + d + 4 * d
        return float(37_000 * d + 12 * layer + 6 * (4 * d * d + 6 * d)) / 1e6

    assert count("base") == pytest.approx(65, rel=0.04)
    assert count("big") == pytest.approx(213, rel=0.02)


@pytest.mark.skipif(TEXT is None, reason="needs Multi30k in ../shared/data")
def test_captions_have_fewer_words_than_models_are_wide() -> None:
    """Section 4: n < d is most often the case; n counts word pieces there. Table 3's narrowest model has d = 256."""
    assert TEXT is not None
    lengths = [len(line.split()) for line in TEXT.read_text(encoding="utf-8").splitlines()]
    assert max(lengths) < 64
    assert sum(length < 32 for length in lengths) / len(lengths) > 0.99
