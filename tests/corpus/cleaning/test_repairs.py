"""Repairs mend what downloads damage, and leave right texts as they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.corpus.cleaning.config import REPAIRS
from headway.corpus.cleaning.repairs import Repairer, repair_names

REPAIRER = Repairer()

DAMAGED = [
    ("schÃ¶n", "schön", ["encoding"]),
    ("itâ€™s", "it’s", ["encoding"]),
    ("Tom &amp; Maria", "Tom & Maria", ["entities"]),
    ("&amp;quot;Ja&amp;quot;", '"Ja"', ["entities"]),
    ("sch&ouml;n &#8212; ja", "schön — ja", ["entities"]),
    ("<b>Hallo</b> <i>Tom</i>", "Hallo Tom", ["tags"]),
    ("&lt;b&gt;Hallo&lt;/b&gt;", "Hallo", ["entities", "tags"]),
    ("eins<br/>zwei", "eins zwei", ["tags"]),
    ('<font color="#ff0000">rot</font>', "rot", ["tags"]),
    ("a<!-- b -->c", "ac", ["tags"]),
    ("\ufeffHallo", "Hallo", ["byte_order_marks"]),
    ("eins\u2028zwei", "eins zwei", ["line_separators"]),
    ("eins\r\nzwei", "eins zwei", ["line_separators"]),
    ("Bu\u00adch\x07", "Buch", ["invisible"]),
    ("scho\u0308n", "schön", ["nfc"]),
    ("  eins  zwei\t", "eins zwei", ["spaces"]),
]

RIGHT = [
    "„Ach“, sagte er – und ging. ‚So!‘",
    "Preis: 5 € (5.000 ¥), 20 °C, ½ l",
    "AT&T und R&D; x < y, a <b, <3, <name>, a > b",
    "Façade, naïve, Ærø, Łódź, Größe, ŒUVRE, ÃO não é SÃO",
    "он сказал: «да» — 中文，日本語。 שלום العربية नमस्ते",
    "&nichts; & co.",
    "10 000 km, l’été, Noe\u0301".replace("e\u0301", "é"),
    "👩‍🚀 🏳️‍🌈",
]


@pytest.mark.parametrize(("text", "expected", "names"), DAMAGED)
def test_damaged_text_is_repaired_and_the_repairs_are_named(text: str, expected: str, names: list[str]) -> None:
    repaired, made = REPAIRER.repair(text)
    assert repaired == expected
    assert repair_names(made) == names
    for name in names:
        others = Repairer([other for other in REPAIRS if other != name])
        assert others.repair(text)[0] != expected or name == "byte_order_marks"  # which are invisible, too


@pytest.mark.parametrize("text", RIGHT)
def test_right_text_stays_as_it_is(text: str) -> None:
    assert REPAIRER.repair(text) == (text, 0)


LETTERS = "abcdefgäöüßéèçñåøæ"
QUOTED = ["{}", "{},", "{}.", "{}!", "„{}“", "»{}«", "«{}»", "({})", "“{}”", "{} –", "{} €", "{} %"]
WORDS = st.builds(
    lambda form, first, rest: form.format(first + rest),
    st.sampled_from(QUOTED),
    st.sampled_from(LETTERS + "ABCÄÖÜ"),
    st.text(LETTERS, min_size=2, max_size=8),
)


@given(st.lists(WORDS, max_size=8))
def test_words_of_western_letters_stay_as_they_are(words: list[str]) -> None:
    text = " ".join(words)
    assert REPAIRER.repair(text) == (text, 0)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_repaired_text_needs_no_other_repair(text: str) -> None:
    once, _ = REPAIRER.repair(text)
    twice, _ = REPAIRER.repair(once)
    assert REPAIRER.repair(twice)[0] == twice  # a repair may make what looks like an entity; never without end
