"""The formatting of spaces between words in office documents, for example where an underline ends.

Formatting is placed by word alignment, which does not cover the spaces between words. A space in the translation gets
the formatting of a space in the source with the same neighbors. Each of the two neighbors is the formatting of a word,
an object, or an end of the text. If the source has no such space, the formatting is not changed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lxml.etree import _Element


@dataclass(frozen=True)
class FormattedText:
    """A text with uniform formatting.

    Attributes:
        text: The formatted text.
        format: Identifies the formatting: equal for equal formatting.
        properties: The run's ``rPr`` element. None for the default formatting.
    """

    text: str
    format: bytes = b""
    properties: _Element | None = None


@dataclass(frozen=True)
class FixedObject:
    """An object between texts, identified by its payload."""

    payload: Any


class SpaceFormats:
    """The formatting of the spaces in a text, looked up by the neighbors on the left and the right of each space."""

    def __init__(self) -> None:
        self._found: dict[tuple[Hashable, Hashable], FormattedText] = {}

    def record(self, siblings: Iterable[FormattedText | FixedObject], parent: _Element) -> None:
        """Record the formatting of the spaces in the source.

        Args:
            siblings: Texts and objects that are children of the same element.
            parent: The parent element, which is the neighbor of the first and the last space.
        """
        words, gaps = _split(siblings)
        for gap, neighbors in zip(gaps, _neighbors(words, parent), strict=True):
            if gap:
                self._found.setdefault(neighbors, gap[0])

    def apply(
        self, siblings: Iterable[FormattedText | FixedObject], parent: _Element
    ) -> list[FormattedText | FixedObject]:
        """Return the texts and objects of a translation, with the recorded formatting applied to the spaces.

        Adjacent texts with the same formatting are joined.
        """
        words, gaps = _split(siblings)
        result: list[FormattedText | FixedObject] = []
        for number, (gap, neighbors) in enumerate(zip(gaps, _neighbors(words, parent), strict=True)):
            if gap and (like := self._found.get(neighbors)) is not None:
                gap = [replace(like, text="".join(space.text for space in gap))]
            for item in [*gap, *words[number : number + 1]]:
                last = result[-1] if result else None
                if isinstance(item, FormattedText) and isinstance(last, FormattedText) and item.format == last.format:
                    result[-1] = replace(last, text=last.text + item.text)
                else:
                    result.append(item)
        return result


def _split(
    siblings: Iterable[FormattedText | FixedObject],
) -> tuple[list[FormattedText | FixedObject], list[list[FormattedText]]]:
    """Return the objects and the texts without surrounding spaces, and the spaces before and after each of them."""
    words: list[FormattedText | FixedObject] = []
    gaps: list[list[FormattedText]] = [[]]
    for sibling in siblings:
        if isinstance(sibling, FixedObject):
            words.append(sibling)
            gaps.append([])
            continue
        core = sibling.text.strip()
        start = len(sibling.text) - len(sibling.text.lstrip()) if core else len(sibling.text)
        if start:
            gaps[-1].append(replace(sibling, text=sibling.text[:start]))
        if core:
            words.append(replace(sibling, text=core))
            end = sibling.text[start + len(core) :]
            gaps.append([replace(sibling, text=end)] if end else [])
    return words, gaps


def _neighbors(words: Sequence[FormattedText | FixedObject], parent: _Element) -> list[tuple[Hashable, Hashable]]:
    keys: list[Hashable] = [word.format if isinstance(word, FormattedText) else id(word.payload) for word in words]
    return list(pairwise([parent, *keys, parent]))
