"""Cuts a text that is too long for a model: into sentences, and a sentence that is still too long inside.

Sentences are found by `sentencex` (Wikimedia's segmenter, about 300 languages by their terminators and abbreviations;
other languages are cut by its fallback). A sentence over the limit is cut in two near its middle, after a comma or the
like where one is in its middle half, otherwise at a space, and again until its parts fit. Nothing is lost: the parts
with the white space between them are the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headway.errors import LengthError

__all__ = ["Part", "split_text"]

_CLAUSE = re.compile(r"[,;:–—](?=\s)|[،؛、，；：]")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Part:
    """A part of a text to translate by itself.

    Attributes:
        text: The part, without white space around it.
        before: The white space in front of it.
        inside: Whether it is less than a sentence.
    """

    text: str
    before: str
    inside: bool = False


def split_text(text: str, language: str, count: Callable[[str], int], limit: int) -> tuple[list[Part], str]:
    """``text`` in parts of at most ``limit`` tokens, sentence by sentence, and the white space after the last part.

    Args:
        text: What is to be cut; a text within the limit is cut too.
        language: Its language, as a BCP 47 tag.
        count: How many tokens a text has.
        limit: Most tokens of a part.

    Raises:
        LengthError: A piece over the limit has no place to cut it.
    """
    parts: list[Part] = []
    carried = ""
    for sentence in _sentences(text, language):
        pieces = list(_pieces(sentence, count, limit)) if sentence.strip() else [sentence]
        for piece in pieces:
            core = piece.strip()
            lead = piece[: len(piece) - len(piece.lstrip())]
            if core:
                parts.append(Part(core, carried + lead, inside=len(pieces) > 1))
                carried = piece[len(lead) + len(core) :]
            else:
                carried += piece
    return parts, carried


def _sentences(text: str, language: str) -> list[str]:
    import sentencex

    sentences: list[str] = sentencex.segment(re.split("[-_]", language)[0], text)  # it knows no regions: de for de-AT
    assert "".join(sentences) == text, "the segmenter keeps every character"
    return sentences


def _pieces(sentence: str, count: Callable[[str], int], limit: int) -> Iterator[str]:
    """The sentence in pieces that fit; joined they are the sentence."""
    tokens = count(sentence.strip())
    if tokens <= limit:
        yield sentence
        return
    place = _place_to_cut(sentence)
    if place is None:
        raise LengthError(
            f"a source of {tokens} tokens is longer than the limit of {limit}, and {sentence.strip()[:20]!r}... has no "
            "space or comma to split it at; break it up, or raise max_source_tokens (on the command line "
            "--max-source-tokens) as far as the model's positions allow"
        )
    yield from _pieces(sentence[:place], count, limit)
    yield from _pieces(sentence[place:], count, limit)


def _place_to_cut(sentence: str) -> int | None:
    """Where a sentence is cut in two, neither of them blank; None where there is no place."""
    middle = len(sentence) / 2
    clauses, spaces = ([match.end() for match in pattern.finditer(sentence)] for pattern in (_CLAUSE, _SPACE))
    central = [place for place in clauses if abs(place - middle) <= middle / 2]
    for places in (central, spaces, clauses):
        possible = [place for place in places if sentence[:place].strip() and sentence[place:].strip()]
        if possible:
            return min(possible, key=lambda place: abs(place - middle))
    return None
