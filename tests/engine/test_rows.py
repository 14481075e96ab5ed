"""Rows of sentences with and without padding."""

from __future__ import annotations

import torch

from headway.engine.rows import SourceRows


def test_rows_have_no_padding_and_return_to_their_places() -> None:
    rows = SourceRows.pack([2, 0, 3], torch.device("cpu"))
    padded = torch.tensor([[1.0], [2.0], [0.0], [0.0], [0.0], [0.0], [3.0], [4.0], [5.0]])
    assert rows.unpad(padded).flatten().tolist() == [1, 2, 3, 4, 5]
    assert rows.pad(rows.unpad(padded)).equal(padded)
    assert rows.positions.tolist() == [0, 1, 0, 1, 2]
    assert rows.spans.tolist() == [[0, 2], [2, 2], [2, 5]]


def test_sentences_of_one_length_are_not_copied() -> None:
    rows = SourceRows.pack([2, 2], torch.device("cpu"))
    x = torch.randn(4, 3)
    assert rows.pad(x) is x
    assert rows.unpad(x) is x
