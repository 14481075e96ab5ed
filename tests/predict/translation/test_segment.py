"""Splitting long texts: nothing is lost, and every part fits."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.errors import LengthError
from headway.predict.translation.segment import TextPart, split_text


def words(text: str) -> int:
    return len(text.split())


def texts_of(parts: list[TextPart]) -> list[str]:
    return [part.text for part in parts]


def joined(parts: list[TextPart], texts: list[str], after: str) -> str:
    return "".join(part.leading_whitespace + text for part, text in zip(parts, texts, strict=True)) + after


class TestSentences:
    def test_one_part_each_with_the_white_space_kept(self) -> None:
        text = "  Dr. Smith went home.  He slept!\n\nThen he woke up. \n"
        parts, after = split_text(text, "en", words, 5)
        assert parts == [
            TextPart("Dr. Smith went home.", "  "),
            TextPart("He slept!", "  "),
            TextPart("Then he woke up.", "\n\n"),
        ]
        assert after == " \n"
        assert joined(parts, ["A.", "B.", "C."], after) == "  A.  B.\n\nC. \n"

    def test_by_language(self) -> None:
        parts, _ = split_text("これは文です。これも文です！", "ja", words, 5)
        assert texts_of(parts) == ["これは文です。", "これも文です！"]
        parts, _ = split_text("Er kam z. B. gestern. Sie nicht.", "de", words, 5)
        assert texts_of(parts) == ["Er kam z. B. gestern.", "Sie nicht."]

    @pytest.mark.parametrize("language", ["de", "de-AT", "de_DE"])
    def test_a_region_changes_nothing(self, language: str) -> None:
        parts, _ = split_text("Am 3. Mai kam er. Sie nicht.", language, words, 5)
        assert texts_of(parts) == ["Am 3. Mai kam er.", "Sie nicht."]


class TestLongSentences:
    def test_cut_after_a_comma_near_the_middle(self) -> None:
        parts, _ = split_text("one two three four, five six seven", "en", words, 6)
        assert parts == [
            TextPart("one two three four,", "", is_partial_sentence=True),
            TextPart("five six seven", " ", is_partial_sentence=True),
        ]

    def test_a_comma_at_the_edge_is_worse_than_a_space_in_the_middle(self) -> None:
        parts, _ = split_text("a, two2 three four2 five six66", "en", words, 3)
        assert texts_of(parts) == ["a, two2 three", "four2 five six66"]

    def test_a_sentence_that_fits_is_whole_beside_one_that_is_cut(self) -> None:
        parts, _ = split_text("One two. One two three four five six. One two.", "en", words, 3)
        assert [part.is_partial_sentence for part in parts] == [False, True, True, False]

    @pytest.mark.parametrize(
        ("text", "limit", "expected"),
        [
            ("x" * 8, 4, ["xxxx", "xxxx"]),
            ("今天天气很好我们去公园玩", 3, ["今天天", "气很好", "我们去", "公园玩"]),
            ("สวัสดี\u200bครับผม", 9, ["สวัสดี\u200b", "ครับผม"]),
            ("e\u0301e\u0301e\u0301e\u0301", 5, ["e\u0301e\u0301", "e\u0301e\u0301"]),
            ("👩\u200d👩\u200d👧👍", 5, ["👩\u200d👩\u200d👧", "👍"]),
            ("https://example.org/a", 9, ["https://", "example.", "org/a"]),
        ],
    )
    def test_without_spaces_a_text_is_cut_where_its_script_allows(
        self, text: str, limit: int, expected: list[str]
    ) -> None:
        parts, after = split_text(text, "zh", len, limit)
        assert texts_of(parts) == expected
        assert joined(parts, expected, after) == text
        assert all(part.is_partial_sentence for part in parts)

    def test_no_part_begins_with_a_mark_that_ends_something(self) -> None:
        text = "「今日はとてもいい天気ですねえっとスーパーへ行きましょう」" * 3
        parts, _ = split_text(text, "ja", len, 7)
        assert not {part.text[0] for part in parts} & set("ーっょ」")

    def test_a_character_that_is_too_long_is_an_error(self) -> None:
        with pytest.raises(LengthError, match=r"is one character with 9 tokens, but a source may have at most 4"):
            split_text("ab" + "e" + "\u0301" * 8, "en", len, 4)


@given(st.text("ab.!? ,;\n。、\u00a0", max_size=60), st.integers(1, 4), st.sampled_from(["en", "de", "ja", "source"]))
@example("a  ,b . a", 1, "en")
def test_nothing_is_lost_and_all_fits(text: str, limit: int, language: str) -> None:
    parts, after = split_text(text, language, words, limit)
    assert joined(parts, texts_of(parts), after) == text
    assert all(part.text == part.text.strip() != "" for part in parts)
    assert all(words(part.text) <= limit for part in parts)


@given(st.text(max_size=80))
def test_the_segmenter_takes_any_text(text: str) -> None:
    parts, after = split_text(text, "de", lambda text: 1, 1)
    assert joined(parts, texts_of(parts), after) == text
