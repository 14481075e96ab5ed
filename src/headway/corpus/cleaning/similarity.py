"""Detect copies of a source, and repeated n-grams, with sets of character n-grams."""

from __future__ import annotations

import unicodedata
from functools import cache

_TRIGRAM = 3
_MAX_RATIO = 2.0  # texts with a greater length ratio do not count as copies of each other
# Minimum number of characters: short texts, such as names and greetings, are often the same in two languages.
_MIN_COPY = 8
_NGRAM = 6
_MIN_REPETITION = 40  # minimum number of characters: shorter texts repeat n-grams by chance


def comparison_key(text: str) -> str:
    """Return a text without case and punctuation, to find repeated texts. Visible texts have nonempty keys."""
    return " ".join(text.casefold().translate(_punctuation()).split()) or text.casefold().strip()


def copy_similarity(source_key: str, target_key: str) -> float | None:
    """Return the similarity of two comparison keys: 1 if they are equal, otherwise their trigrams' overlap coefficient.

    The overlap coefficient is the share of the shorter text's trigrams that also occur in the other text, so that a
    copy that lacks a word is also similar. None means that the texts are too short to be compared.
    """
    shorter, longer = sorted((len(source_key), len(target_key)))
    if shorter < _MIN_COPY:
        return None
    if source_key == target_key:
        return 1.0
    if longer > _MAX_RATIO * shorter:
        return 0.0
    ours, theirs = _ngrams(source_key, _TRIGRAM), _ngrams(target_key, _TRIGRAM)
    return len(ours & theirs) / min(len(ours), len(theirs))


def repetition_share(text: str) -> float | None:
    """Return the share of a text's character 6-grams that occurred before, or None if the text is too short."""
    total = len(text) - _NGRAM + 1
    if len(text) < _MIN_REPETITION:
        return None
    return 1 - len(_ngrams(text, _NGRAM)) / total


def _ngrams(text: str, size: int) -> set[str]:
    return {text[start : start + size] for start in range(len(text) - size + 1)}


@cache
def _punctuation() -> dict[int, str]:
    """Return a table for :meth:`str.translate` that replaces punctuation with spaces."""
    return {point: " " for point in range(0x20000) if unicodedata.category(chr(point)).startswith("P")}
