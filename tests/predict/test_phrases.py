"""Phrases as tokens: both spellings of a byte-level vocabulary, and what a vocabulary cannot hold."""

from __future__ import annotations

import pytest

from headway.errors import ConfigError
from headway.predict import Source
from headway.predict.phrases import banned_ids, check_phrases, holds_word, include_ids, prefix_ids, spelling_in
from headway.text import Tokenizer, TokenizerConfig

TEXTS = ["ein Haus und der Baum", "das Haus", "der Baum und das rote Haus", "ein Baum", "Haus und Baum"] * 3


def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.train(TEXTS, TokenizerConfig.parse({"kind": kind, "vocab_size": 320}, "test"))


@pytest.mark.parametrize("text", ["das Haus", "Haus und Baum", "(Haus)", "Ein „Haus“", "ein\nHaus", "Baum,Haus"])
@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_a_phrase_is_found_however_its_context_is_cut(kind: str, text: str) -> None:
    """Some alternative occurs in the tokens of every text that holds the phrase as a word."""
    made = tokenizer(kind)
    ids = made.encode(text)
    (alternatives,) = include_ids(made, Source("x", include=("Haus",)))
    assert any(tuple(ids[at : at + len(each)]) == each for each in alternatives for at in range(len(ids)))
    assert not any(each == () for each in alternatives)


def test_one_spelling_is_left_where_it_is_in_the_other() -> None:
    assert len(include_ids(tokenizer("bpe"), Source("x", include=("Haus",)))[0]) == 2
    assert [
        len(include_ids(tokenizer(kind), Source("x", include=("Haus",)))[0]) for kind in ("characters", "whitespace")
    ] == [1, 1]


def test_alternatives_of_one_phrase_and_several_phrases() -> None:
    made = tokenizer("whitespace")
    one, two = include_ids(made, Source("x", include=(("Haus", "Baum"), "das Haus")))
    assert one == (tuple(made.encode("Haus")), tuple(made.encode("Baum")))
    assert two == (tuple(made.encode("das Haus")),)
    assert banned_ids(made, Source("x", banned=("Haus", "das Haus"))) == (
        tuple(made.encode("Haus")),
    )  # holds the other


def test_a_prefix_leaves_its_last_space_to_the_next_word() -> None:
    made = tokenizer("bpe")
    assert list(prefix_ids(made, Source("x", prefix="das "))) == made.encode("das")
    assert prefix_ids(made, Source("x")) == ()


def test_words_that_the_vocabulary_does_not_have() -> None:
    made = tokenizer("whitespace")
    with pytest.raises(ConfigError, match=r"include: 'Auto' holds what this model's vocabulary does not have"):
        include_ids(made, Source("x", include=("Auto",)))
    with pytest.raises(ConfigError, match=r"prefix: 'das Auto' holds what"):
        prefix_ids(made, Source("x", prefix="das Auto"))
    assert len(include_ids(made, Source("x", include=(("Auto", "Haus"),)))[0]) == 1  # the other can be met


@pytest.mark.parametrize("source", [Source("x", include=("",)), Source("x", include=((),)), Source("x", banned=(" ",))])
def test_empty_phrases(source: Source) -> None:
    with pytest.raises(ConfigError, match=r"(include|banned): a phrase is empty; give words"):
        check_phrases(source)


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("Halt!", "!", True),
        ("Halt!!", "!", True),
        ("f(c)", "(c)", True),
        ("100%ig", "%", True),
        ("黑猫在睡觉", "猫", True),  # no spaces part its words
        ("我用Python写", "Python", True),
        ("我用Pythons写", "Python", False),
        ("ネコがいる", "ネコ", True),
        ("แมวดำ", "แมว", True),
        ("고양이가", "고양이", False),  # Korean has spaces
        ("12.5", "2", False),
    ],
)
def test_marks_and_scripts_without_spaces_need_no_edge(text: str, phrase: str, expected: bool) -> None:
    assert holds_word(text, phrase) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("der Hund bellt", True), ("Hund", True), ("(Hund)", True), ("Hunde", False), ("Seehund", False), ("", False)],
)
def test_a_phrase_as_words_of_its_own(text: str, expected: bool) -> None:
    assert holds_word(text, "Hund") is expected


def test_the_tokens_that_spell_a_phrase() -> None:
    made = tokenizer("bpe")
    spelled = tuple(made.encode("das H") + made.encode("a") + made.encode("us und"))  # not how a text is cut
    found = spelling_in(spelled, "Haus", made)
    assert found is not None
    assert "Haus" in made.decode(found)
    assert "Haus" not in made.decode(found[1:])
    assert "Haus" not in made.decode(found[:-1])
    assert spelling_in(spelled, "Baum", made) is None
