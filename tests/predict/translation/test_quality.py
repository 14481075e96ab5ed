"""Quality checks on hand-made hypotheses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.predict import Translator
from headway.predict.translation.quality import find_flags, is_copied, is_repetitive, max_ngram_repeats


def brute_longest_run(tokens: Sequence[int]) -> int:
    """By definition: the largest k such that some n <= 16 tokens occur k times in a row."""
    best = min(len(tokens), 1)
    for n in range(1, 17):
        for start in range(len(tokens)):
            gram, k = tokens[start : start + n], 1
            while len(gram) == n and tokens[start + k * n : start + (k + 1) * n] == gram:
                k += 1
            best = max(best, k if len(gram) == n else 0)
    return best


@given(st.lists(st.integers(0, 2), max_size=40))
def test_the_longest_run_is_that_of_the_definition(tokens: list[int]) -> None:
    assert max_ngram_repeats(tokens) == brute_longest_run(tokens)


class TestRepeated:
    @pytest.mark.parametrize(
        ("tokens", "expected"),
        [
            ([7, 5, 5, 5], False),  # three times
            ([7, 5, 5, 5, 5], True),
            ([1, 2, 1, 2, 1, 2, 9], False),
            ([9, 1, 2, 1, 2, 1, 2, 1, 2], True),
            ([*range(16)] * 4, True),
            ([*range(17)] * 4, False),  # the compression check covers longer n-grams
        ],
    )
    def test_four_times_in_a_row(self, tokens: list[int], expected: bool) -> None:
        assert is_repetitive("a b", "c d", [1, 2], tokens) is expected

    def test_what_the_source_repeats_may_be_repeated(self) -> None:
        assert not is_repetitive("ha ha ha ha", "he he he he", [3, 3, 3, 3], [4, 4, 4, 4])
        assert is_repetitive("ha ha ha ha", "he he he he he", [3, 3, 3, 3], [4, 4, 4, 4, 4])

    def test_a_text_that_compresses_too_well(self) -> None:
        """A loop of 30 different words, three times: no n-gram of up to 16 tokens repeats in a row."""
        loop = " ".join(chr(97 + i % 26) * 2 + chr(97 + i * 7 % 26) for i in range(30))
        tokens = [*range(30)] * 5
        text = " ".join([loop] * 5)
        assert max_ngram_repeats(tokens) == 1
        assert is_repetitive("something else", text, [1], tokens)
        assert not is_repetitive(text, text, tokens, tokens)
        assert not is_repetitive("something else", loop, [1], tokens[:30])

    def test_short_texts_are_not_compressed(self) -> None:
        assert not is_repetitive("x", "ab" * 31, [1], [2, 3])  # 62 bytes
        assert is_repetitive("x", "ab" * 32, [1], [2, 3])


class TestCopied:
    @pytest.mark.parametrize(
        ("source", "target", "expected"),
        [
            ("Der Hund sieht die Katze.", "Der Hund sieht die Katze.", True),
            ("Der Hund sieht die Katze.", " Der  Hund sieht die Katze.", True),  # white space aside
            ("Der Hund sieht die Katze.", "The dog sees the cat.", False),
            ("Angela Merkel, Berlin", "Angela Merkel, Berlin", False),  # three words
            ("12.03.2021 14:00 25 km 7", "12.03.2021 14:00 25 km 7", False),  # one word with a letter
            ("狗看见猫", "狗看见猫", True),
            ("猫犬", "猫犬", False),
            ("", "", False),
        ],
    )
    def test_more_than_three_words_that_were_not_translated(self, source: str, target: str, expected: bool) -> None:
        assert is_copied(source, target) is expected


def test_all_flags_in_their_order() -> None:
    text = "ja ja nein ja ja nein ja ja nein ja ja nein"
    tokens = [1, 1, 2] * 4
    assert find_flags(text, text, [3], tokens, finished=False, languages_differ=True) == (
        "truncated",
        "repeated",
        "copied",
    )
    assert find_flags(text, text, [3], tokens, finished=True, languages_differ=False) == ("repeated",)
    assert find_flags("a b", "c d", [1, 2], [3, 4], finished=True, languages_differ=True) == ()


@pytest.mark.parametrize("kind", ["characters", "whitespace", "words"])
def test_a_source_of_unknown_tokens_only_is_flagged(make_translator: Callable[..., Translator], kind: str) -> None:
    model = make_translator(kind)
    for text in ("日本語", "日本 語", "日本語 日本"):
        assert "unknown_source" in model.translate(text).flags
    for text in ("das 日本語", "das Haus", ""):
        assert "unknown_source" not in model.translate(text).flags
    assert "unknown_source" not in make_translator("bpe").translate("日本語").flags
