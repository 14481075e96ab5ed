"""Plans of epochs: pools are independent of each other, positions lead to their batches, and counts are exact."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.data.batching import TokenDataset
from headway.data.blocks import BlockDataset, StreamDataset
from headway.data.epoch_plan import BatchPool, EpochPlan
from headway.data.masking import MaskedBlockDataset, Masking, MaskingConfig
from headway.data.store import SIDES, Chunk, FilterCounts, TokenStore, join_chunks
from headway.errors import DataError
from headway.text.base import MASK, PAD
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.training.memory import BatchShape, largest_batch_shapes

LIMITS = {"max_batch_tokens": 60, "pool_size": 40}


def store(folder: Path, examples: int, segmentations: int = 1) -> TokenStore:
    """Return a store of examples with 1 to 13 source tokens and 1 to 7 target tokens."""
    numbers = np.arange(examples * segmentations)
    lengths = {"source": 1 + numbers * 7 % 13, "target": 1 + numbers * 5 % 7}
    tokens = {side: np.arange(lengths[side].sum()) % 50 + 9 for side in SIDES}
    chunk = Chunk(tokens, lengths, FilterCounts(examples, 0, 0, 0))
    return join_chunks(folder, "key", segmentations, np.dtype(np.uint16), [chunk])


def pairs(folder: Path) -> TokenDataset:
    return TokenDataset([store(folder / "a", 130, 2), store(folder / "b", 50, 2)], [1.0, 1.5])


def blocks(folder: Path) -> BlockDataset:
    """Two texts, one of which is shorter than a block."""
    return BlockDataset([store(folder / "a", 90), store(folder / "b", 1)], block_length=11)


def streams(folder: Path) -> StreamDataset:
    return StreamDataset([store(folder / "a", 90), store(folder / "b", 30)], block_length=11)


def masked(folder: Path) -> MaskedBlockDataset:
    tokenizer = Tokenizer.train(["abcd efgh"], TokenizerConfig(vocab_size=300), tags=[MASK])
    masking = Masking(MaskingConfig(fraction=0.3), tokenizer)
    return MaskedBlockDataset([store(folder / "a", 90)], block_length=13, masking=masking, seed=1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("make", [pairs, blocks, streams])
def test_counts_and_lengths_of_batches_are_exact(
    make: Callable[[Path], TokenDataset], version: int, tmp_path: Path
) -> None:
    dataset = make(tmp_path)
    for epoch in range(3):
        plan = dataset.plan_epoch(1, epoch, **LIMITS, order_version=version)
        for pool in map(plan.pool, range(plan.num_pools)):
            assert pool.is_exact
            for index, rows in enumerate(pool):
                batch = dataset.batch(rows)
                sides = batch.source, batch.target
                assert pool.max_lengths[index].tolist() == [side.shape[1] for side in sides]
                assert pool.num_tokens[index].tolist() == [int((side != PAD).sum()) for side in sides]


def test_hidden_tokens_are_not_counted_in_advance(tmp_path: Path) -> None:
    dataset = masked(tmp_path)
    (pool,) = map(dataset.plan_epoch(1, 0, **LIMITS).pool, range(1))
    assert not pool.is_exact
    batch = dataset.batch(pool[0])
    assert (pool.max_lengths[0] >= [batch.source.shape[1], batch.target.shape[1]]).all()


@pytest.mark.parametrize("make", [pairs, blocks, streams, masked])
def test_any_position_leads_to_its_batch_without_the_pools_before(
    make: Callable[[Path], TokenDataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(index: int, pool: BatchPool) -> BatchPool:
        made.append(index)
        return pool

    made: list[int] = []
    monkeypatch.setattr("headway.data.blocks._BLOCKS_AT_ONCE", 12)
    dataset = make(tmp_path)
    plan = dataset.plan_epoch(1, 1, **LIMITS, order_version=2)
    assert plan.num_pools > 1
    expected, position, found = [rows.tolist() for rows in plan], 0, []
    while True:
        made.clear()
        fresh = dataset.plan_epoch(1, 1, **LIMITS, order_version=2).map_pools(note)
        if (located := fresh.locate(position)) is None:
            break
        pool, index, at = located
        assert len(made) <= 2, "only the pool of the position, and the next one if that pool is exhausted"
        found.append(pool[index].tolist())
        assert plan[at].tolist() == found[-1]
        position = at + 1
    assert found == expected


def test_positions_by_hand() -> None:
    """Three pools of 2, 0 and 1 batches with a stride of 4: batches at positions 0, 1 and 8."""

    def make_pool(index: int) -> BatchPool:
        made.append(index)
        bounds = np.array([[0, 1], [1, 2]][: (2, 0, 1)[index]], np.int64).reshape(-1, 2)
        return BatchPool(np.array([10 * index, 10 * index + 1]), bounds, bounds, bounds)

    made: list[int] = []
    plan = EpochPlan(3, 4, make_pool)
    assert [plan[position].tolist() for position in (0, 1, 8)] == [[0], [1], [20]]
    assert [found[2] for found in map(plan.locate, (2, 5, 8)) if found] == [8, 8, 8]
    assert plan.locate(9) is None
    assert [rows.tolist() for rows in plan] == [[0], [1], [20]]
    for position in (2, 4, 9):
        with pytest.raises(IndexError):
            plan[position]


def test_pools_contain_examples_of_the_whole_corpus_in_random_order(tmp_path: Path) -> None:
    """A pool of 200 of 2,000 examples: the mean of its indices is 1,000 +- 41 (one standard deviation)."""
    dataset = TokenDataset([store(tmp_path / "a", 2000)])
    plan = dataset.plan_epoch(1, 0, max_batch_tokens=200, pool_size=200, order_version=2)
    assert plan.num_pools == 10
    widths = []
    for pool in map(plan.pool, range(10)):
        examples = np.concatenate(list(pool))
        assert abs(examples.mean() - 1000) < 5 * 41
        assert len(np.unique(examples // 200)) == 10
        widths.append(pool.max_lengths.max(1).tolist())
    assert all(each != sorted(each) for each in widths), "the batches of a pool are shuffled"
    assert sorted(np.concatenate(list(plan)).tolist()) == list(range(2000))


def test_an_epoch_is_never_empty(tmp_path: Path) -> None:
    dataset = TokenDataset([store(tmp_path / "a", 100)], [1e-6])
    assert [len(list(dataset.plan_epoch(1, epoch, **LIMITS, order_version=2))) for epoch in range(3)] == [1, 1, 1]


class LargeStore(TokenStore):
    """The lengths of a billion pairs, computed instead of stored."""

    def __init__(self) -> None:
        self.num_segmentations = 1

    def __len__(self) -> int:
        return 10**9

    def lengths_of(self, examples: NDArray[np.int64], side: str, segmentation: int = 0) -> NDArray[np.int32]:
        return (1 + examples * 31 % 97).astype(np.int32)

    def longest_example(self, side: str, segmentation: int = 0) -> tuple[int, int]:
        return 1500, 20


def test_an_epoch_of_a_billion_pairs_takes_little_memory() -> None:
    tracemalloc.start()
    dataset = TokenDataset([LargeStore()], [1.5])
    plan = dataset.plan_epoch(1, 0, max_batch_tokens=4096, pool_size=1 << 12, order_version=2)
    batches = [plan.pool(number)[0] for number in (0, 1, plan.num_pools - 1)]
    shapes = largest_batch_shapes(dataset, plan, 4096)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert plan.num_pools == -(-1_500_000_000 // (1 << 12))
    assert all(0 < len(batch) <= 4096 for batch in batches)
    assert BatchShape(2, 1500, 20) in shapes, "a long example that the first pool does not contain"
    assert peak < 5e6


class TestLengths:
    def test_lengths_of_some_examples_are_those_of_all(self, tmp_path: Path) -> None:
        examples = np.array([29, 0, 7, 7])
        for segmentations in (1, 3):
            found = store(tmp_path / str(segmentations), 30, segmentations)
            for side in SIDES:
                for segmentation in range(segmentations):
                    expected = found.lengths(side, segmentation)
                    assert found.lengths_of(examples, side, segmentation).tolist() == expected[examples].tolist()
                    longest = found.longest_example(side, segmentation)[SIDES.index(side)]
                    assert longest == expected.max()

    def test_rows_of_more_than_65535_tokens(self, tmp_path: Path) -> None:
        lengths = {side: np.array([70_000, 2]) for side in SIDES}
        tokens = {side: np.full(70_002, 9) for side in SIDES}
        chunk = Chunk(tokens, lengths, FilterCounts(2, 0, 0, 0))
        found = join_chunks(tmp_path / "s", "key", 1, np.dtype(np.uint16), [chunk])
        assert found.lengths_of(np.array([1, 0]), "source").tolist() == [2, 70_000]
        assert TokenStore(tmp_path / "s").lengths_of(np.array([0]), "source").tolist() == [70_000]

    @pytest.mark.parametrize("damage", ["lost", "truncated", "overwritten"])
    def test_a_damaged_file_is_written_again(self, damage: str, tmp_path: Path) -> None:
        expected = store(tmp_path / "s", 30).lengths_of(np.arange(30), "source").tolist()
        path = tmp_path / "s" / "source.lengths"
        content = path.read_bytes()
        match damage:
            case "lost":
                path.unlink()
            case "truncated":
                path.write_bytes(content[:-2])
            case "overwritten":
                path.write_bytes(content[:-2] + b"\0\1")
        assert TokenStore(tmp_path / "s").lengths_of(np.arange(30), "source").tolist() == expected
        assert path.read_bytes() == content

    def test_offsets_that_do_not_fit_the_tokens_are_reported(self, tmp_path: Path) -> None:
        store(tmp_path / "s", 30)
        (tmp_path / "s" / "source.lengths").unlink(missing_ok=True)
        with (tmp_path / "s" / "source.offsets").open("r+b") as offsets:
            offsets.write(np.int64(1).tobytes())
        with pytest.raises(DataError, match=r"s: the store is damaged .*; remove the folder to rebuild it"):
            TokenStore(tmp_path / "s").longest_example("source")

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        found = store(tmp_path / "s", 30)
        (tmp_path / "s" / "source.lengths").mkdir()  # also for the user root, who may write everywhere
        assert found.lengths_of(np.arange(30), "source").tolist() == found.lengths("source").tolist()
