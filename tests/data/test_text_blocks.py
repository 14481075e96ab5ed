"""Blocks of a language model's text: every token once, a pure order, and no block across stores or parts."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.data.blocks import BlockDataset, StreamDataset
from headway.data.store import Chunk, FilterCounts, TokenStore, join_chunks
from headway.text.base import BOS
from headway.training.memory import largest_batch_shapes


def store(folder: Path, first: int, count: int) -> TokenStore:
    """A store of consecutive token numbers in rows of 7."""
    tokens = np.arange(first, first + count, dtype=np.uint16)
    rows = [min(7, count - start) for start in range(0, count, 7)]
    lengths = {"source": np.array(rows), "target": np.zeros(len(rows), np.int64)}
    empty = np.empty(0, np.uint16)
    chunk = Chunk({"source": tokens, "target": empty}, lengths, FilterCounts(len(rows), 0, 0, 0))
    return join_chunks(folder, "key", 1, np.dtype(np.uint16), [chunk])


@pytest.fixture
def dataset(tmp_path: Path) -> BlockDataset:
    return BlockDataset([store(tmp_path / "a", 10, 50), store(tmp_path / "b", 100, 33)], block_length=8)


def test_validation_reads_every_token_once_in_order(dataset: BlockDataset) -> None:
    plan = dataset.plan_sequential(max_batch_tokens=24)
    batches = [dataset.batch(rows).target for rows in plan]
    assert max(batch.size for batch in batches) <= 24
    read = np.concatenate([batch[batch != 0] for batch in batches])
    assert read.tolist() == [*range(10, 60), *range(100, 133)]
    assert dataset.num_tokens("target") == 83
    assert len(dataset) == 7 + 5
    assert dataset.text_tokens().tolist() == read.tolist()


@pytest.mark.parametrize("epoch", range(6))
def test_an_epoch_has_whole_blocks_without_repetition(dataset: BlockDataset, epoch: int) -> None:
    plan = dataset.plan_epoch(1, epoch, max_batch_tokens=16, pool_size=1)
    blocks = [block for rows in plan for block in dataset.batch(rows).target]
    assert all(len(block) == 8 and (np.diff(block) == 1).all() for block in blocks)  # consecutive, within one store
    tokens = np.concatenate(blocks)
    assert len(np.unique(tokens)) == len(tokens)
    assert len(tokens) >= 83 - 2 * 2 * 8  # at most two blocks of each store are left out


def test_the_order_is_a_function_of_seed_and_epoch(dataset: BlockDataset) -> None:
    def rows(seed: int, epoch: int) -> Any:
        plan = dataset.plan_epoch(seed, epoch, max_batch_tokens=16, pool_size=1)
        return np.concatenate(list(plan)).tolist()

    assert rows(1, 0) == rows(1, 0)
    assert len({tuple(rows(seed, epoch)) for seed in (1, 2) for epoch in (0, 1, 2)}) == 6


def test_parts_do_not_overlap(tmp_path: Path) -> None:
    whole = store(tmp_path / "a", 10, 50)
    train, dev = (BlockDataset([whole], block_length=8, part=part) for part in ((0.0, 0.8), (0.8, 1.0)))
    assert train.text_tokens().tolist() == list(range(10, 50))
    assert dev.text_tokens().tolist() == list(range(50, 60))
    for epoch in range(5):
        for rows in train.plan_epoch(1, epoch, max_batch_tokens=64, pool_size=1):
            assert train.batch(rows).target.max() < 50


def test_the_shares_of_targets_follow_the_weights(tmp_path: Path) -> None:
    stores = [store(tmp_path / "a", 10, 4), store(tmp_path / "b", 12, 4)]
    dataset = BlockDataset(stores, [1.0, 3.0], block_length=2)
    assert (dataset.target_shares(18) * 16).tolist() == [0] * 10 + [1, 1, 4, 4, 3, 3, 0, 0]


def test_a_text_shorter_than_a_block_is_one_block(tmp_path: Path) -> None:
    dataset = BlockDataset([store(tmp_path / "a", 10, 5)], block_length=8)
    for epoch in range(4):
        (rows,) = dataset.plan_epoch(1, epoch, max_batch_tokens=8, pool_size=1)
        assert dataset.batch(rows).target.tolist() == [[10, 11, 12, 13, 14]]
    assert dataset.max_length == 5


def test_weights_repeat_a_store(tmp_path: Path) -> None:
    stores = [store(tmp_path / "a", 10, 80), store(tmp_path / "b", 100, 80)]
    dataset = BlockDataset(stores, [2.0, 1.0], block_length=8)
    first = [int(row) < 80 for rows in dataset.plan_epoch(1, 0, max_batch_tokens=8, pool_size=1) for row in rows]
    assert first.count(True) == 2 * first.count(False)


def test_a_small_store_with_a_fraction_of_a_weight_is_read_in_its_share_of_epochs(tmp_path: Path) -> None:
    dataset = BlockDataset([store(tmp_path / "a", 10, 807), store(tmp_path / "b", 900, 7)], [1.0, 0.25], block_length=8)
    counts = []
    for epoch in range(200):
        plan = dataset.plan_epoch(1, epoch, max_batch_tokens=80, pool_size=1)
        counts.append(sum(int((dataset.batch(rows).target >= 900).any(1).sum()) for rows in plan))
    assert set(counts) == {0, 1}
    assert np.mean(counts) == pytest.approx(0.25, abs=0.1)


def test_an_epoch_has_a_block_however_small_the_weight(tmp_path: Path) -> None:
    dataset = BlockDataset([store(tmp_path / "a", 10, 807)], [1e-6], block_length=8)
    for epoch in range(10):
        assert sum(map(len, dataset.plan_epoch(1, epoch, max_batch_tokens=80, pool_size=1))) == 1


@pytest.mark.parametrize("weight", [0.5, 2.5])
def test_a_fraction_of_a_weight_is_a_share_that_is_drawn_anew(tmp_path: Path, weight: float) -> None:
    dataset = BlockDataset([store(tmp_path / "a", 10, 807)], [weight], block_length=8)  # 100 whole blocks
    drawn = []
    for epoch in range(3):
        rows = np.concatenate(list(dataset.plan_epoch(1, epoch, max_batch_tokens=64, pool_size=1))) // 8
        counts = np.bincount(rows, minlength=100)
        assert counts.sum() == 100 * weight
        assert set(counts.tolist()) == {int(weight), int(weight) + 1}
        drawn.append(tuple(counts.tolist()))
    assert len(set(drawn)) == 3


class LargeStore(TokenStore):
    """What a data set asks of a store with ten billion tokens."""

    def __init__(self) -> None:
        self.num_segmentations = 1

    def __len__(self) -> int:
        return 10**6

    def num_tokens(self, side: str) -> int:
        return 10**10 if side == "source" else 0


@pytest.mark.parametrize("kind", [BlockDataset, StreamDataset])
def test_the_order_of_a_large_corpus_takes_little_memory(kind: type[BlockDataset]) -> None:
    tracemalloc.start()
    dataset = kind([LargeStore()], block_length=128)
    plan = dataset.plan_epoch(1, 0, max_batch_tokens=1 << 16, pool_size=1)
    assert plan.pool(0).padding_fraction == 0
    (shape,) = largest_batch_shapes(dataset, plan, 1 << 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (shape.rows, shape.target_length) == (512, 128)
    assert len(dataset) > 78_000_000 > len(plan[7]) == 512
    assert peak < 20e6


def test_an_epoch_has_no_padding(dataset: BlockDataset) -> None:
    plan = dataset.plan_epoch(1, 0, max_batch_tokens=16, pool_size=1)
    assert plan.pool(0).padding_fraction == 0


class TestStreams:
    @pytest.fixture
    def streams(self, tmp_path: Path) -> StreamDataset:
        return StreamDataset([store(tmp_path / "a", 10, 90), store(tmp_path / "b", 200, 75)], block_length=8)

    @pytest.mark.parametrize("epoch", range(6))
    def test_each_row_continues_the_row_before_or_begins_with_bos(self, streams: StreamDataset, epoch: int) -> None:
        plan = streams.plan_epoch(1, epoch, max_batch_tokens=26, pool_size=1)
        batches = [streams.batch(rows) for rows in plan]
        assert {batch.target.shape for batch in batches} == {(3, 8)}
        assert (batches[0].source == BOS).all()
        begun = 0
        for earlier, later in pairwise(batches):
            for row, before in enumerate(later.source[:, 0]):
                if before == BOS:  # at the beginning of a store
                    assert later.target[row, 0] < 18 or 200 <= later.target[row, 0] < 208
                    begun += 1
                else:
                    assert before == earlier.target[row, -1] == later.target[row, 0] - 1
        assert begun <= 2
        tokens = np.concatenate([batch.target.flatten() for batch in batches])
        assert len(np.unique(tokens)) == len(tokens) >= 165 - 2 * 2 * 8 - 2 * 8

    def test_the_order_is_a_function_of_seed_and_epoch(self, streams: StreamDataset) -> None:
        def tokens(seed: int, epoch: int) -> tuple[int, ...]:
            plan = streams.plan_epoch(seed, epoch, max_batch_tokens=24, pool_size=1)
            return tuple(np.concatenate([streams.batch(rows).target.flatten() for rows in plan]).tolist())

        assert tokens(1, 0) == tokens(1, 0)
        assert len({tokens(seed, epoch) for seed in (1, 2) for epoch in (0, 1, 2)}) == 6

    def test_validation_reads_every_token_once_in_order(self, streams: StreamDataset) -> None:
        batches = [streams.batch(rows) for rows in streams.plan_sequential(max_batch_tokens=24)]
        assert {len(batch.target) for batch in batches} == {1}
        assert [int(batch.source[0, 0]) for batch in batches[:3]] == [BOS, 17, 25]
        read = np.concatenate([batch.target[batch.target != 0] for batch in batches])
        assert read.tolist() == [*range(10, 100), *range(200, 275)]

    def test_long_validation_texts_are_read_in_several_streams(
        self, streams: StreamDataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headway.data.blocks._MIN_STREAM", 7)  # 22 blocks: streams of 8, 8 and 6
        batches = [streams.batch(rows).target for rows in streams.plan_sequential(max_batch_tokens=24)]
        assert [len(batch) for batch in batches] == [3, 3, 3, 3, 3, 3, 2, 2]
        read = [np.concatenate([batch[row] for batch in batches if len(batch) > row]) for row in range(3)]
        tokens = np.concatenate(read)
        assert tokens[tokens != 0].tolist() == [*range(10, 100), *range(200, 275)]

    def test_a_short_text_is_one_stream(self, tmp_path: Path) -> None:
        dataset = StreamDataset([store(tmp_path / "a", 10, 5)], block_length=8)
        (rows,) = dataset.plan_epoch(1, 3, max_batch_tokens=64, pool_size=1)
        batch = dataset.batch(rows)
        assert batch.source.tolist() == [[BOS]]
        assert batch.target.tolist() == [[10, 11, 12, 13, 14]]

    def test_an_epoch_has_no_padding(self, streams: StreamDataset) -> None:
        plan = streams.plan_epoch(1, 0, max_batch_tokens=16, pool_size=1)
        assert plan.pool(0).padding_fraction == 0
