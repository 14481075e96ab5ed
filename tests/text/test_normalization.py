"""The normal form of texts: texts that are the same to a reader become equal, and others stay different."""

from __future__ import annotations

import unicodedata
from time import process_time

import pytest
from hostile_texts import assert_linear
from hypothesis import example, given
from hypothesis import strategies as st

from headway.text import normalization
from headway.text.normalization import (
    is_blank,
    normalize,
    normalize_characters,
    original_pieces,
    split_surrounding_space,
)

ALPHABET = (
    "ab \t\n\u00a0\u202f\u2009\u3000\u200b\u200c\u200d\ufeff\u00ad\u0308\ufe0fué葛ภาمیक्👩1*\u20e3가\u1100\u1161\x00\x1c"
)
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=24)


@pytest.mark.parametrize(
    "before",
    [
        " ",
        "  ",
        "\t",
        "\n",
        "\r\n",
        "\u00a0",
        "\u3000",
        "\u200b",
        "\ufeff",
        "\u200e",
        "\u2060 \u00ad",
        "\x00",
        "\u202b",
    ],
)
def test_nothing_invisible_stays_at_the_ends(before: str) -> None:
    assert normalize(before + "Guten Tag" + before) == "Guten Tag"
    assert is_blank(before)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Guten  Tag", "Guten Tag"),
        ("Guten\tTag", "Guten Tag"),
        ("Guten\u2003Tag", "Guten Tag"),
        ("Guten\u00a0\u2002Tag", "Guten Tag"),
        ("Guten \u00a0Tag", "Guten Tag"),
        ("10\u00a0\u00a0000\u202fkm", "10\u00a0000\u202fkm"),
        ("10\u00a0000\u202fkm, 5\u2009%", "10\u00a0000\u202fkm, 5\u2009%"),
        ("Ge\u00adneral\u00adver\u00adsamm\u200blung", "Generalversammlung"),
        ("Tu\u0308rkiye", "Türkiye"),
        ("Tu\u200b\u0308rkiye", "Türkiye"),
        ("\u1100\u1161", "가"),
        ("Ｆｕｌｌ ﬁ", "Ｆｕｌｌ ﬁ"),
        ("eins\nzwei", "eins\nzwei"),
    ],
)
def test_the_normal_form(text: str, normal: str) -> None:
    assert normalize(text) == normal


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cروم",  # Persian: the plural and verbal prefixes do not join
        "خانهٔ\u200cما مُ\u200cروم آ\u200cن",  # with vowel marks and other marks before the joiner
        "ه\u200d ش",  # the initial form of a letter, as an abbreviation
        "क्\u200dष क्\u200cष",  # Hindi: half forms
        "👩\u200d👩\u200d👧 🏳️\u200d🌈 ❤️ 1️⃣",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",  # the flag of England
        "葛\U000e0100城市",
        "ᠮᠣᠩ\u180bᠭᠣᠯ",
        "ᠠ\u180b\u200d",
        "🙂\u200d↔️",
        "ភាសា\u200bខ្មែរ",
    ],
)
def test_what_a_script_or_an_emoji_needs_stays(text: str) -> None:
    assert normalize(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "\ufe0f\u200d👩",
        "Auf\u200clage",
        "a\u200db",
        "می\u200c\u200cروم\u200c",
        "x\ufe0f",
        "1\ufe0f",
        "a\U000e0067b",
        "ab\u200bภา",
        "a\u200d\u0301क",
        "ก\u200b\u0301ก",
        "一\u0301\ufe00",
    ],
)
def test_what_no_script_needs_goes(text: str) -> None:
    assert len(normalize(text)) < len(text)


@given(TEXTS)
@example("e\u0301\u094d\u200d")  # the two marks change places when the text is composed
@example("b\u0308\u094d\u200d")
@example("=\u0338\ufe00")  # composed, it is a symbol with a variant
@example("\u0308\ufeff\u1039\ufe00")
@example("\u180b\u180b")
@example("\u00a9\u200d\u2194\ufeff\u0338")  # what is left composes to another symbol
def test_a_normal_form_is_its_own_and_equal_for_equivalent_texts(text: str) -> None:
    normal = normalize(text)
    assert normalize(normal) == normal == normalize(unicodedata.normalize("NFD", text))
    assert normal == normalize(unicodedata.normalize("NFC", text))
    assert normalize_characters(normal) == normal
    assert normalize(f" \ufeff{text}\u200b\t") == normal


@given(TEXTS)
def test_invisible_characters_are_looked_at_one_by_one(text: str) -> None:
    """The pattern gives the same wherever it is tried: at every character, as here, or at invisible ones only."""
    composed = unicodedata.normalize("NFC", text)
    everywhere = normalization._needed_or_invisible().sub(lambda match: match[1] or "", composed)
    assert normalize_characters(text) == unicodedata.normalize("NFC", everywhere)


@given(TEXTS)
def test_the_space_around_a_text_and_what_is_inside_lose_nothing(text: str) -> None:
    lead, core, trail = split_surrounding_space(text)
    assert normalize(core) == normalize(text)
    assert not (lead + trail).strip()
    assert not core or (core[0], core[-1]) == (core.strip()[0], core.strip()[-1])


@given(TEXTS, st.integers(1, 4))
def test_pieces_of_the_normal_form_lead_back_to_the_text(text: str, size: int) -> None:
    normal = normalize(text)
    pieces = [normal[start : start + size] for start in range(0, len(normal), size)]
    origins = original_pieces(text, pieces)
    assert "".join(origins) == (text if pieces else "")
    for origin, piece in zip(origins, pieces, strict=True):
        bases = [char for char in piece if not char.isspace() and not unicodedata.combining(char)]
        assert all(unicodedata.normalize("NFD", base)[0] in unicodedata.normalize("NFD", origin) for base in bases)


def test_one_invisible_character_costs_little() -> None:
    """Trying the pattern of what scripts need at every character takes 15 times as long as collapsing spaces."""
    text = "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster. "

    def seconds(one: str) -> float:
        started = process_time()
        for _ in range(50):
            normalize(one)
        return process_time() - started

    spaces = min(seconds(text.replace(" ", "  ")) for _ in range(9))
    for invisible in ("\u200b", "\u00ad", "\u200d"):
        assert min(seconds(f"{text[:20]}{invisible}{text[20:]}") for _ in range(9)) < 5 * spaces


@pytest.mark.parametrize(
    "parts",
    [
        ("a", "\u0301", "\u200d"),
        ("क", "\u094d", "\ufeff"),
        ("क\u200c", "\u0301", "a"),
        ("क", "\u200c", "\u0301a"),
        ("क", "\u200d\u0301", ""),
        ("©\u200d", "↔\ufeff", "\u0338"),
        ("ᠠ", "\u180b\u200d", ""),
        ("ก\u200b", "\u0e31\u200b", "ก"),
    ],
)
def test_many_marks_and_invisible_characters_take_linear_time(parts: tuple[str, str, str]) -> None:
    first, repeated, last = parts
    make = lambda size: first + repeated * size + last  # noqa: E731
    for run in (normalize, split_surrounding_space, lambda text: original_pieces(text, [normalize(text)])):
        assert_linear(run, make, repr(parts))


def test_pieces_of_something_else_stay_as_they_are() -> None:
    assert original_pieces("a  b", ["<0xF0>", "<0x9F>"]) == ["<0xF0>", "<0x9F>"]
    assert original_pieces("u\u0308ber  mich", ["über", " mich"]) == ["u\u0308ber", "  mich"]
