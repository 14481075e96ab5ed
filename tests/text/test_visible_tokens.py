"""The visible form of tokens."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.text.visible_tokens import make_visible


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" Haus", "␣Haus"),
        (" ", "␣"),
        ("\n\t", "↵⇥"),
        ("", "∅"),
        ("\u202egnp", "<U+202E>gnp"),
        ("\u200c", "<U+200C>"),
        ("نمی\u200cخواهم", "نمی\u200cخواهم"),
        ("\u0301", "◌\u0301"),
        ("\u2009", "<U+2009>"),
        ("東京", "東京"),
        ("<0xE4>", "<0xE4>"),
    ],
)
def test_what_has_no_shape_gets_one(token: str, shown: str) -> None:
    assert make_visible(token) == shown


@given(st.text())
def test_no_character_controls_a_terminal_or_looks_like_nothing(token: str) -> None:
    shown = make_visible(token)
    assert shown
    joiners = {"\u200c", "\u200d"}  # the only invisible characters left: between the letters of a word
    assert {character for character in shown if unicodedata.category(character)[0] in "CZ"} <= joiners
