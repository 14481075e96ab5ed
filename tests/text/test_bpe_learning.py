"""Byte-pair encoding being learned, against the paper's example and the library that trains vocabularies."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import DataError
from headway.text.bpe_learning import count_words, initial_symbols, learn_merges
from headway.text.tokenizer import Tokenizer, TokenizerConfig, readable_piece

# Sennrich et al. (2016), section 3.2, with the frequencies of their example.
SENNRICH = ["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3


def test_the_papers_example_by_hand() -> None:
    # es 6 + 3 (before st, which is as frequent, because e comes before s); est; lo 5 + 2; low; e w 6 (new|est), ...
    learned = list(learn_merges(count_words(SENNRICH), examples=["lowest", "newer"]))
    assert [(merge.left, merge.right, merge.count) for merge in learned[:5]] == [
        *(("e", "s", 9), ("es", "t", 9), ("l", "o", 7), ("lo", "w", 7), ("e", "w", 6))
    ]
    assert [merge.rank for merge in learned] == list(range(12))  # the pairs that occur twice
    assert [merge.merged for merge in learned] == [merge.left + merge.right for merge in learned]
    assert [merge.segmentations[0] for merge in learned[:5]] == [
        ("l", "o", "w", "es", "t"),
        ("l", "o", "w", "est"),
        ("lo", "w", "est"),
        ("low", "est"),
        ("low", "est"),
    ]
    assert learned[4].segmentations[1] == ("n", "ew", "e", "r")
    assert initial_symbols("low é") == ("l", "o", "w", " ", "<0xC3>", "<0xA9>")


def merges_of_library(texts: list[str], **options: object) -> list[tuple[str, str]]:
    tokenizer = Tokenizer.train(texts, TokenizerConfig.model_validate({"vocab_size": 2000, **options}))
    return [(readable_piece(left), readable_piece(right)) for left, right in tokenizer.merge_ranks]


def learned_here(texts: list[str], *, min_frequency: int = 2, split_digits: bool = False) -> list[tuple[str, str]]:
    words = count_words(texts, split_digits=split_digits)
    return [(merge.left, merge.right) for merge in learn_merges(words, min_frequency=min_frequency)]


@given(
    texts=st.lists(st.text("aab b1é ", max_size=12), min_size=1, max_size=6).filter(
        lambda texts: any(map(str.strip, texts))
    ),
    min_frequency=st.integers(1, 3),
    split_digits=st.booleans(),
)
@settings(max_examples=30)
def test_the_merges_are_those_of_the_library(texts: list[str], min_frequency: int, split_digits: bool) -> None:
    """Also where letters repeat, where pairs are equally frequent, and where two merges give the same symbol."""
    found = learned_here(texts, min_frequency=min_frequency, split_digits=split_digits)
    assert found == merges_of_library(texts, min_frequency=min_frequency, split_digits=split_digits)


def test_merges_of_a_longer_text() -> None:
    dice = random.Random(3)
    words = ["".join(dice.choices("aeinrst", k=dice.randint(1, 7))) for _ in range(300)]
    texts = [" ".join(dice.choices(words, weights=range(300, 0, -1), k=12)) for _ in range(60)]
    merges = merges_of_library(texts)
    assert len(merges) > 300
    assert learned_here(texts) == merges


def test_the_counts_are_those_of_the_corpus() -> None:
    """Each count is the number of places of the pair in the words as they are segmented before the merge."""
    texts = ["the other mother gathers feathers", "another father, the weather"]
    words = count_words(texts)
    symbols = {word: list(word) for word in words}
    for merge in learn_merges(words):
        pair = [merge.left, merge.right]
        places = {
            word: [at for at in range(len(parts) - 1) if [*map(readable_piece, parts[at : at + 2])] == pair]
            for word, parts in symbols.items()
        }
        assert merge.count == sum(words[word] * len(found) for word, found in places.items())
        for word, found in places.items():
            for at in reversed(found):
                symbols[word][at : at + 2] = ["".join(symbols[word][at : at + 2])]


def test_text_that_utf8_cannot_encode_is_refused() -> None:
    with pytest.raises(DataError, match=r"text 2, character 1: lone surrogate U\+D800"):
        count_words(["a", "\ud800"])
    with pytest.raises(DataError, match=r"lone surrogate"):
        next(learn_merges(count_words(SENNRICH), examples=["\ud800"]))
