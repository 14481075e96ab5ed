"""Attention in decoding steps over the cache entries that a mask allows. True means "may attend"."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway import kernels

if not kernels.available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

from headway.kernels.decode_attention import attend, padded_width, write_kv


def spans(sentences: int, beams: int) -> np.ndarray:
    """Return the rows of sentences with the same number of beams."""
    first = beams * np.arange(sentences)
    return np.stack([first, first + beams], 1)


def placed(numbers: np.ndarray) -> np.ndarray:
    """Convert (B * H, C, K) to the layout that :func:`attend` reads."""
    padding = padded_width(numbers.shape[2]) - numbers.shape[2]
    return np.pad(numbers.astype(np.float16), ((0, 0), (0, 0), (0, padding))).view(np.int16)


@pytest.mark.parametrize(("key_width", "value_width"), [(1, 1), (6, 10), (8, 32), (64, 64), (100, 72)])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("mask_each", [False, True])
@pytest.mark.parametrize("count", [1, 7, 8, 11])
def test_attention_is_the_softmax_of_products_over_allowed_entries(
    key_width: int, value_width: int, beams: int, mask_each: bool, count: int
) -> None:
    random = np.random.default_rng(0)
    sentences, heads, capacity = 4, 2, 15
    rows = random.standard_normal((sentences * beams, heads * key_width + 7), dtype=np.float32)
    keys = random.standard_normal((sentences * heads, capacity, key_width)).astype(np.float16)
    values = random.standard_normal((sentences * heads, capacity, value_width)).astype(np.float16)
    allowed = random.random((sentences, beams if mask_each else 1, capacity)) < 0.5
    allowed[:, :, 0] = True
    slots = random.permutation(sentences + 1)[:sentences]
    query = torch.from_numpy(rows[:, : heads * key_width]).view(sentences, beams, heads, key_width).transpose(1, 2)
    by_sentence = torch.from_numpy(keys).float().view(sentences, heads, capacity, key_width)[:, :, :count]
    mask = torch.from_numpy(allowed)[:, None, :, :count]
    scores = (query @ by_sentence.transpose(2, 3)).masked_fill(~mask, -torch.inf)
    by_sentence = torch.from_numpy(values).float().view(sentences, heads, capacity, value_width)[:, :, :count]
    expected = scores.softmax(-1) @ by_sentence
    out = np.empty((sentences * beams, heads * value_width), dtype=np.float32)
    never_allowed = np.repeat(~allowed.any(1), heads, axis=0)
    keys[never_allowed], values[never_allowed] = np.nan, np.nan  # masked entries are not read
    at_home = [np.zeros((sentences + 1, heads, *x.shape[1:])) for x in (keys, values)]
    for places, x in zip(at_home, (keys, values), strict=True):
        places[slots] = x.reshape(sentences, heads, *x.shape[1:])
    kept_keys, kept_values = (placed(x.reshape(-1, *x.shape[2:])) for x in at_home)
    attend(
        rows,
        heads,
        heads,
        key_width,
        kept_keys,
        kept_values,
        slots,
        spans(sentences, beams),
        np.full(sentences, count),
        allowed,
        out,
    )
    torch.testing.assert_close(torch.from_numpy(out), expected.transpose(1, 2).reshape(sentences * beams, -1))


def test_threads_that_share_sentences_find_the_same_as_one() -> None:
    random = np.random.default_rng(3)
    rows = random.standard_normal((15, 96), dtype=np.float32)
    keys, values = (placed(random.standard_normal((10, 40, 48))) for _ in range(2))
    mask, counts = random.random((5, 3, 40)) < 0.7, np.array([40, 1, 8, 33, 25])
    found, expected = (np.empty((15, 96), dtype=np.float32) for _ in range(2))
    for compute, out in ((attend.parallel, found), (attend.serial, expected)):
        compute(rows, 2, 2, 48, keys, values, np.arange(5), spans(5, 3), counts, mask, out)
    assert np.array_equal(found, expected)


def test_an_empty_mask_allows_all_entries() -> None:
    random = np.random.default_rng(2)
    rows = random.standard_normal((4, 16), dtype=np.float32)
    keys, values = (placed(random.standard_normal((4, 5, 8))) for _ in range(2))
    found, expected = (np.empty((4, 16), dtype=np.float32) for _ in range(2))
    for mask, out in ((np.zeros((0, 0, 0), dtype=np.bool_), found), (np.ones((2, 1, 5), dtype=np.bool_), expected)):
        attend(rows, 2, 2, 8, keys, values, np.arange(2), spans(2, 2), np.full(2, 5), mask, out)
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
        np.full(1, count),
        np.ones((1, 1, count), dtype=np.bool_),
        out,
    )
    assert np.isnan(out).all()


def test_a_query_that_may_attend_to_nothing_gets_zeros() -> None:
    keys = values = placed(np.ones((1, 3, 4)))
    out = np.empty((2, 4), dtype=np.float32)
    mask = np.array([[[False, False, False], [True, False, False]]])
    attend(
        np.ones((2, 4), dtype=np.float32), 1, 1, 4, keys, values, np.arange(1), spans(1, 2), np.full(1, 3), mask, out
    )
    assert np.array_equal(out, [[0] * 4, [1] * 4])


def test_masked_entries_between_allowed_ones_change_no_bit() -> None:
    random = np.random.default_rng(1)
    rows = random.standard_normal((2, 8), dtype=np.float32)
    keys, values = (placed(random.standard_normal((2, 9, 4))) for _ in range(2))
    spread = np.zeros((2, 1, 9), dtype=np.bool_)
    spread[:, :, 1::2] = True
    found, expected = (np.empty((2, 4), dtype=np.float32) for _ in range(2))
    attend(rows, 1, 1, 4, keys, values, np.arange(2), spans(2, 1), np.full(2, 9), spread, found)
    packed_keys, packed_values = (np.ascontiguousarray(x[:, 1::2]) for x in (keys, values))
    every = np.ones((2, 1, 4), dtype=np.bool_)
    attend(rows, 1, 1, 4, packed_keys, packed_values, np.arange(2), spans(2, 1), np.full(2, 4), every, expected)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("damage", [np.nan, np.inf, 1e6])
def test_damaged_keys_and_values_give_values_that_are_not_finite(damage: float) -> None:
    """A number beyond the range of 16-bit floats becomes infinite."""
    rows = np.ones((1, 24), dtype=np.float32)
    rows[0, 9] = rows[0, 20] = damage
    keys, values = np.zeros((1, 2, padded_width(8)), dtype=np.int16), np.zeros((1, 2, padded_width(8)), dtype=np.int16)
    write_kv(rows, 8, 8, 1, keys, np.arange(1), spans(1, 1), 1)
    write_kv(rows, 16, 8, 1, values, np.arange(1), spans(1, 1), 1)
    out = np.empty((1, 8), dtype=np.float32)
    attend(
        rows, 1, 1, 8, keys, values, np.arange(1), spans(1, 1), np.full(1, 2), np.ones((1, 1, 2), dtype=np.bool_), out
    )
    assert not np.isfinite(out[0, 4])


@pytest.mark.parametrize("width", [3, 8, 21])
def test_new_keys_go_to_their_places_and_nothing_else_does(width: int) -> None:
    heads, beams, column = 2, 2, 6
    rows = np.arange(4 * (column + heads * width), dtype=np.float32).reshape(4, -1)
    places = np.full((3 * heads, 7, padded_width(width)), -1, dtype=np.float16)
    slots = np.array([2, 0])
    write_kv(rows, column, width, heads, places.view(np.int16), slots, spans(2, beams), 4)
    for row in range(4):
        for head in range(heads):
            first = column + head * width
            found = places[slots[row // beams] * heads + head, 4 + row % beams]
            assert np.array_equal(found[:width], rows[row, first : first + width])
            assert not found[width:].any()
    assert (np.delete(places, (4, 5), 1) == -1).all()
    assert (places[heads : 2 * heads] == -1).all()


def test_sentences_may_have_different_numbers_of_rows_and_entries() -> None:
    """As in an encoder, where each position attends to its sentence. Rows between the spans stay as they are."""
    random = np.random.default_rng(3)
    heads, width, rows = 2, 5, random.standard_normal((10, 30), dtype=np.float32)
    own, lengths, slots = np.array([[1, 4], [4, 5], [7, 10]]), np.array([3, 1, 3]), np.array([2, 0, 1])
    keys, values = (np.zeros((3 * heads, 3, padded_width(width)), dtype=np.int16) for _ in range(2))
    write_kv(rows, 10, width, heads, keys, slots, own, 0)
    write_kv(rows, 20, width, heads, values, slots, own, 0)
    out = np.full((10, heads * width), 7, dtype=np.float32)
    attend(rows, heads, heads, width, keys, values, slots, own, lengths, np.zeros((0, 0, 0), dtype=np.bool_), out)
    for first, end in own:
        parts = torch.from_numpy(rows[first:end]).view(-1, 3, heads, width)
        query, key, value = (
            parts[:, at].half().float().transpose(0, 1) if at else parts[:, 0].transpose(0, 1) for at in range(3)
        )
        expected = (query @ key.mT).softmax(-1) @ value
        torch.testing.assert_close(torch.from_numpy(out[first:end]), expected.transpose(0, 1).flatten(1))
    assert (out[[0, 5, 6]] == 7).all()
