"""Encodings of text files: look them up by name, and guess the encoding of a file that declares none."""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator

# Python codecs that are not text encodings.
_NOT_OF_TEXT = ("unicode-escape", "raw-unicode-escape", "idna", "punycode")
# The more common ones come first.
_MULTIBYTE = ("shift_jis", "euc-jp", "gb18030", "big5", "euc-kr")
_SINGLE_BYTE = (
    "windows-1252", "windows-1250", "windows-1251", "koi8-r", "iso-8859-2", "windows-1253", "windows-1254",
    "windows-1255", "windows-1256", "cp866", "cp437", "mac-roman",
)  # fmt: skip
_SAMPLE_BYTES = 100_000
_MOST = 3
_RANK_WEIGHT = 0.01  # each rank lowers the score of an encoding by this fraction
_WORD = re.compile(r"[^\W\d_]+")


def python_codec_name(name: str) -> str | None:
    """Return Python's name of a text encoding, or None if there is no such encoding."""
    try:
        found = codecs.lookup(name).name
        "".encode(found)  # refuses codecs that are not text encodings, such as hex
    except (LookupError, UnicodeError, ValueError):
        return None
    return None if found in _NOT_OF_TEXT else found


def likely_encodings(data: bytes) -> list[str]:
    """Guess the encoding of a text file that is not UTF-8. Return the most probable encodings, best first.

    A decoded text is improbable if its words mix scripts, have capitals inside, or consist mostly of accented letters.
    """
    sample = data[:_SAMPLE_BYTES]
    if b"\0" in sample:
        zeros = Counter(index % 2 for index, byte in enumerate(sample) if not byte)
        return ["utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"]
    scores: dict[str, float] = {}
    for rank, name in enumerate((*_SINGLE_BYTE, *_MULTIBYTE)):
        # The sample may end inside a character.
        cuts = range(4 if name in _MULTIBYTE else 1)
        texts = (_decode(sample[: len(sample) - cut], name) for cut in cuts)
        text = next((text for text in texts if text is not None), None)
        if text is not None:
            scores[name] = _score(text) * (1 - _RANK_WEIGHT * rank)
    best = max(scores.values(), default=0.0)
    return sorted((name for name in scores if scores[name] > best * 0.8), key=lambda name: -scores[name])[:_MOST]


def _decode(data: bytes, name: str) -> str | None:
    try:
        return data.decode(name)
    except UnicodeDecodeError:
        return None


def _score(text: str) -> float:
    """Return the share of plausible words among the words with non-ASCII characters."""
    words = [word for word in _WORD.findall(text) if not word.isascii()]
    outside = sum(not (character.isalnum() or character.isascii() or character.isspace()) for character in text)
    categories = (unicodedata.category(character) for character in text if not character.isascii())
    symbols = sum(category in ("So", "Sk", "Cc", "Cn", "Co") for category in categories)
    plausible = sum(map(_is_plausible, words))
    return (plausible + 0.1) / (len(words) + 3 * symbols + 0.2 * outside + 0.1)


def _is_plausible(word: str) -> bool:
    scripts = set(_scripts(word))
    if len(scripts) > 1:
        return False
    cases = [character.isupper() for character in word]
    if any(cases[1:]) and not all(cases):
        return False
    return scripts != {"LATIN"} or sum(not character.isascii() for character in word) <= max(1, len(word) / 2)


def _scripts(word: str) -> Iterator[str]:
    for character in word:
        script = unicodedata.name(character, "").partition(" ")[0]
        yield "CJK" if script in ("HIRAGANA", "KATAKANA", "HALFWIDTH", "HANGUL") else script
