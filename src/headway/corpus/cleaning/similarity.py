"""Copies of a source, and repeated n-grams, by sets of character n-grams."""

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
    """Return a text without case and punctuation, by which repeated texts are found. Never empty for visible text."""
    return " ".join(text.casefold().translate(_punctuation()).split()) or text.casefold().strip()


def copy_similarity(source_key: str, target_key: str) -> float | None:
    """Return how similar two plain keys are: 1 for equal ones, otherwise the overlap coefficient of their trigrams.

    The overlap coefficient is the share of the shorter text's trigrams that the other text has, so that a copy that
    lacks a word is similar, too. None means that the texts are too short to be compared.
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
    """Return the share of character 6-grams that occurred before in a text, or None if it is too short."""
    total = len(text) - _NGRAM + 1
    if len(text) < _MIN_REPETITION:
        return None
    return 1 - len(_ngrams(text, _NGRAM)) / total


def _ngrams(text: str, size: int) -> set[str]:
    return {text[start : start + size] for start in range(len(text) - size + 1)}


@cache
def _punctuation() -> dict[int, str]:
    """Return a table for :meth:`str.translate` that replaces punctuation by spaces."""
    return {point: " " for point in range(0x20000) if unicodedata.category(chr(point)).startswith("P")}
