"""The cache compared with plain lists: each beam may attend to its entries while beams enter, leave, split and end."""

from __future__ import annotations

import random

import pytest
import torch

from headway.nn.cache import KVCache, LayerSpec

HEADS, LAYERS = 2, 2


class Watched:
    """A cache, and the entry numbers of each beam of each sequence. A key contains the number of its entry."""

    def __init__(self, beams: int, window: int | None = None) -> None:
        self.cache = KVCache(
            LAYERS, LayerSpec(HEADS, 1, 1), dtype=torch.float32, device=torch.device("cpu"), window=window
        )
        self.beams, self.window, self.number = beams, window, 0
        self.prefixes: list[list[list[float]]] = []

    def admit(self, lengths: list[int]) -> None:
        """Add sequences whose first entries are written at once, like those of a prompt or a memory."""
        self.cache.admit(lengths, beams=self.beams)
        shape = len(lengths), HEADS, max(lengths), 1
        numbers = torch.arange(self.number, self.number + shape[0] * shape[2], dtype=torch.float32)
        new = numbers.view(shape[0], 1, shape[2], 1).expand(shape)
        for layer in range(LAYERS):
            self.cache.write(layer, new + layer / 2, -new)
        for row, length in zip(numbers.view(shape[0], shape[2]).tolist(), lengths, strict=True):
            self.prefixes.append([row[:length] for _ in range(self.beams)])
        self.number += len(numbers)

    def step(self) -> None:
        """Append an entry to every beam, and compare everything that it may attend to."""
        sequences, beams = len(self.prefixes), self.beams
        numbers = torch.arange(self.number, self.number + sequences * beams, dtype=torch.float32)
        new = numbers.view(sequences, 1, beams, 1).expand(-1, HEADS, -1, -1)
        self.number += len(numbers)
        self.cache.advance()
        for layer in range(LAYERS):
            keys, values = self.cache.append(layer, new + layer / 2, -new)
        mask = self.cache.mask
        seen = torch.ones(sequences, beams, keys.size(1), dtype=torch.bool) if mask is None else mask
        for at, prefixes in enumerate(self.prefixes):
            for beam, prefix in enumerate(prefixes):
                prefix.append(float(numbers[at * beams + beam]))
                expected = prefix if self.window is None else prefix[-self.window :]
                first, end = len(prefix) - len(expected), len(prefix)
                entries = self.cache.table[at, beam, first:end]  # in the order of positions
                assert sorted(entries.tolist()) == seen[at, beam].nonzero().flatten().tolist()
                assert self.cache.newest[at, beam] == entries[-1]
                for row in range(at * HEADS, (at + 1) * HEADS):
                    assert keys[row, entries, 0].tolist() == [each + 0.5 for each in expected]
                    assert (-values[row, entries, 0]).tolist() == expected
        assert self.cache.table.size(2) >= self.cache.current_max_length + 7
        assert self.cache.table.max() < self.cache.keys.size(2), "kernels may read past the last position"
        assert keys.isfinite().all(), "what a mask hides is multiplied, too"
        assert self.cache.lengths.tolist() == [len(prefixes[0]) for prefixes in self.prefixes]
        assert self.cache.current_max_length == max(self.cache.lengths.tolist())

    def select(self, parents: list[list[int]], kept: list[int] | None = None) -> None:
        """Keep the sequences ``kept`` (None: all). Each new beam continues its parent in ``parents``."""
        before, self.beams = self.beams, len(parents[0])
        old = list(range(len(self.prefixes))) if kept is None else kept
        rows = [at * before + parent for at, several in zip(old, parents, strict=True) for parent in several]
        self.cache.select(torch.tensor(rows), None if kept is None else torch.tensor(kept))
        self.prefixes = [
            [list(self.prefixes[at][parent]) for parent in several] for at, several in zip(old, parents, strict=True)
        ]


@pytest.mark.slow_but_every(5)
@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize("seed", range(8))
def test_beams_see_their_own_prefixes_through_any_history(seed: int, window: int | None) -> None:
    dice = random.Random(seed)
    watched = Watched(dice.choice([1, 2, 4]), window)
    watched.admit([dice.choice([0, 0, 1]) for _ in range(dice.randint(1, 3))])
    longest = 0
    for _ in range(60):
        watched.step()
        if dice.random() < 0.2 and len(watched.prefixes) < 5:
            watched.admit([dice.choice([0, 0, 1]) for _ in range(dice.randint(1, 2))])
        kept = None
        if dice.random() < 0.1 and len(watched.prefixes) > 1:
            kept = dice.sample(range(len(watched.prefixes)), dice.randint(1, len(watched.prefixes) - 1))
        before, beams = watched.beams, dice.choice([watched.beams, watched.beams, watched.beams, 1, 3, 5])
        sequences = len(watched.prefixes if kept is None else kept)
        dying = dice.random() < 0.4  # all beams continue one beam
        watched.select([[0 if dying else dice.randrange(before) for _ in range(beams)] for _ in range(sequences)], kept)
        longest = max([longest, *(len(prefixes[0]) for prefixes in watched.prefixes)])
    assert longest > 20, "or nothing was asked"


def test_a_memory_is_written_once_and_shared_by_all_beams() -> None:
    watched = Watched(1)
    watched.admit([3, 5])
    watched.admit([9, 1])  # longer than those before
    keys, _ = watched.cache.entries(0)
    mask = watched.cache.mask
    assert mask is not None
    for at, ((prefix,), visible) in enumerate(zip(watched.prefixes, mask[:, 0], strict=True)):
        assert keys[at * HEADS, visible, 0].tolist() == prefix
    before = watched.cache.keys.data_ptr()
    watched.select([[0], [0], [0]], [3, 0, 2])
    assert watched.cache.keys.data_ptr() == before, "who leaves costs no copy of the others"
    keys, _ = watched.cache.entries(1)
    mask = watched.cache.mask
    assert mask is not None
    for at, (prefix,) in enumerate(watched.prefixes):
        assert keys[at * HEADS, mask[at, 0], 0].tolist() == [each + 0.5 for each in prefix]


def test_sequences_of_one_length_need_no_mask() -> None:
    watched = Watched(1)
    watched.admit([4, 4])
    watched.step()
    assert watched.cache.mask is None
    watched.select([[0, 0], [0, 0]])
    watched.step()
    assert watched.cache.mask is not None


def test_entries_that_no_beam_can_reach_are_used_again() -> None:
    watched = Watched(4)
    watched.admit([0])
    for _ in range(120):
        watched.step()
        watched.select([[0, 0, 0, 0]])  # one entry of four is needed
    assert watched.cache.num_entries <= watched.cache.keys.size(2) <= 2 * 120


@pytest.mark.parametrize("beams", [1, 4])
def test_a_window_bounds_the_memory_whatever_the_length(beams: int) -> None:
    """No beam is reordered here."""
    watched, window = Watched(beams, window=10), 10
    watched.admit([0, 1, 0])
    most = 0
    for _ in range(300):
        watched.step()
        most = max(most, watched.cache.keys.size(2))
    assert most <= 2 * window * beams + 32 * beams


def test_one_long_sequence_takes_no_memory_after_it_has_left() -> None:
    watched = Watched(2)
    watched.admit([500])
    watched.step()
    watched.admit([3])
    watched.step()
    assert watched.cache.keys.size(2) > 500
    watched.select([[0, 1]], kept=[1])
    watched.admit([2])
    watched.step()
    assert watched.cache.keys.size(2) < 100


def test_a_long_source_is_not_read_after_it_has_left() -> None:
    watched = Watched(1)
    watched.admit([500, 20, 20])
    watched.select([[0], [0]], kept=[1, 2])
    assert watched.cache.entries(0)[0].size(1) == 20
    watched.admit([15])
    assert watched.cache.keys.size(2) == 20
    keys, mask = watched.cache.entries(0)[0], watched.cache.mask
    assert mask is not None
    for at, ((prefix,), visible) in enumerate(zip(watched.prefixes, mask[:, 0], strict=True)):
        assert keys[at * HEADS, visible, 0].tolist() == prefix


def test_long_prefixes_are_not_read_after_they_have_left() -> None:
    watched = Watched(2)
    watched.admit([0])
    for _ in range(100):
        watched.step()
    watched.admit([0])
    watched.step()
    watched.select([[0, 1]], kept=[1])
    watched.admit([0])
    watched.step()
    assert watched.cache.num_entries <= 6


def test_equal_beams_share_their_first_entry() -> None:
    cache = KVCache(1, LayerSpec(1, 2, 2), dtype=torch.float32, device=torch.device("cpu"))
    cache.admit([0], beams=3)
    cache.advance()
    cache.admit([0, 0], beams=3)
    assert cache.num_new == 2
    cache.advance(num_equal=2)
    assert cache.num_new == 0
    assert cache.newest.is_contiguous()
    assert [len(set(beams)) for beams in cache.newest.tolist()] == [3, 1, 1]
    assert torch.equal(cache.table[1:, :, 0], cache.newest[1:])
    assert cache.mask is not None
    assert cache.mask.sum(2).tolist() == [[2, 2, 2], [1, 1, 1], [1, 1, 1]]


def test_a_cache_may_run_empty_and_fill_again() -> None:
    watched = Watched(2)
    watched.admit([0, 0])
    watched.step()
    none = torch.empty(0, dtype=torch.long)
    watched.cache.select(none, none)
    watched.prefixes = []
    watched.admit([1])
    watched.step()
    assert watched.cache.num_entries == 3, "one of the prompt, one for each beam"


def test_memory_does_not_grow_with_the_number_of_sequences_that_have_left() -> None:
    watched = Watched(beams=1)
    watched.admit([3] * 64)
    watched.select([[0]], kept=[5])
    watched.admit([200])
    assert watched.cache.keys.size(1) <= 4 * HEADS
    watched.step()


def test_buffers_are_not_replaced_while_sequences_come_and_go() -> None:
    cache = KVCache(1, LayerSpec(1, 2, 2), dtype=torch.float32, device=torch.device("cpu"), masked_must_be_finite=False)
    cache.admit([0, 0], beams=4)
    convert_once = []
    for step in range(400):
        if step % 10 == 0 and step:  # the older sequence leaves, and a new one enters
            cache.select(torch.arange(4, 8), torch.tensor([1]))
            cache.admit([0], beams=4)
        cache.advance()
        assert cache.convert_once(lambda keys, _: keys.data_ptr()) == cache.keys.data_ptr()
        convert_once.append(cache.keys.data_ptr())
        cache.select(torch.arange(8) // 4 * 4)  # all beams continue the first
    assert len(set(convert_once[100:])) == 1
    assert cache.keys.size(2) < 400 * 4 / 2, "entries are used again"


def test_sequences_that_join_one_by_one_rarely_replace_the_buffers() -> None:
    cache, sizes = KVCache(1, LayerSpec(1, 2, 2), dtype=torch.float32, device=torch.device("cpu")), set[int]()
    for _ in range(64):
        cache.admit([0], beams=1)
        cache.advance()
        sizes.add(cache.keys.size(1))
    assert len(sizes) <= 8
