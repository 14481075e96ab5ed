"""Truncated and exchanged texts."""

from __future__ import annotations

import numpy as np

from headway.corpus.cleaning.artificial_pairs import swap_texts, truncate_texts


def test_truncated_texts_lack_words_at_the_end_and_half_of_them_end_like_the_whole() -> None:
    texts = [" ".join(f"w{number}" for number in range(count)) + "!" for count in range(2, 22)] * 20
    truncated = truncate_texts(texts, np.random.default_rng(1))
    for text, shorter in zip(texts, truncated, strict=True):
        words, left = text.rstrip("!").split(), shorter.rstrip("!").split()
        assert left == words[: len(left)]
        # 25 to 65 % of the words are missing, but for rounding, and at least one.
        assert 0.25 * len(words) - 0.5 <= len(words) - len(left) <= 0.65 * len(words) + 0.5
        assert 0 < len(left) < len(words)
    assert 0.4 < np.mean([text.endswith("!") for text in truncated]) < 0.6


def test_texts_of_one_word_stay_whole() -> None:
    texts = ["Ja.", "Ja", "…", ""] * 5
    assert truncate_texts(texts, np.random.default_rng(1)) == texts


def test_exchanged_texts_have_nearly_the_same_lengths() -> None:
    texts = [chr(ord("a") + number % 26) * number for number in range(1, 101)]
    others = swap_texts(texts, np.random.default_rng(1))
    assert sorted(others) == sorted(texts)
    assert not any(text == other for text, other in zip(texts, others, strict=True))
    distances = [abs(len(text) - len(other)) for text, other in zip(texts, others, strict=True)]
    assert sorted(distances) == [1] * 99 + [99]  # the shortest text gets the longest one
