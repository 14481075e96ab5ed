"""Make white space and other invisible characters in tokens visible, for figures, web pages and terminals. No control
characters remain.
"""

from __future__ import annotations

import unicodedata

_SHAPES = {" ": "␣", "\n": "↵", "\r": "␍", "\t": "⇥", "\N{NO-BREAK SPACE}": "⍽"}
_JOINERS = ("\N{ZERO WIDTH NON-JOINER}", "\N{ZERO WIDTH JOINER}")  # used inside Persian and Indic words, and in emoji
_DOTTED_CIRCLE = "\N{DOTTED CIRCLE}"


def make_visible(token: str) -> str:
    """Return ``token`` with visible white space: "␣" for a space, "↵" for a newline, "⇥" for a tab.

    Control and formatting characters are replaced with their code points ("<U+202E>"). A combining accent at the start
    is displayed on a dotted circle.
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
