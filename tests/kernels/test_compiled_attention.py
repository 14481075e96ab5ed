"""Attention over open places."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway import kernels

if not kernels.available():
    pytest.skip("no AVX2, or no Numba, for the compiled kernels", allow_module_level=True)

from headway.kernels.attention import attend, place


@pytest.mark.parametrize(("key_width", "value_width"), [(1, 1), (6, 10), (64, 64)])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("mask_each", [False, True])
def test_attention_over_open_places_is_softmax_of_products(
    key_width: int, value_width: int, beams: int, mask_each: bool
) -> None:
    random = np.random.default_rng(0)
    sentences, heads, count, capacity = 4, 2, 11, 15
    rows = random.standard_normal((sentences * beams, heads * key_width + 7), dtype=np.float32)
    keys = random.standard_normal((sentences * heads, capacity, key_width), dtype=np.float32) * 3
    values = random.standard_normal((sentences * heads, capacity, value_width), dtype=np.float32)
    shut = random.random((sentences, beams if mask_each else 1, capacity)) < 0.5
    shut[:, :, 0] = False
    mask = np.where(shut, np.float32(-np.inf), np.float32(0))
    query = torch.from_numpy(rows[:, : heads * key_width]).view(sentences, beams, heads, key_width).transpose(1, 2)
    by_sentence = torch.from_numpy(keys).view(sentences, heads, capacity, key_width)[:, :, :count]
    scores = query @ by_sentence.transpose(2, 3) + torch.from_numpy(mask)[:, None, :, :count]
    expected = scores.softmax(-1) @ torch.from_numpy(values).view(sentences, heads, capacity, value_width)[:, :, :count]
    out = np.empty((sentences * beams, heads * value_width), dtype=np.float32)
    everywhere_shut = np.repeat(shut.all(1), heads, axis=0)
    keys[everywhere_shut], values[everywhere_shut] = np.nan, np.nan  # what is shut is not looked at
    attend(rows, heads, keys, values, count, mask, out)
    torch.testing.assert_close(torch.from_numpy(out), expected.transpose(1, 2).reshape(sentences * beams, -1))


def test_what_is_shut_between_places_changes_no_bit() -> None:
    random = np.random.default_rng(1)
    rows = random.standard_normal((2, 8), dtype=np.float32)
    keys, values = (random.standard_normal((2, 9, 4), dtype=np.float32) for _ in range(2))
    spread = np.zeros((2, 1, 9), dtype=np.float32)
    spread[:, :, ::2] = -np.inf
    found, expected = (np.empty((2, 4), dtype=np.float32) for _ in range(2))
    attend(rows, 1, keys, values, 9, spread, found)
    packed_keys, packed_values = (np.ascontiguousarray(x[:, 1::2]) for x in (keys, values))
    attend(rows, 1, packed_keys, packed_values, 4, np.zeros((2, 1, 4), dtype=np.float32), expected)
    assert np.array_equal(found, expected)


def test_new_keys_and_values_go_to_their_places_and_nothing_else_does() -> None:
    heads, key_width, value_width, beams = 2, 3, 5, 2
    rows = np.arange(4 * 30, dtype=np.float32).reshape(4, 30)
    keys = np.full((2 * heads, 7, key_width), -1, dtype=np.float32)
    values = np.full((2 * heads, 7, value_width), -1, dtype=np.float32)
    place(rows, heads, 6, keys, values, 4)
    for row in range(4):
        for head in range(heads):
            key, value = 6 + head * key_width, 6 + heads * key_width + head * value_width
            at = row // beams * heads + head, 4 + row % beams
            assert np.array_equal(keys[at], rows[row, key : key + key_width])
            assert np.array_equal(values[at], rows[row, value : value + value_width])
    assert (np.delete(keys, (4, 5), 1) == -1).all()
    assert (np.delete(values, (4, 5), 1) == -1).all()
