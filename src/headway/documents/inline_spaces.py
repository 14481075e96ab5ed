"""White space next to inline tags, which a translation must contain in the same positions as its source.

Models process and generate single spaces between words, and word alignment places tags without regard to spaces. A
*gap* is the position between two adjacent tags, or between a tag and text. The spaces in a translation are moved to
the gaps that contain spaces in the source. White space other than a single space is restored unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

_OPENING = "([{„“«¿¡‚‘"


@dataclass(frozen=True)
class InlinePart:
    """A part of a translation: a piece of text or an inline tag.

    Attributes:
        kind: "text", the "open" or "close" tag of a pair, or "object".
        text: The text, if ``kind`` is "text".
        payload: The formatting or object that the tag represents. Both tags of a pair have the same payload.
    """

    kind: Literal["text", "open", "close", "object"]
    text: str = ""
    payload: Any = None


@dataclass(frozen=True)
class WhiteSpace:
    """Payload of an object that represents consecutive spaces, and objects that a reader sees as white space."""

    parts: tuple[InlinePart, ...]


_Tag = tuple[str, int] | None  # the kind of a tag and the identity of its payload; None for text
_Neighbors = tuple[_Tag, _Tag]


@dataclass(frozen=True)
class _Gap:
    """A position at which there may be spaces.

    Attributes:
        neighbors: The tags on the left and on the right of the gap. None represents text.
        spaces: The spaces in the gap.
        joins_object: Whether the gap is between an object and a word, and contains no space.
    """

    neighbors: _Neighbors
    spaces: str
    joins_object: bool


def place_spaces(source: Sequence[InlinePart], translation: Sequence[InlinePart]) -> list[InlinePart]:
    """Return the parts of a translation with the same spaces next to its tags as in the source.

    Objects that represent white space (:class:`WhiteSpace`) are replaced by their parts.
    """
    _, source_gaps = _split(source)
    spaced = {gap.neighbors for gap in source_gaps if gap.spaces}
    joined = {gap.neighbors for gap in source_gaps if gap.joins_object}
    words, gaps = _split(translation)
    result: list[InlinePart] = []
    start = 0
    for end, word in enumerate([*words, None]):
        if word is not None and word.kind != "text":
            continue
        tags, around = words[start:end], gaps[start : end + 1]
        spaces = [gap.spaces for gap in around]
        if tags:
            has_white_space = any(isinstance(tag.payload, WhiteSpace) for tag in tags)
            _move_spaces(spaces, around, spaced, joined, has_white_space=has_white_space)
        for space, part in zip(spaces, [*tags, word], strict=True):
            result += [InlinePart("text", space)] if space else []
            result += [] if part is None else [part]
        start = end + 1
    return expand_white_space(result)


def expand_white_space(parts: Sequence[InlinePart]) -> list[InlinePart]:
    """Return the parts of a translation, with each object that represents white space replaced by its parts."""
    result: list[InlinePart] = []
    for part in parts:
        result += part.payload.parts if isinstance(part.payload, WhiteSpace) else (part,)
    return result


def _move_spaces(
    spaces: list[str], gaps: Sequence[_Gap], spaced: set[_Neighbors], joined: set[_Neighbors], *, has_white_space: bool
) -> None:
    """Move the spaces around consecutive tags to the gaps that have spaces in the source, and remove double spaces.

    Args:
        spaces: The spaces in each gap. The list is changed in place.
        gaps: The gaps before, between and after the tags.
        spaced: The neighbors of the source's gaps that contain spaces.
        joined: The neighbors of the source's gaps that join an object and a word.
        has_white_space: Whether a tag represents white space.
    """
    missing = [index for index, gap in enumerate(gaps) if gap.neighbors in spaced and not gap.spaces]
    missing.sort(key=lambda index: None not in gaps[index].neighbors)  # gaps next to text come first
    is_spaced = has_white_space or any(gap.neighbors in spaced and gap.spaces for gap in gaps)
    for index, gap in enumerate(gaps):
        if not gap.spaces or gap.neighbors in spaced:
            continue
        if missing:
            spaces[missing.pop(0)] = gap.spaces
        elif not is_spaced or not (has_white_space or gap.neighbors in joined or not _is_beside_object(gap)):
            continue
        spaces[index] = ""
        is_spaced = True
    for index in missing:
        if None not in gaps[index].neighbors:
            spaces[index] = " "


def _is_beside_object(gap: _Gap) -> bool:
    return None in gap.neighbors and any(tag is not None and tag[0] == "object" for tag in gap.neighbors)


def _split(parts: Sequence[InlinePart]) -> tuple[list[InlinePart], list[_Gap]]:
    """Return tags and texts without surrounding spaces, and the gaps before each of them and after the last one."""
    words: list[InlinePart] = []
    spaces = [""]
    for part in parts:
        core = part.text.strip(" ")
        if part.kind != "text":
            words.append(part)
            spaces.append("")
        elif not core:
            spaces[-1] += part.text
        else:
            start = part.text.index(core)
            spaces[-1] += part.text[:start]
            words.append(InlinePart("text", core))
            spaces.append(part.text[start + len(core) :])
    return words, list(_gaps(words, spaces))


def _gaps(words: Sequence[InlinePart], spaces: Sequence[str]) -> Iterator[_Gap]:
    nothing = InlinePart("text")
    for (left, right), between in zip(pairwise([nothing, *words, nothing]), spaces, strict=True):
        neighbors = _tag(left), _tag(right)
        joins_word = right.text[:1].isalnum() if left.kind == "object" else left.text[-1:] not in ("", *_OPENING)
        joins_object = not between and joins_word and "object" in (left.kind, right.kind)
        yield _Gap(neighbors, between, joins_object)


def _tag(part: InlinePart) -> _Tag:
    return None if part.kind == "text" else (part.kind, id(part.payload))
