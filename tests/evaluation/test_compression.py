"""Bits per byte of compressors."""

from __future__ import annotations

import random

import pytest

from headway.evaluation.compression import ppmd_bits_per_byte, xz_bits_per_byte

draw = random.Random(1)
WORDS = ["".join(draw.choices("abcdefgh", k=6)) for _ in range(400)]


@pytest.mark.parametrize("measure", [xz_bits_per_byte, ppmd_bits_per_byte])
def test_only_what_is_new_takes_bits(measure: object) -> None:
    assert callable(measure)
    before = " ".join(draw.choices(WORDS, k=4000))
    repeated, new = before[2000:6000], "".join(draw.choices("abcdefgh", k=4000))
    assert measure(before, repeated) < 0.3
    assert 3 <= measure(before, new) < 4  # eight letters are 3 bits
