"""The script of each character, and the scripts in which languages are written.

The script is the first word of a character's Unicode name: LATIN SMALL LETTER A. Each character is looked up once and
stored in a table, which is then indexed with whole batches of texts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.text.languages import normalize_language_code

SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Han", "Hiragana", "Katakana", "Hangul", "Devanagari"),
    *("Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada", "Malayalam", "Sinhala", "Thai", "Lao"),
    *("Tibetan", "Myanmar", "Georgian", "Armenian", "Ethiopic", "Khmer", "Mongolian", "Thaana", "Syriac"),
)
_SPACE, _OTHER, _COMMON = 0, 1, 2  # classes of characters without a script; _COMMON contains letters and marks
_FIRST = 3
_UNKNOWN = 255
_CODES = {name.upper(): _FIRST + number for number, name in enumerate(SCRIPTS)} | {"CJK": _FIRST + SCRIPTS.index("Han")}

_LANGUAGES = {
    "Cyrillic": "ru uk bg be mk kk ky mn tg tt ba cv ce sah os ab av",
    "Greek": "el",
    "Arabic": "ar fa ur ps ug sd ckb arz azb pnb",
    "Hebrew": "he yi",
    "Han": "zh yue wuu",
    "Han Hiragana Katakana": "ja",
    "Hangul Han": "ko",
    "Devanagari": "hi mr ne sa bh mai new",
    "Bengali": "bn as",
    "Gurmukhi": "pa",
    "Gujarati": "gu",
    "Oriya": "or",
    "Tamil": "ta",
    "Telugu": "te",
    "Kannada": "kn",
    "Malayalam": "ml",
    "Sinhala": "si",
    "Thai": "th",
    "Lao": "lo",
    "Tibetan": "bo dz",
    "Myanmar": "my",
    "Georgian": "ka",
    "Armenian": "hy",
    "Ethiopic": "am ti",
    "Khmer": "km",
    "Thaana": "dv",
    "Latin": (
        "af an ast az br bs ca ceb co cs cy da de en eo es et eu fi fil fo fr fy ga gd gl gn ha haw hmn hr ht hu id ig "
        "io is it jv ku la lb li lmo lt lv mg mi ms mt nb nds nl nn no nso ny oc om pl pt qu rm ro rw sc scn sk sl sm "
        "sn so sq st su sv sw tl tn to tr ts tw ty uz vec vi vo wa wo xh yo zu"
    ),
    "Latin Cyrillic": "sr sh",
}
_SCRIPTS_OF = {code: tuple(scripts.split()) for scripts, codes in _LANGUAGES.items() for code in codes.split()}
_SUBTAGS = {
    "latn": "Latin", "cyrl": "Cyrillic", "grek": "Greek", "arab": "Arabic", "hebr": "Hebrew", "hans": "Han",
    "hant": "Han", "deva": "Devanagari", "beng": "Bengali", "guru": "Gurmukhi", "geor": "Georgian", "armn": "Armenian",
    "ethi": "Ethiopic", "mong": "Mongolian",
}  # fmt: skip


def language_scripts(code: str) -> tuple[str, ...]:
    """Return the scripts in which a language is written, or an empty tuple if they are not known."""
    language, *subtags = normalize_language_code(code).split("-")
    for subtag in subtags:
        if subtag in _SUBTAGS:
            return (_SUBTAGS[subtag],)
    return _SCRIPTS_OF.get(language, ())


@dataclass(frozen=True)
class ScriptCounts:
    """Counts of the visible characters in texts.

    Attributes:
        visible: Number of visible characters in each text.
        letters: Number of letters and marks in each text.
        letters_by_script: Number of letters and marks in each text, for each of ``SCRIPTS``: shape (texts, scripts).
    """

    visible: NDArray[np.int64]
    letters: NDArray[np.int64]
    letters_by_script: NDArray[np.int64]

    def letter_share_in(self, scripts: Sequence[str]) -> NDArray[np.float64]:
        """Return the share of each text's letters that are in one of the scripts. NaN if the text has no letters.

        Letters that are shared by several scripts are ignored.
        """
        known = self.letters_by_script.sum(axis=1)
        chosen = self.letters_by_script[:, [SCRIPTS.index(name) for name in scripts]].sum(axis=1)
        return _ratio(chosen, known)

    def letter_shares(self) -> NDArray[np.float64]:
        """Return the share of letters among the visible characters of each text.

        NaN for a text without visible characters.
        """
        return _ratio(self.letters, self.visible)

    def main_scripts(self) -> NDArray[np.int64]:
        """Return the index of the most frequent script in each text, or ``len(SCRIPTS)`` if the text has no letters."""
        return np.where(self.letters_by_script.any(axis=1), self.letters_by_script.argmax(axis=1), len(SCRIPTS))


class ScriptTable:
    """A table of character classes. Each character is looked up only once."""

    def __init__(self) -> None:
        self._classes = np.full(0x110000, _UNKNOWN, dtype=np.uint8)

    def count(self, texts: Sequence[str]) -> ScriptCounts:
        """Count the visible characters of each text by class."""
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        points = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4")
        classes = self._classes[points]
        if len(unseen := np.unique(points[classes == _UNKNOWN])):
            self._classes[unseen] = [_class_of(chr(point)) for point in unseen.tolist()]
            classes = self._classes[points]
        width = _FIRST + len(SCRIPTS)
        cells = np.repeat(np.arange(len(texts), dtype=np.int64) * width, lengths) + classes
        table = np.bincount(cells, minlength=len(texts) * width).reshape(len(texts), width)
        return ScriptCounts(lengths - table[:, _SPACE], table[:, _COMMON:].sum(axis=1), table[:, _FIRST:])


def _class_of(character: str) -> int:
    category = unicodedata.category(character)
    if category[0] in "ZC":
        return _SPACE
    if category[0] not in "LM":
        return _OTHER
    words = unicodedata.name(character, "").split()
    return next((_CODES[word] for word in words[:2] if word in _CODES), _COMMON)


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return part / whole, or NaN if the whole is 0."""
    result = np.full(len(whole), np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
