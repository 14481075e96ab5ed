"""Whole words, as Unicode defines them.

Two characters belong to one word if both are word characters of Unicode Technical Standard 18 (Unicode Regular
Expressions), annex C: letters, marks, decimal digits, connectors such as "_", and the zero-width joiners. So an
apostrophe and a hyphen separate words: "l'eau" contains the word "eau".

Departure: languages that are written without spaces (Han, Kana, Thai, Lao, Myanmar, Khmer) have a boundary between any
two letters. A mark, such as an accent or a vowel sign, belongs to the character before it in every script.

Edges of texts are compared as bit sets: one text continues the word in which another ends if ``word_end(other)`` and
``word_start(one)`` have a bit in common.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any, Literal

# Bits of the edges. Letters continue letters of scripts with spaces; marks continue letters of any script.
_SPACED, _ANY = 1, 2
_UNSPACED = r"\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}"
_MARK = r"[\p{M}\p{Join_Control}]"
_LETTER = rf"[[\w--{_MARK}]--[{_UNSPACED}]]"
_PARTS = rf"\s+|{_LETTER}(?:{_LETTER}|{_MARK})*|{_MARK}|[{_UNSPACED}]{_MARK}*|."
# For Latin text the standard library finds the same parts, five times as fast.
_LATIN = re.compile("[\t\n\r\x20-\x7e\u00c0-\u02af«»‘’‚“”„–—…]*")
_LATIN_PARTS = re.compile(r"\s+|\w+|.", re.DOTALL)


def word_start(text: str) -> int:
    """Return which words the beginning of a text continues; 0 for none."""
    return {"mark": _SPACED | _ANY, "spaced": _SPACED}.get(_kind(text[:1]), 0)


def word_end(text: str) -> int:
    """Return which word the end of a text leaves open; 0 for none."""
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
    """Whether a text contains a phrase as whole words; at an edge that is not ``whole`` longer words count as well."""
    start, end = whole_start * word_start(phrase), whole_end * word_end(phrase)
    at = text.find(phrase)
    while at >= 0:
        after = at + len(phrase)
        if not (word_end(text[:at]) & start or end & word_start(text[after:])):
            return True
        at = text.find(phrase, at + 1)
    return False


def split_words(text: str) -> list[str]:
    """Split a text at every word boundary into words, spaces and other characters; any run of white space is " "."""
    parts = (_LATIN_PARTS if _LATIN.fullmatch(text) else _pattern(_PARTS)).findall(text)
    return [" " if part.isspace() else part for part in parts]


@cache
def _pattern(pattern: str) -> Any:
    import regex  # loaded only if there are phrases

    return regex.compile(pattern, regex.V1 | regex.DOTALL)
