"""Tokens as people can read them in a picture: white space and what else has no shape is given one."""

from __future__ import annotations

import unicodedata

__all__ = ["is_right_to_left", "visible"]

_SHAPES = {" ": "␣", "\n": "↵", "\r": "␍", "\t": "⇥", "\N{NO-BREAK SPACE}": "⍽"}
_JOINERS = ("\N{ZERO WIDTH NON-JOINER}", "\N{ZERO WIDTH JOINER}")  # parts of Persian and Indian words and of emoji
_DOTTED_CIRCLE = "\N{DOTTED CIRCLE}"


def visible(token: str) -> str:
    """``token`` with its white space shown: "␣" a space, "↵" a line's end, "⇥" a tab.

    Characters that have no shape, or turn the direction of what follows, become their numbers ("<U+202E>"); an accent
    that stands alone gets a dotted circle to stand on.
    """
    if not token:
        return "∅"
    shown = "".join(_shape(character, alone=len(token) == 1) for character in token)
    return _DOTTED_CIRCLE + shown if unicodedata.combining(token[0]) else shown


def _shape(character: str, *, alone: bool) -> str:
    if character in _SHAPES:
        return _SHAPES[character]
    if character in _JOINERS and not alone:
        return character
    return f"<U+{ord(character):04X}>" if unicodedata.category(character)[0] in "CZ" else character


def is_right_to_left(text: str) -> bool:
    """Whether most letters of ``text`` are of a script that runs from right to left."""
    directions = [unicodedata.bidirectional(character) for character in text]
    return sum(each in ("R", "AL") for each in directions) > directions.count("L")
