"""Split a text that is too long for a model into sentences, and sentences that are still too long into parts.

A sentence (:mod:`headway.text.sentences`) that is too long is split in two near its middle: after a comma or similar
mark if its middle half contains one, otherwise at a space. A sentence without spaces, as in Chinese and Thai, is split
after a zero-width space or punctuation in its middle half. If there is none, it is split between two displayed
characters (extended grapheme clusters of Unicode Standard Annex 29), unless the second one must not begin a line. This
is repeated until all parts fit. The parts and the white space between them concatenate to the text.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from headway.errors import LengthError
from headway.text.normalization import is_blank

_CLAUSE = re.compile(r"[,;:–—](?=\s)|[،؛、，；：]")
_SPACE = re.compile(r"\s+")
_BREAK = re.compile(
    r"\u200b|[\u3002\uff01\uff1f\u2026\u0e2f\u0e46\u104a\u104b\u17d4\u17d5\u0f0d\u0964)\]}）」』】》!?;:/\\&=_.-]+"
)
# Small kana, length marks and repetition marks, which do not begin a line in Japanese (JIS X 4051), and Thai and Lao
# vowels and marks that belong to the previous consonant.
_NOT_FIRST = frozenset("ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶー々〻ゝゞヽヾะาำๅๆຯະາຳໆ")


@dataclass(frozen=True)
class TextPart:
    """A part of a text that is translated separately.

    Attributes:
        text: The text of the part, without leading and trailing white space.
        leading_whitespace: The white space before the part.
        is_partial_sentence: Whether the part is only a part of a sentence.
    """

    text: str
    leading_whitespace: str
    is_partial_sentence: bool = False


def split_text(
    text: str, language: str, count_tokens: Callable[[str], int], max_tokens: int
) -> tuple[list[TextPart], str]:
    """Split a text into sentences, and sentences of more than ``max_tokens`` tokens into smaller parts.

    Returns the parts and the white space after the last part.

    Args:
        text: The text to split. It is split into sentences even if it is within the limit.
        language: Language of the text, as a code such as ``de``, ``de-AT`` or ``deu_Latn``.
        count_tokens: A function that returns the number of tokens of a text.
        max_tokens: Maximum number of tokens of a part.

    Raises:
        LengthError: A single character, with its combining marks, is over the limit.
    """
    from headway.text.sentences import split_sentences  # most texts need no splitting

    parts: list[TextPart] = []
    carried = ""
    for sentence in split_sentences(text, language):
        pieces = list(_pieces(sentence, count_tokens, max_tokens)) if sentence.strip() else [sentence]
        for piece in pieces:
            core = piece.strip()
            lead = piece[: len(piece) - len(piece.lstrip())]
            if not is_blank(core):
                parts.append(TextPart(core, carried + lead, is_partial_sentence=len(pieces) > 1))
                carried = piece[len(lead) + len(core) :]
            else:
                carried += piece
    return parts, carried


def _pieces(sentence: str, count: Callable[[str], int], limit: int) -> Iterator[str]:
    """Split a sentence into pieces of at most ``limit`` tokens, which concatenate to the sentence."""
    tokens = count(sentence.strip())
    if tokens <= limit:
        yield sentence
        return
    position = _split_position(sentence)
    if position is None:
        raise LengthError(
            f"{sentence.strip()[:20]!r}... is one character with {tokens} tokens, but a source may have at most "
            f"{limit}; remove some of the character's marks"
        )
    yield from _pieces(sentence[:position], count, limit)
    yield from _pieces(sentence[position:], count, limit)


def _split_position(sentence: str) -> int | None:
    """Return the position at which to split a sentence into two nonblank parts, or None if there is none."""
    middle = len(sentence) / 2
    # The range without the white space at both ends.
    first, last = len(sentence) - len(sentence.lstrip()), len(sentence.rstrip())

    def nearest(positions: Iterable[int], distance: float = math.inf) -> int | None:
        possible = (place for place in positions if first < place < last and abs(place - middle) <= distance)
        return min(possible, key=lambda place: abs(place - middle), default=None)

    clauses, spaces = ([match.end() for match in pattern.finditer(sentence)] for pattern in (_CLAUSE, _SPACE))
    for positions, distance in ((clauses, middle / 2), (spaces, math.inf), (clauses, math.inf)):
        if (place := nearest(positions, distance)) is not None:
            return place
    breaks = [match.end() for match in _BREAK.finditer(sentence)]
    clusters = list(accumulate(len(cluster) for cluster in _clusters(sentence)))
    inside = [place for place in clusters if place < len(sentence) and _can_break(sentence, place)]
    for positions, distance in ((breaks, middle / 2), (inside, math.inf), (clusters, math.inf)):
        if (place := nearest(set(positions) & set(clusters), distance)) is not None:
            return place
    return None


def _can_break(text: str, index: int) -> bool:
    """Return whether punctuation allows a line to end before the character at ``index``."""
    after, before = unicodedata.category(text[index]), unicodedata.category(text[index - 1])
    return text[index] not in _NOT_FIRST and after not in ("Pe", "Pf", "Po") and before not in ("Ps", "Pi")


def _clusters(text: str) -> list[str]:
    import regex  # loaded only for texts without spaces

    clusters: list[str] = regex.findall(r"\X", text)
    return clusters
