"""Phrases as tokens, whole words in texts and in searches, and phrases that a vocabulary cannot spell."""

from __future__ import annotations

import pytest
from gluing import search_phrases
from hostile_texts import assert_linear
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.decode import Phrase
from headway.errors import ConfigError, LengthError
from headway.predict import Source
from headway.predict.phrases import (
    WordPhrase,
    check_phrases,
    contains_any_phrase,
    encode_prefix,
    find_phrase,
    tokenize_banned_phrases,
    tokenize_included_phrases,
)
from headway.text.base import UNK
from headway.text.tokenizer import Tokenizer, TokenizerConfig

TEXTS = ["ein Haus und der Baum", "das Haus", "der Baum und das rote Haus", "ein Baum", "Haus und Baum"] * 3


def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.train(TEXTS, TokenizerConfig.parse({"kind": kind, "vocab_size": 320}, "test"))


@pytest.mark.parametrize("text", ["das Haus", "Haus und Baum", "(Haus)", "Ein „Haus“", "ein\nHaus", "Baum,Haus"])
@pytest.mark.parametrize("kind", ["bpe", "characters", "words"])
def test_a_phrase_is_found_however_its_context_is_cut(kind: str, text: str) -> None:
    """In every text that contains the phrase as a word, some alternative occurs in the tokens."""
    made = tokenizer(kind)
    ids = made.encode(text)
    (alternatives,) = tokenize_included_phrases(made, Source("x", include=("Haus",)))
    places = range(len(ids))
    assert any(tuple(ids[at : at + len(each.tokens)]) == each.tokens for each in alternatives for at in places)
    assert not any(each.tokens == () for each in alternatives)


def test_one_spelling_is_left_where_it_is_in_the_other() -> None:
    assert len(tokenize_included_phrases(tokenizer("bpe"), Source("x", include=("Haus",)))[0]) == 2
    assert [
        len(tokenize_included_phrases(tokenizer(kind), Source("x", include=("Haus",)))[0])
        for kind in ("characters", "whitespace")
    ] == [1, 1]


def test_alternatives_of_one_phrase_and_several_phrases() -> None:
    made = tokenizer("whitespace")
    one, two = tokenize_included_phrases(made, Source("x", include=(("Haus", "Baum"), "das Haus")))
    assert one == (Phrase(tuple(made.encode("Haus"))), Phrase(tuple(made.encode("Baum"))))
    assert two == (Phrase(tuple(made.encode("das Haus"))),)
    assert tokenize_banned_phrases(made, Source("x", banned=("Haus", "das Haus"))) == (
        tuple(made.encode("Haus")),
    )  # contains the other


def test_a_prefix_leaves_its_last_space_to_the_next_word() -> None:
    made = tokenizer("bpe")
    assert list(encode_prefix(made, "das ")) == made.encode("das")
    assert encode_prefix(made, "") == ()


def test_words_that_the_vocabulary_does_not_have() -> None:
    made = tokenizer("whitespace")
    with pytest.raises(ConfigError, match=r"include: 'Auto' contains characters or words that the vocabulary lacks"):
        tokenize_included_phrases(made, Source("x", include=("Auto",)))
    with pytest.raises(ConfigError, match=r"prefix: 'das Auto' contains characters"):
        encode_prefix(made, "das Auto")
    assert (
        len(tokenize_included_phrases(made, Source("x", include=(("Auto", "Haus"),)))[0]) == 1
    )  # the other can be satisfied


@pytest.mark.parametrize("source", [Source("x", include=("",)), Source("x", include=((),)), Source("x", banned=(" ",))])
def test_empty_phrases(source: Source) -> None:
    with pytest.raises(ConfigError, match=r"(include|banned): a phrase is empty; each alternative"):
        check_phrases(source)


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("Halt!", "!", True),
        ("Halt!!", "!", True),
        ("f(c)", "(c)", True),
        ("100%ig", "%", True),
        ("黑猫在睡觉", "猫", True),  # its words are not separated by spaces
        ("我用Python写", "Python", True),
        ("我用Pythons写", "Python", False),
        ("ネコがいる", "ネコ", True),
        ("แมวดำ", "แมว", True),
        ("고양이가", "고양이", False),  # Korean has spaces
        ("12.5", "2", False),
    ],
)
def test_marks_and_scripts_without_spaces_need_no_edge(text: str, phrase: str, expected: bool) -> None:
    assert WordPhrase.parse(phrase).occurs_in(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("der Hund bellt", True), ("Hund", True), ("(Hund)", True), ("Hunde", False), ("Seehund", False), ("", False)],
)
def test_a_phrase_as_words_of_its_own(text: str, expected: bool) -> None:
    assert WordPhrase("Hund").occurs_in(text) is expected


def test_the_tokens_that_spell_a_phrase() -> None:
    made = tokenizer("bpe")
    spelled = tuple(made.encode("das H") + made.encode("a") + made.encode("us und"))  # not the usual tokenization
    found = find_phrase(spelled, "Haus", made)
    assert found is not None
    assert "Haus" in made.decode(found)
    assert "Haus" not in made.decode(found[1:])
    assert "Haus" not in made.decode(found[:-1])
    assert find_phrase(spelled, "Baum", made) is None


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        (" Haus ", WordPhrase("Haus")),
        ("*Haus*", WordPhrase("Haus", at_word_start=False, at_word_end=False)),
        ("Haus*", WordPhrase("Haus", at_word_end=False)),
        ("*haus", WordPhrase("haus", at_word_start=False)),
        (r"\*Haus\*", WordPhrase("*Haus*")),
        (r"*\*Haus", WordPhrase("*Haus", at_word_start=False)),
        ("a*b", WordPhrase("a*b")),
        ("**", WordPhrase("**")),
        ("* *", WordPhrase("")),
    ],
)
def test_asterisks_at_the_edges(marked: str, expected: WordPhrase) -> None:
    if expected.text:
        assert WordPhrase.parse(marked) == expected
    else:
        with pytest.raises(ConfigError, match="a phrase is empty"):
            check_phrases(Source("x", include=(marked,)))


@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("vor 3 TagenMon", "Mon", False),
        ("das Rathaus", "*haus", True),
        ("das Rathaus", "haus*", False),
        ("Haustür auf", "Haus*", True),
        ("Haustür auf", "*Haus", False),
        ("die Rathaustür", "*haus*", True),
        ("e\u0301t", "e", False),  # an accent belongs to the letter before it
        ("は\u3099", "は", False),
        ("हिन्दी", "हिन", False),
        ("de l'eau", "eau", True),
        ("a_b", "a", False),
    ],
)
def test_marked_edges_and_marks(text: str, phrase: str, expected: bool) -> None:
    assert WordPhrase.parse(phrase).occurs_in(text) is expected


# Whole words in a search.

SENTENCES = [*TEXTS, "Haustür, Rathaus", "Baum-Haus und Häuser", "猫と犬がいる", "黑猫在睡觉", "แมวดำกับหมา", "x"] * 2


OWN = {
    kind: Tokenizer.train(SENTENCES, TokenizerConfig.parse({"kind": kind, "vocab_size": 330}, "test"))
    for kind in ("bpe", "characters", "whitespace", "words")
}
WORDS = ["Haus", "Baum", "das Haus", "rote", "und der", "*aus", "Hau*", "*au*", "Häuser", "猫", "犬", "แมว", ",", "x"]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == "words")) for kind in OWN])
@given(data=st.data())
@settings(derandomize=True, max_examples=25)
def test_a_search_ends_with_every_phrase_as_whole_words(kind: str, data: st.DataObject) -> None:
    """Even if the model appends letters to them, in small beams, and with overlapping phrases."""
    tokenizer = OWN[kind]
    words = [word for word in WORDS if UNK not in tokenizer.encode(WordPhrase.parse(word).text)]
    chosen = data.draw(st.lists(st.lists(st.sampled_from(words), min_size=1, max_size=2), min_size=1, max_size=3))
    source = Source("x", include=tuple(map(tuple, chosen)))
    found = search_phrases(tokenizer, source, data.draw(st.integers(0, 9)), data.draw(st.sampled_from([2, 4])))
    assert found
    for unmet, text in found:
        assert unmet == ()
        assert all(contains_any_phrase(tokenizer, text, several) for several in source.include), text


def test_a_phrase_that_is_too_long() -> None:
    made = tokenizer("characters")
    assert tokenize_banned_phrases(made, Source("x", banned=("das Haus " * 5,)))
    with pytest.raises(LengthError, match=r"has 5\d tokens; at most 50 are accepted; shorten the phrase"):
        tokenize_banned_phrases(made, Source("x", banned=("das Haus " * 6,)))


def test_phrases_that_contain_others_take_time_that_grows_with_their_number() -> None:
    """Repetitive phrases of which none contains another: comparing all pairs, or all places, would be quadratic."""
    made = tokenizer("characters")

    def phrases(count: int) -> tuple[str, ...]:
        words = [f"{'ab' * 5}{'eimnrstuAB'[number % 10]}{'eimnrstu' * 2}"[number % 7 :] for number in range(count)]
        return tuple(f"{word}{number:b}".replace("1", "a").replace("0", "b") for number, word in enumerate(words))

    assert_linear(
        lambda banned: tokenize_banned_phrases(made, Source("x", banned=banned)),
        phrases,
        "tokenize_banned_phrases",
        size=500,
    )


def test_the_tokens_that_spell_a_phrase_are_found_in_a_long_target() -> None:
    made = tokenizer("characters")
    tokens = tuple(made.encode("das Hau" * 1000 + "s" + "das Hau" * 1000))
    phrase = find_phrase(tokens, "Haus", made)
    assert phrase is not None
    assert made.decode(phrase).strip() == "Haus"
