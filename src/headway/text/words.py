"""Find whole words in text, as defined by Unicode.

Adjacent characters belong to the same word if both are word characters according to Unicode Technical Standard 18
(Unicode Regular Expressions), annex C: letters, marks, decimal digits, connectors such as "_", and zero-width joiners.
Apostrophes and hyphens therefore separate words: "l'eau" contains the word "eau".

Unlike in the standard, there is a boundary between any two letters of scripts that are written without spaces (Han,
Kana, Thai, Lao, Myanmar, Khmer). In every script, a mark, such as an accent or a vowel sign, belongs to the preceding
character.

The edges of texts are compared with bit sets: text ``b`` continues the last word of text ``a`` if ``end_word_bits(a)``
and ``start_word_bits(b)`` have a bit in common.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any, Literal

# Bits for the edges of words. _SPACED: a letter of a script with spaces continues the word. _ANY: a combining mark
# continues the word.
_SPACED, _ANY = 1, 2
_UNSPACED = r"\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}"
_MARK = r"[\p{M}\p{Join_Control}]"
_LETTER = rf"[[\w--{_MARK}]--[{_UNSPACED}]]"
_PARTS = rf"\s+|{_LETTER}(?:{_LETTER}|{_MARK})*|{_MARK}|[{_UNSPACED}]{_MARK}*|."
# For Latin text, the standard library's ``re`` finds the same parts five times as fast.
_LATIN = re.compile("[\t\n\r\x20-\x7e\u00c0-\u02af«»‘’‚“”„–—…]*")
_LATIN_PARTS = re.compile(r"\s+|\w+|.", re.DOTALL)


def start_word_bits(text: str) -> int:
    """Return a bit set of the kinds of words that the start of a text can continue; 0 means none."""
    return {"mark": _SPACED | _ANY, "spaced": _SPACED}.get(_kind(text[:1]), 0)


def end_word_bits(text: str) -> int:
    """Return a bit set of the ways in which a following text can continue the last word of a text; 0 means none."""
    kind = next((kind for kind in map(_kind, reversed(text)) if kind != "mark"), "spaced" if text else "other")
    return {"spaced": _SPACED | _ANY, "unspaced": _ANY}.get(kind, 0)


@lru_cache(4096)
def _kind(character: str) -> Literal["mark", "spaced", "unspaced", "other"]:
    if _pattern(_MARK).match(character):
        return "mark"
    if not _pattern(r"\w").match(character):
        return "other"
    return "unspaced" if _pattern(f"[{_UNSPACED}]").match(character) else "spaced"


def contains_words(text: str, phrase: str, *, whole_start: bool = True, whole_end: bool = True) -> bool:
    """Return whether a text contains a phrase as whole words.

    If ``whole_start`` or ``whole_end`` is False, the phrase may start or end inside a longer word.
    """
    start, end = whole_start * start_word_bits(phrase), whole_end * end_word_bits(phrase)
    start_index = text.find(phrase)
    while start_index >= 0:
        after = start_index + len(phrase)
        if not (end_word_bits(text[:start_index]) & start or end & start_word_bits(text[after:])):
            return True
        start_index = text.find(phrase, start_index + 1)
    return False


def split_words(text: str) -> list[str]:
    """Split a text into words, spaces and other single characters. Each run of white space becomes " "."""
    parts = (_LATIN_PARTS if _LATIN.fullmatch(text) else _pattern(_PARTS)).findall(text)
    return [" " if part.isspace() else part for part in parts]


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each word and each other character in a text, except white space."""
    pattern = _LATIN_PARTS if _LATIN.fullmatch(text) else _pattern(_PARTS)
    return [match.span() for match in pattern.finditer(text) if not match.group().isspace()]


@cache
def _pattern(pattern: str) -> Any:
    import regex  # loaded only when needed

    return regex.compile(pattern, regex.V1 | regex.DOTALL)
