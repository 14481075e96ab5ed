"""In int8, the probabilities of a translation do not depend on the other texts of its batch, to the last bit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from unpacking import unpack_archive

from headway import kernels
from headway.predict import load_translator

_RECORDED = Path(__file__).parents[2] / "compat" / "recorded" / "bundle-transformer-int8.tar.xz"
_WORDS = ("Ein", "Hund", "läuft", "zwei", "Männer", "Haus", "a", "b", "rot", "und")


@pytest.mark.skipif(not kernels.is_available(), reason="no AVX2, or no Numba, for the compiled kernels")
def test_probabilities_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    unpack_archive(_RECORDED, tmp_path)
    translator, draw = load_translator(tmp_path / "model", precision="int8"), random.Random(1)
    texts = [" ".join(draw.choices(_WORDS, k=draw.randint(1, 14))) for _ in range(100)]
    together = translator.translate(texts)
    for start in range(0, 100, 4):
        for alone, same in zip(translator.translate(texts[start : start + 4]), together[start:], strict=False):
            assert alone.candidates == same.candidates
