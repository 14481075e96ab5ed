"""The batches of each step: equal for any number of processes and from any position."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from listening import prepare

from headway.data.batching import PaddedBatch, TokenDataset
from headway.data.epoch_plan import RowNumbers
from headway.data.masking import MaskedBlockDataset, Masking, MaskingConfig
from headway.data.store import Chunk, FilterCounts, join_chunks
from headway.errors import ConfigError
from headway.tasks import parse_recipe
from headway.text.base import MASK
from headway.text.tokenizer import Tokenizer, TokenizerConfig
from headway.training.recipe import Recipe
from headway.training.report import Listener
from headway.training.stream import BatchStream, StepBatches, TokenBatch, prefetch

ACCUMULATE = 4
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    folder = tmp_path_factory.mktemp("corpus")
    lines = ["a " * (1 + number % 7) + "b" for number in range(60)]
    for side in ("source", "target"):
        (folder / side).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return parse_recipe(
        {
            "data": {"folder": str(folder), "train": [{"files": ["source", "target"]}], "max_tokens": 30},
            "tokenizer": {"kind": "whitespace"},
            "training": {"accumulate": ACCUMULATE},
        },
        "test",
    )


@pytest.fixture(scope="module")
def corpora(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> TokenDataset:
    dataset: TokenDataset = prepare(recipe, tmp_path_factory.mktemp("run"), Listener()).train
    return dataset


def take(stream: BatchStream, steps: int) -> list[StepBatches]:
    return list(islice(stream, steps))


def same(one: dict[int, TokenBatch], other: dict[int, TokenBatch]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(getattr(one[index], name), getattr(other[index], name))
        for index in one
        for name in ("source", "decoder_input", "target_positions", "targets")
    )


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_processes_share_the_batches_of_one(corpora: TokenDataset, recipe: Recipe, processes: int) -> None:
    steps = 3 * len(list(BatchStream(corpora, recipe, CPU).epoch_plan)) // ACCUMULATE  # several epochs
    alone = take(BatchStream(corpora, recipe, CPU), steps)
    shares = [
        take(BatchStream(corpora, recipe, CPU, rank=rank, world_size=processes), steps) for rank in range(processes)
    ]
    assert alone[-1].next_epoch > 0
    for whole, *parts in zip(alone, *shares, strict=True):
        for part in parts:
            assert part.micro_batches
            sizes = (part.num_source_tokens, part.num_target_tokens, part.next_epoch, part.next_batch)
            assert sizes == (whole.num_source_tokens, whole.num_target_tokens, whole.next_epoch, whole.next_batch)
        joined = [item for part in parts for item in part.micro_batches.items()]
        assert len(joined) == ACCUMULATE
        assert same(dict(joined), whole.micro_batches)


@pytest.mark.parametrize("version", [1, 2])
def test_a_process_reads_only_its_own_batches(
    corpora: TokenDataset, recipe: Recipe, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TokenDataset.batch
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"order_version": version})})

    def read(dataset: TokenDataset, rows: RowNumbers) -> PaddedBatch:
        seen.append(rows.tolist())
        return plain(dataset, rows)

    seen: list[list[int]] = []
    planned = [rows.tolist() for rows in BatchStream(corpora, recipe, CPU).epoch_plan]
    steps = len(planned) // ACCUMULATE
    assert steps > 2
    monkeypatch.setattr(TokenDataset, "batch", read)
    for rank in range(3):
        seen.clear()
        work = take(BatchStream(corpora, recipe, CPU, rank=rank, world_size=3), steps)
        own = [index for index in range(steps * ACCUMULATE) if index % ACCUMULATE % 3 == rank]
        assert seen == [planned[index] for index in own]
        lengths = corpora.lengths("target", 0)
        for number, each in enumerate(work):
            whole = np.concatenate(planned[number * ACCUMULATE : (number + 1) * ACCUMULATE])
            assert each.has_global_counts
            assert each.num_target_tokens == lengths[whole].sum()


def test_counts_that_depend_on_the_tokens_are_added_up(recipe: Recipe, tmp_path: Path) -> None:
    """Which tokens a masked language model predicts is known only when a batch is read."""
    tokenizer = Tokenizer.train(["abcd efgh"], TokenizerConfig(vocab_size=300), tags=[MASK])
    lengths = {"source": np.full(200, 5), "target": np.zeros(200, np.int64)}
    tokens = {"source": np.arange(1000) % 50 + 9, "target": np.empty(0, np.int64)}
    chunk = Chunk(tokens, lengths, FilterCounts(200, 0, 0, 0))
    stores = [join_chunks(tmp_path / "s", "key", 1, np.dtype(np.uint16), [chunk])]
    masking = Masking(MaskingConfig(), tokenizer)
    blocks = MaskedBlockDataset(stores, block_length=10, masking=masking, seed=1)
    alone = take(BatchStream(blocks, recipe, CPU), 5)
    ranks = [take(BatchStream(blocks, recipe, CPU, rank=rank, world_size=2), 5) for rank in range(2)]
    for whole, *parts in zip(alone, *ranks, strict=True):
        found = [part.with_global_counts(lambda own, parts=parts: added_up(parts)) for part in parts]
        expected = whole.with_global_counts(lambda own: own)
        targets = sum(batch.targets.numel() for batch in whole.micro_batches.values())
        for each in (expected, *found):
            assert (each.num_source_tokens, each.num_target_tokens) == (whole.num_source_tokens, targets)
        assert all(not part.has_global_counts for part in parts)


def added_up(parts: tuple[StepBatches, ...]) -> list[int]:
    return [sum(part.num_source_tokens for part in parts), sum(part.num_target_tokens for part in parts)]


def test_counts_are_those_of_the_whole_step(corpora: TokenDataset, recipe: Recipe) -> None:
    work = BatchStream(corpora, recipe, CPU).next_step()
    assert work.num_target_tokens == sum(batch.targets.numel() for batch in work.micro_batches.values())
    assert work.num_source_tokens == sum(int((batch.source != 0).sum()) for batch in work.micro_batches.values())


def test_a_stream_starts_from_any_position(corpora: TokenDataset, recipe: Recipe) -> None:
    steps = take(BatchStream(corpora, recipe, CPU), 30)
    for done in (1, 7, 29):
        position = steps[done - 1]
        following = BatchStream(
            corpora, recipe, CPU, first_epoch=position.next_epoch, first_batch=position.next_batch
        ).next_step()
        assert same(following.micro_batches, steps[done].micro_batches)


def test_a_step_needs_a_batch_for_each_process(corpora: TokenDataset, recipe: Recipe) -> None:
    expected = r"5 processes share the batches of a step, but training\.accumulate = 4; set it to 5 or a multiple"
    with pytest.raises(ConfigError, match=expected):
        BatchStream(corpora, recipe, CPU, rank=0, world_size=5)


class TestPrefetched:
    def test_results_are_in_order(self) -> None:
        numbers = iter(range(100))
        ahead = prefetch(lambda: next(numbers), 3)
        assert list(islice(ahead, 50)) == list(range(50))
        ahead.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "headway-prefetch"]

    def test_at_most_the_given_number_of_calls_are_ahead(self) -> None:
        numbers = iter(range(100))
        ahead = prefetch(lambda: next(numbers), 2)
        assert next(ahead) == 0
        ahead.close()  # waits for the thread
        assert 1 <= next(numbers) <= 4  # one yielded, at most three ahead

    def test_an_error_is_raised_in_its_turn(self) -> None:
        def take() -> int:
            if (number := next(numbers)) == 2:
                raise OSError("gone")
            return number

        numbers = iter(range(10))
        ahead = prefetch(take, 5)
        assert [next(ahead), next(ahead)] == [0, 1]
        with pytest.raises(OSError, match="gone"):
            next(ahead)


def test_a_step_may_be_larger_than_an_epoch(corpora: TokenDataset, recipe: Recipe, tmp_path: Path) -> None:
    """The step continues in the next epoch."""
    batches = len(list(BatchStream(corpora, recipe, CPU).epoch_plan))
    many = recipe.model_copy(update={"training": recipe.training.model_copy(update={"accumulate": batches + 1})})
    work = BatchStream(corpora, many, CPU).next_step()
    assert (work.next_epoch, work.next_batch) == (1, 1)
    assert len(work.micro_batches) == batches + 1
