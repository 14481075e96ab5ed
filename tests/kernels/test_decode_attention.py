"""Attention in decoding steps over the listed entries of a cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway import kernels

if not kernels.is_available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

from headway.kernels.decode_attention import attend, padded_width, write_kv
from headway.kernels.fp16_dot import KEYS_PER_DOT


def spans(sentences: int, beams: int) -> np.ndarray:
    """Return the rows of sentences with the same number of beams."""
    first = beams * np.arange(sentences)
    return np.stack([first, first + beams], 1)


def contiguous_entries(sentences: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the arguments of :func:`attend` for sentences whose positions are the first ``count`` entries."""
    entries = np.minimum(np.arange(count + KEYS_PER_DOT - 1), count - 1)
    return entries[None], np.tile([0, count], (sentences, 1))


def placed(numbers: np.ndarray) -> np.ndarray:
    """Convert (B * H, C, K) to the layout that :func:`attend` reads."""
    padding = padded_width(numbers.shape[2]) - numbers.shape[2]
    return np.pad(numbers.astype(np.float16), ((0, 0), (0, 0), (0, padding))).view(np.int16)


@pytest.mark.parametrize(("key_width", "value_width"), [(1, 1), (6, 10), (8, 32), (64, 64), (100, 72)])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("list_each", [False, True])
@pytest.mark.parametrize("count", [1, 7, 8, 11])
@pytest.mark.parametrize("start", [0, 2])
def test_attention_is_the_softmax_of_products_over_listed_entries(
    key_width: int, value_width: int, beams: int, list_each: bool, count: int, start: int
) -> None:
    random = np.random.default_rng(0)
    sentences, heads, capacity = 4, 2, 15
    rows = random.standard_normal((sentences * beams, heads * key_width + 7), dtype=np.float32)
    keys = random.standard_normal((sentences + 1, heads, capacity, key_width)).astype(np.float16)
    values = random.standard_normal((sentences + 1, heads, capacity, value_width)).astype(np.float16)
    slots = random.permutation(sentences + 1)[:sentences]
    unlisted, columns = capacity - 1, start + count + KEYS_PER_DOT - 1
    entries = np.full((len(rows) if list_each else 1, columns), unlisted)
    for listed in entries:
        listed[start : start + count] = random.permutation(capacity - 1)[:count]
    keys[:, :, unlisted], values[:, :, unlisted] = np.nan, np.nan
    stored_keys, stored_values = (placed(x.reshape(-1, *x.shape[2:])) for x in (keys, values))
    positions = np.tile([start, start + count], (sentences, 1))
    out = np.empty((len(rows), heads * value_width), dtype=np.float32)
    stored = stored_keys, stored_values, slots
    attend(rows, heads, heads, key_width, *stored, spans(sentences, beams), entries, positions, out)
    for row in range(sentences * beams):
        own, slot = entries[row if list_each else 0, start : start + count], slots[row // beams]
        query = torch.from_numpy(rows[row, : heads * key_width]).view(heads, 1, key_width)
        key, value = (torch.from_numpy(x[slot][:, own]).float() for x in (keys, values))
        expected = (query @ key.mT).softmax(-1) @ value
        torch.testing.assert_close(torch.from_numpy(out[row]), expected.flatten())


@pytest.mark.slow
def test_threads_that_share_sentences_find_the_same_as_one() -> None:
    random = np.random.default_rng(3)
    rows = random.standard_normal((15, 96), dtype=np.float32)
    keys, values = (placed(random.standard_normal((10, 40, 48))) for _ in range(2))
    entries, positions = random.integers(40, size=(15, 48)), np.array([[0, 40], [3, 4], [0, 8], [1, 33], [20, 25]])
    found, expected = (np.empty((15, 96), dtype=np.float32) for _ in range(2))
    for compute, out in ((attend.parallel, found), (attend.serial, expected)):
        compute(rows, 2, 2, 48, keys, values, np.arange(5), spans(5, 3), entries, positions, out)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16])
def test_infinite_scores_give_nan(count: int) -> None:
    keys, values = placed(np.full((1, count, 8), np.inf)), placed(np.ones((1, count, 8)))
    out = np.empty((1, 8), dtype=np.float32)
    attend(
        np.full((1, 8), -1, np.float32),
        1,
        1,
        8,
        keys,
        values,
        np.arange(1),
        spans(1, 1),
        *contiguous_entries(1, count),
        out,
    )
    assert np.isnan(out).all()


def test_a_sentence_without_positions_gets_zeros() -> None:
    keys = values = placed(np.ones((2, 3, 4)))
    out, (entries, _) = np.empty((2, 4), dtype=np.float32), contiguous_entries(2, 3)
    positions = np.array([[1, 1], [0, 1]])
    ones = np.ones((2, 4), dtype=np.float32)
    attend(ones, 1, 1, 4, keys, values, np.arange(2), spans(2, 1), entries, positions, out)
    assert np.array_equal(out, [[0] * 4, [1] * 4])


def test_where_the_entries_are_changes_no_bit() -> None:
    random = np.random.default_rng(1)
    rows = random.standard_normal((2, 8), dtype=np.float32)
    keys, values = (placed(random.standard_normal((2, 9, 4))) for _ in range(2))
    found, expected = (np.empty((2, 4), dtype=np.float32) for _ in range(2))
    entries, positions = contiguous_entries(2, 4)
    spread = 2 * entries + 1
    attend(rows, 1, 1, 4, keys, values, np.arange(2), spans(2, 1), spread, positions, found)
    keys, values = (np.ascontiguousarray(x[:, 1::2]) for x in (keys, values))
    attend(rows, 1, 1, 4, keys, values, np.arange(2), spans(2, 1), entries, positions, expected)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("column", [9, 20])  # of a key, and of a value
@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf, 1e6, -1e6, 65520])
def test_keys_and_values_that_do_not_fit_16_bit_floats_give_nan(damage: float, column: int) -> None:
    """Even if the score of the key is -inf, so that its weight would be 0."""
    rows = np.ones((1, 24), dtype=np.float32)
    rows[0, column] = damage
    keys, values = np.zeros((1, 2, padded_width(8)), dtype=np.int16), np.zeros((1, 2, padded_width(8)), dtype=np.int16)
    write_kv(rows, 8, 8, 1, keys, np.arange(1), spans(1, 1), np.array([1]))
    write_kv(rows, 16, 8, 1, values, np.arange(1), spans(1, 1), np.array([1]))
    out = np.empty((1, 8), dtype=np.float32)
    attend(rows, 1, 1, 8, keys, values, np.arange(1), spans(1, 1), *contiguous_entries(1, 2), out)
    assert np.isnan(out[0, 4])


def test_the_largest_16_bit_float_is_stored() -> None:
    rows = np.array([[65504, -65504, 65519]], dtype=np.float32)
    keys = np.zeros((1, 1, padded_width(3)), dtype=np.int16)
    write_kv(rows, 0, 3, 1, keys, np.arange(1), spans(1, 1), np.array([0]))
    assert keys.view(np.float16)[0, 0, :3].tolist() == [65504, -65504, 65504]


@pytest.mark.parametrize("width", [3, 8, 21])
def test_new_keys_go_to_their_places_and_nothing_else_does(width: int) -> None:
    heads, beams, column = 2, 2, 6
    rows = np.arange(4 * (column + heads * width), dtype=np.float32).reshape(4, -1)
    places = np.full((3 * heads, 7, padded_width(width)), -1, dtype=np.float16)
    slots = np.array([2, 0])
    entries = np.array([4, 5, 3, 4])
    write_kv(rows, column, width, heads, places.view(np.int16), slots, spans(2, beams), entries)
    for row in range(4):
        for head in range(heads):
            first = column + head * width
            found = places[slots[row // beams] * heads + head, entries[row]]
            assert np.array_equal(found[:width], rows[row, first : first + width])
            assert not found[width:].any()
            found[:] = -1
    assert (places == -1).all()


def test_sentences_may_have_different_numbers_of_rows_and_entries() -> None:
    """As in an encoder, where each position attends to its sentence. Rows between the spans stay as they are."""
    random = np.random.default_rng(3)
    heads, width, rows = 2, 5, random.standard_normal((10, 30), dtype=np.float32)
    own, lengths, slots = np.array([[1, 4], [4, 5], [7, 10]]), np.array([3, 1, 3]), np.array([2, 0, 1])
    keys, values = (np.zeros((3 * heads, 3, padded_width(width)), dtype=np.int16) for _ in range(2))
    places = np.array([0, 0, 1, 2, 0, 0, 0, 0, 1, 2])
    write_kv(rows, 10, width, heads, keys, slots, own, places)
    write_kv(rows, 20, width, heads, values, slots, own, places)
    out, (entries, _) = np.full((10, heads * width), 7, dtype=np.float32), contiguous_entries(3, 3)
    positions = np.stack([np.zeros_like(lengths), lengths], 1)
    attend(rows, heads, heads, width, keys, values, slots, own, entries, positions, out)
    for first, end in own:
        parts = torch.from_numpy(rows[first:end]).view(-1, 3, heads, width)
        query, key, value = (
            parts[:, at].half().float().transpose(0, 1) if at else parts[:, 0].transpose(0, 1) for at in range(3)
        )
        expected = (query @ key.mT).softmax(-1) @ value
        torch.testing.assert_close(torch.from_numpy(out[first:end]), expected.transpose(0, 1).flatten(1))
    assert (out[[0, 5, 6]] == 7).all()
