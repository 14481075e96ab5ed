"""Split a text that is too long for a model into sentences, and sentences that are still too long into parts.

`sentencex` (Wikimedia's segmenter) finds the sentences. It has rules for the terminators and abbreviations of about 300
languages, and a fallback for others. A sentence over the limit is split in two near its middle: after a comma or
similar mark if there is one in its middle half, otherwise at a space. This is repeated until all parts fit. The parts
and the white space between them concatenate to the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headway.errors import LengthError
from headway.text.normalization import is_blank

_CLAUSE = re.compile(r"[,;:–—](?=\s)|[،؛、，；：]")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class TextPart:
    """A part of a text that is translated separately.

    Attributes:
        text: The part, without leading and trailing white space.
        leading_whitespace: The white space before the part.
        partial_sentence: Whether the part is only a part of a sentence.
    """

    text: str
    leading_whitespace: str
    partial_sentence: bool = False


def split_text(
    text: str, language: str, count_tokens: Callable[[str], int], max_tokens: int
) -> tuple[list[TextPart], str]:
    """Split a text into sentences, and sentences of more than ``max_tokens`` tokens into smaller parts.

    Returns the parts and the white space after the last part.

    Args:
        text: The text. It is split into sentences even if it is within the limit.
        language: Language of the text, as a BCP 47 tag.
        count_tokens: A function that returns the number of tokens of a text.
        max_tokens: Maximum number of tokens of a part.

    Raises:
        LengthError: A part over the limit has neither a space nor a comma to split it at.
    """
    parts: list[TextPart] = []
    carried = ""
    for sentence in split_sentences(text, language):
        pieces = list(_pieces(sentence, count_tokens, max_tokens)) if sentence.strip() else [sentence]
        for piece in pieces:
            core = piece.strip()
            lead = piece[: len(piece) - len(piece.lstrip())]
            if not is_blank(core):
                parts.append(TextPart(core, carried + lead, partial_sentence=len(pieces) > 1))
                carried = piece[len(lead) + len(core) :]
            else:
                carried += piece
    return parts, carried


def split_sentences(text: str, language: str) -> list[str]:
    """Return the sentences of a text, which concatenate to the text.

    Args:
        text: The text.
        language: The language of the text, as a BCP 47 tag.
    """
    import sentencex

    without_region = re.split("[-_]", language)[0]  # de for de-AT
    sentences: list[str] = sentencex.segment(without_region, text)
    assert "".join(sentences) == text, "the segmenter keeps every character"
    return sentences


def _pieces(sentence: str, count: Callable[[str], int], limit: int) -> Iterator[str]:
    """Yield pieces of at most ``limit`` tokens that concatenate to the sentence."""
    tokens = count(sentence.strip())
    if tokens <= limit:
        yield sentence
        return
    position = _split_position(sentence)
    if position is None:
        raise LengthError(
            f"a source of {tokens} tokens is longer than the limit of {limit}, and {sentence.strip()[:20]!r}... has no "
            "space or comma to split it at; break it up, or raise max_source_tokens (on the command line "
            "--max-source-tokens) as far as the model's positions allow"
        )
    yield from _pieces(sentence[:position], count, limit)
    yield from _pieces(sentence[position:], count, limit)


def _split_position(sentence: str) -> int | None:
    """Return the position at which to split a sentence into two parts that are not blank, or None if there is none."""
    middle = len(sentence) / 2
    clauses, spaces = ([match.end() for match in pattern.finditer(sentence)] for pattern in (_CLAUSE, _SPACE))
    central = [position for position in clauses if abs(position - middle) <= middle / 2]
    # range without the white space at both ends
    first, last = len(sentence) - len(sentence.lstrip()), len(sentence.rstrip())
    for positions in (central, spaces, clauses):
        possible = [position for position in positions if first < position < last]
        if possible:
            return min(possible, key=lambda position: abs(position - middle))
    return None
