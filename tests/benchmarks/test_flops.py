from __future__ import annotations

import itertools
import time

import flops
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.models.transformer import Transformer, TransformerConfig

CPU = torch.device("cpu")


def config(**changes: object) -> TransformerConfig:
    sizes = {"d_model": 4, "num_heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1}
    return TransformerConfig.parse({**sizes, **changes}, "test")


def test_one_sentence_by_hand() -> None:
    # S = 3, T = 2, D = 4, F = 8, V = 10; a product of (a x b) and (b x c) is 2abc FLOP.
    encoder_projections = 4 * (2 * 3 * 4 * 4)
    encoder_attention = (2 * 3 * 4 * 3) + (2 * 3 * 3 * 4)  # scores, sums
    encoder_feed_forward = (2 * 3 * 4 * 8) + (2 * 3 * 8 * 4)
    own_projections = 4 * (2 * 2 * 4 * 4)
    own_attention = (2 * 2 * 4 * 2) + (2 * 2 * 2 * 4)
    cross_projections = 2 * (2 * 2 * 4 * 4) + 2 * (2 * 3 * 4 * 4)  # queries and output; keys and values
    cross_attention = (2 * 2 * 4 * 3) + (2 * 2 * 3 * 4)
    decoder_feed_forward = (2 * 2 * 4 * 8) + (2 * 2 * 8 * 4)
    logits = 2 * 2 * 4 * 10
    forward = (
        encoder_projections
        + encoder_attention
        + encoder_feed_forward
        + own_projections
        + own_attention
        + cross_projections
        + cross_attention
        + decoder_feed_forward
        + logits
    )
    assert flops.training_flop(config(), 10, [3], [2]) == 3 * forward


@pytest.mark.parametrize(("source", "target"), [(7, 5), (4, 9)])
def test_agrees_with_pytorchs_own_counter_on_a_batch_without_padding(source: int, target: int) -> None:
    sizes = config(d_model=16, d_ff=24, encoder_layers=3, decoder_layers=2)
    model = Transformer(sizes, 50, 50)
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(4, 50, (6, source)), torch.randint(4, 50, (6, target))).sum().backward()
    assert flops.training_flop(sizes, 50, [source] * 6, [target] * 6) == counter.get_total_flops()


def test_sentences_add_up_and_their_neighbors_do_not_matter() -> None:
    together = flops.training_flop(config(), 10, [3, 40, 1], [2, 5, 7])
    alone = [flops.training_flop(config(), 10, [s], [t]) for s, t in ((3, 2), (40, 5), (1, 7))]
    assert together == sum(alone)


def test_the_best_product_is_the_one_with_the_highest_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock advances one second per reading, so every product takes a second, and the largest has the highest rate.
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)
    best = flops.best_product(torch.float32, CPU, config(), vocab_size=100, rows=6, cubes=(3,), repeats=2)
    assert best.flop_per_s == 2 * 6 * 4 * 100
    assert sorted((best.rows, best.inner, best.columns)) == [4, 6, 100]
    largest_cube = flops.best_product(torch.float32, CPU, config(), vocab_size=100, rows=6, cubes=(30,), repeats=2)
    assert largest_cube == flops.Product(30, 30, 30, 2 * 30**3)
