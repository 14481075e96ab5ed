"""Batches: they depend only on seed and epoch, contain every example once, and have little padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.data.batching import TokenDataset, _split, corpus_weights, plan_batches
from headway.data.encoding import EncodingSpec, SideSpec
from headway.data.readers import Corpus, read_examples
from headway.data.store import FilterConfig, TokenStore
from headway.data.store_builder import open_or_build_store
from headway.text.base import EOS
from headway.text.corpus_encoder import CorpusEncoder, PackedIds, ids_to_bytes, pack_id_bytes
from headway.text.tokenizer import Tokenizer, TokenizerConfig

LENGTHS = st.lists(st.integers(1, 40), max_size=60)


class Numbers:
    vocab_size = 60_000

    def encode(self, texts: Sequence[str]) -> PackedIds:
        return pack_id_bytes([ids_to_bytes([int(word) for word in text.split()]) for text in texts])


class Growing(Numbers):
    """In segmentation k, the numbers of a text are repeated k + 1 times."""

    def __init__(self, segmentations: int) -> None:
        self.num_segmentations = segmentations

    def encode(self, texts: Sequence[str]) -> PackedIds:
        return super().encode([" ".join([text] * (k + 1)) for text in texts for k in range(self.num_segmentations)])


def store(folder: Path, pairs: list[tuple[list[int], list[int]]], segmentations: int = 1) -> TokenStore:
    examples: list[tuple[str, ...]] = [tuple(" ".join(map(str, side)) for side in pair) for pair in pairs]
    side = SideSpec(Numbers(), Growing(segmentations) if segmentations > 1 else None, suffix_ids=(EOS,))
    built = open_or_build_store(folder, "key", lambda: iter(examples), EncodingSpec((side, side), None))
    assert built is not None
    return built


def random_pairs(count: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Return pairs with 1 to 20 tokens per side. The first token of the source is the number of the pair."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 20, (count, 2)).tolist()
    return [([100 + index] + [7] * source, [8] * target + [9]) for index, (source, target) in enumerate(sizes)]


def same(one: Iterable[NDArray[np.int64]], other: Iterable[NDArray[np.int64]]) -> bool:
    return [rows.tolist() for rows in one] == [rows.tolist() for rows in other]


def naive_cut(longer: list[int], max_tokens: int) -> list[list[int]]:
    """Fill a batch while rows x longest fits. If it has an odd number of rows from 9 on, move the last to the next."""
    batches: list[list[int]] = []
    rest = list(range(len(longer)))
    while rest:
        batch = [rest.pop(0)]
        while rest and (len(batch) + 1) * max(longer[index] for index in [*batch, rest[0]]) <= max_tokens:
            batch.append(rest.pop(0))
        if rest and len(batch) >= 8 and len(batch) % 2:
            rest.insert(0, batch.pop())
        batches.append(batch)
    return batches


class TestCut:
    @given(longer=LENGTHS, max_tokens=st.integers(1, 200))
    def test_agrees_with_the_plain_loop(self, longer: list[int], max_tokens: int) -> None:
        bounds = _split(np.array(longer, np.int32), max_tokens)
        assert [list(range(start, end)) for start, end in bounds] == naive_cut(longer, max_tokens)

    def test_by_hand(self) -> None:
        # 3 x 4 = 12 fits; a fourth row would need 4 x 5 = 20. The row of 20 exceeds the budget and is its own batch.
        bounds = _split(np.array([4, 2, 4, 5, 1, 20, 3], np.int32), 12)
        assert bounds.tolist() == [[0, 3], [3, 5], [5, 6], [6, 7]]

    def test_many_rows_are_even_in_number_but_for_the_rest(self) -> None:
        assert _split(np.full(33, 2, np.int32), 22).tolist() == [[0, 10], [10, 20], [20, 30], [30, 33]]
        assert _split(np.full(22, 2, np.int32), 22).tolist() == [[0, 10], [10, 20], [20, 22]]
        assert _split(np.full(21, 2, np.int32), 22).tolist() == [[0, 10], [10, 21]]
        assert _split(np.full(14, 2, np.int32), 14).tolist() == [[0, 7], [7, 14]], "few"


class TestTokenBatches:
    @settings(deadline=None)
    @given(
        pairs=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60),
        max_tokens=st.integers(1, 200),
        pool_size=st.integers(1, 70),
        shuffled=st.booleans(),
    )
    def test_every_row_once_and_within_the_budget(
        self, pairs: list[tuple[int, int]], max_tokens: int, pool_size: int, shuffled: bool
    ) -> None:
        source, target = (np.array([pair[side] for pair in pairs], np.int32) for side in (0, 1))
        rows = np.random.default_rng(0).permutation(len(pairs))
        rng = np.random.default_rng(1) if shuffled else None
        plan = plan_batches(source, target, rows, max_batch_tokens=max_tokens, pool_size=pool_size, rng=rng)
        batches = list(plan)
        assert sorted(np.concatenate(batches).tolist() if batches else []) == list(range(len(pairs)))
        for batch in batches:
            cells = len(batch) * max(source[batch].max(), target[batch].max())
            assert cells <= max_tokens or len(batch) == 1

    def test_no_batch_crosses_a_pool(self) -> None:
        lengths = np.full(10, 3, np.int32)
        plan = plan_batches(lengths, lengths, np.arange(10), max_batch_tokens=1000, pool_size=4, rng=None)
        assert [sorted(batch.tolist()) for batch in plan] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_pools_are_sorted_by_length(self) -> None:
        lengths = np.array([5, 1, 4, 2, 3], np.int32)
        plan = plan_batches(lengths, lengths, np.arange(5), max_batch_tokens=1, pool_size=5, rng=None)
        assert [lengths[batch].tolist() for batch in plan] == [[1], [2], [3], [4], [5]]


class TestEpochs:
    @pytest.fixture
    def corpora(self, tmp_path: Path) -> TokenDataset:
        return TokenDataset([store(tmp_path / "s", random_pairs(300))])

    def test_the_order_is_a_pure_function_of_seed_and_epoch(self, corpora: TokenDataset, tmp_path: Path) -> None:
        epoch = partial(corpora.plan_epoch, max_batch_tokens=100, pool_size=64)
        fresh = partial(TokenDataset([TokenStore(tmp_path / "s")]).plan_epoch, max_batch_tokens=100, pool_size=64)
        first = epoch(3, 5)
        np.random.default_rng().random()  # neither other random draws nor earlier calls matter
        epoch(3, 6)
        assert same(first, epoch(3, 5))
        assert same(first, fresh(3, 5))
        for seed, number in [(3, 6), (4, 5), (5, 3), (0, 5)]:
            assert not same(first, epoch(seed, number))

    def test_each_example_once(self, corpora: TokenDataset) -> None:
        plan = corpora.plan_epoch(1, 0, max_batch_tokens=100, pool_size=64)
        assert sorted(np.concatenate(list(plan)).tolist()) == list(range(300))

    def test_batches_are_not_in_order_of_length(self, corpora: TokenDataset) -> None:
        """A single pool is sorted, but its batches are shuffled."""
        widths = [
            int(corpora.lengths("target", 0)[rows].max())
            for rows in corpora.plan_epoch(1, 0, max_batch_tokens=60, pool_size=300)
        ]
        assert widths != sorted(widths)

    def test_sequential_is_every_example_once_in_a_fixed_order(self, corpora: TokenDataset) -> None:
        plan = corpora.plan_sequential(max_batch_tokens=100)
        assert sorted(np.concatenate(list(plan)).tolist()) == list(range(300))
        assert same(plan, corpora.plan_sequential(max_batch_tokens=100))
        lengths = [int(corpora.lengths("target", 0)[rows].max()) for rows in plan]
        assert lengths == sorted(lengths)

    def test_weights(self, tmp_path: Path) -> None:
        """Weights 2, 2.5 and a fraction below 1: the examples of the fraction differ between epochs."""
        stores = [store(tmp_path / str(number), random_pairs(400)) for number in range(3)]
        corpora = TokenDataset(stores, [2.0, 2.5, 0.25])
        drawn = []
        for epoch in (0, 1):
            counts = Counter(
                np.concatenate(list(corpora.plan_epoch(1, epoch, max_batch_tokens=100, pool_size=999))).tolist()
            )
            assert {counts[row] for row in range(400)} == {2}
            assert {counts[row] for row in range(400, 800)} == {2, 3}
            assert {counts[row] for row in range(800, 1200)} == {0, 1}
            thirds = {row for row in range(400, 800) if counts[row] == 3}
            quarter = sum(counts[row] for row in range(800, 1200))
            # Binomial with n = 400: the standard deviation is 10 for p = 1/2 and 8.7 for p = 1/4. Five are allowed.
            assert 150 <= len(thirds) <= 250
            assert 57 <= quarter <= 143
            drawn.append(thirds)
        assert drawn[0] != drawn[1]

    def test_no_examples_no_batches(self, tmp_path: Path) -> None:
        corpora = TokenDataset([store(tmp_path / "s", [])])
        assert list(corpora.plan_epoch(1, 0, max_batch_tokens=10, pool_size=10)) == []
        assert list(corpora.plan_sequential(max_batch_tokens=10)) == []
        assert corpora.plan_sequential(max_batch_tokens=10).pool(0).padding_fraction == 0.0


class TestTemperature:
    def test_shares_by_hand(self) -> None:
        """Of sizes 900 and 100, temperature 1 takes shares of 9/10 and 1/10; temperature 2 takes 30/40 and 10/40."""
        assert corpus_weights([900, 100], [1.0, 1.0], 1.0) == [1.0, 1.0]
        assert corpus_weights([900, 100], [1.0, 1.0], 2.0) == pytest.approx([750 / 900, 250 / 100])
        # With a weight of 9, the small corpus has the same share as the large one.
        assert corpus_weights([900, 100], [1.0, 9.0], 2.0) == pytest.approx([500 / 900, 500 / 100])

    @given(
        sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=5),
        temperature=st.floats(1, 1e6),
    )
    def test_the_epoch_keeps_its_length_and_small_corpora_gain(self, sizes: list[int], temperature: float) -> None:
        often = corpus_weights(sizes, [1.0] * len(sizes), temperature)
        assert sum(size * weight for size, weight in zip(sizes, often, strict=True)) == pytest.approx(sum(sizes))
        by_size = [weight for _, weight in sorted(zip(sizes, often, strict=True))]
        assert all(small >= large - 1e-9 for small, large in pairwise(by_size))

    def test_an_epoch_draws_these_shares(self, tmp_path: Path) -> None:
        stores = [store(tmp_path / "large", random_pairs(900)), store(tmp_path / "small", random_pairs(100))]
        plan = TokenDataset(stores, temperature=2.0).plan_epoch(1, 0, max_batch_tokens=100, pool_size=999)
        counts = Counter(np.concatenate(list(plan)).tolist())
        assert {counts[row] for row in range(900)} == {0, 1}
        assert {counts[row] for row in range(900, 1000)} == {2, 3}
        # Binomial with n = 900 and p = 5/6: the standard deviation is 11.2. Five are allowed.
        assert 694 <= sum(counts[row] for row in range(900)) <= 806


class TestSegmentations:
    def test_epochs_take_turns(self, tmp_path: Path) -> None:
        """In epoch e, every text is repeated e mod 3 + 1 times, and batches are based on the lengths in this epoch."""
        pairs = random_pairs(50)
        corpora = TokenDataset([store(tmp_path / "s", pairs, segmentations=3)])
        assert len(corpora) == 50
        for epoch in range(4):
            times = epoch % 3 + 1
            plan = corpora.plan_epoch(1, epoch, max_batch_tokens=100, pool_size=20)
            seen = []
            for rows in plan:
                batch = corpora.batch(rows)
                assert max(batch.source.size, batch.target.size) <= 100 or len(rows) == 1
                assert batch.source.shape[1] == corpora.lengths("source", epoch % 3)[rows // 3].max()
                assert batch.target.shape[1] == corpora.lengths("target", epoch % 3)[rows // 3].max()
                seen += [[token for token in row if token] for row in batch.source.tolist()]
            assert sorted(seen) == sorted([*(source * times), EOS] for source, _ in pairs)
            assert all(0 < plan.pool(index).padding_fraction < 1 for index in range(plan.num_pools))
        longest = max(max(len(source), len(target)) for source, target in pairs)
        assert corpora.max_length == 3 * longest + 1, "three repetitions and the end symbol"

    def test_several_corpora(self, tmp_path: Path) -> None:
        first, second = random_pairs(7, seed=1), random_pairs(5, seed=2)
        corpora = TokenDataset([store(tmp_path / "a", first, 2), store(tmp_path / "b", second, 2)])
        expected = sorted([*(source * 2), EOS] for source, _ in first + second)
        batches = [corpora.batch(rows).source for rows in corpora.plan_epoch(1, 1, max_batch_tokens=100, pool_size=20)]
        assert sorted([token for token in row if token] for rows in batches for row in rows.tolist()) == expected
        # The mean of two lengths: once and twice the tokens of each text, each with an end symbol.
        once = sum(len(source) for source, _ in first + second)
        assert corpora.num_tokens("source") == (3 * once + 24) // 2


class TestBatch:
    def test_several_corpora_give_the_right_tokens(self, tmp_path: Path) -> None:
        first, second = random_pairs(7, seed=1), random_pairs(5, seed=2)
        corpora = TokenDataset([store(tmp_path / "a", first), store(tmp_path / "b", second)])
        everything = first + second
        batch = corpora.batch(np.array([8, 0, 11, 6, 7, 0]))
        for side, tokens in ((0, batch.source), (1, batch.target)):
            found: NDArray[np.int64] = tokens
            for row, index in zip(found.tolist(), [8, 0, 11, 6, 7, 0], strict=True):
                expected = [*everything[index][side], EOS]
                assert row == expected + [0] * (len(row) - len(expected))
            assert found.shape[1] == max(len(everything[index][side]) + 1 for index in [8, 0, 11, 6, 7])

    def test_one_corpus_is_no_special_case(self, tmp_path: Path) -> None:
        pairs = random_pairs(9)
        whole = TokenDataset([store(tmp_path / "a", pairs)])
        halves = TokenDataset([store(tmp_path / "b", pairs[:4]), store(tmp_path / "c", pairs[4:])])
        rows = np.array([3, 8, 4, 0])
        assert np.array_equal(whole.batch(rows).source, halves.batch(rows).source)
        assert np.array_equal(whole.batch(rows).target, halves.batch(rows).target)

    def test_padding_by_hand(self, tmp_path: Path) -> None:
        """With ends, sources of 2 and 4 and targets of 3 and 3: 12 real tokens in 2 x 4 + 2 x 3 = 14 cells."""
        corpora = TokenDataset([store(tmp_path / "s", [([5], [6, 6]), ([5, 5, 5], [6, 6])])])
        assert corpora.plan_sequential(max_batch_tokens=100).pool(0).padding_fraction == pytest.approx(1 - 12 / 14)


@pytest.mark.slow
def test_padding_of_multi30k_is_below_six_percent(tmp_path: Path) -> None:
    places = [parent / "shared" / "data" / "multi30k" for parent in Path(__file__).resolve().parents]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        pytest.skip("no shared/data/multi30k beside the repository")
    corpus = Corpus(files=("train.de", "train.en"))
    texts = (text for pair in read_examples(corpus, folder) for text in pair)
    tokenizer = Tokenizer.train(texts, TokenizerConfig(vocab_size=8000))
    side = SideSpec(CorpusEncoder(tokenizer), suffix_ids=(EOS,))
    built = open_or_build_store(
        tmp_path / "s", "key", partial(read_examples, corpus, folder), EncodingSpec((side, side), FilterConfig())
    )
    assert built is not None
    corpora = TokenDataset([built])
    plan = corpora.plan_epoch(1, 0, max_batch_tokens=4096, pool_size=32768)
    share = plan.pool(0).padding_fraction
    cells = real = 0  # the same share, counted in the batches
    for rows in plan.pool(0):
        batch = corpora.batch(rows)
        assert max(batch.source.size, batch.target.size) <= 4096
        cells += batch.source.size + batch.target.size
        real += int(np.count_nonzero(batch.source) + np.count_nonzero(batch.target))
    assert share == pytest.approx(1 - real / cells)
    assert share < 0.06
