"""Development examples that are also in the training text."""

from __future__ import annotations

import pytest

from headway.data.documents import END_OF_DOCUMENT
from headway.data.overlap import Overlap, count_overlap


def test_pairs_and_sources() -> None:
    dev = [("eins", "one"), ("zwei", "two"), ("drei", "three"), ("eins", "one")]
    train = [("drei", "3"), ("eins ", "one"), ("eins", "1"), ("zwei drei", "two three")] * 2
    overlap = count_overlap(dev, train, lambda _: None)
    assert overlap == Overlap(examples=4, texts=3, pairs=2)
    assert "3 of 4 development examples (75.0%)" in str(overlap)
    assert "2 of them with the same target" in str(overlap)


@pytest.mark.parametrize("pieces", [["a\nb\n\nc" + END_OF_DOCUMENT], ["a\n", "b\n\nc" + END_OF_DOCUMENT]])
def test_lines_of_documents(pieces: list[str]) -> None:
    dev = [("x\nb\n", ""), ("c\n\n" + END_OF_DOCUMENT, "")]
    overlap = count_overlap(dev, [(piece, "") for piece in pieces], lambda _: None)
    assert overlap == Overlap(examples=3, texts=2, pairs=2)
    assert "same target" not in str(overlap)
