"""Insert line breaks into a translation so that it is laid out like its source.

If every line of the source is as long as a common width allows, the source was wrapped, and the translation is wrapped
at the same width. Other translations get as many lines as their sources, with breaks at about the same relative
positions. A text that is not changed keeps its line breaks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

MIN_WRAP_WIDTH = 45  # characters; shorter lines, as in an address, were not wrapped
_SPACE_OUTSIDE_TAGS = re.compile(r"<[^<>]*>|( )")
_TAG = re.compile(r"<[^<>]*>")


def wrap(text: str, width: int, first_indent: str, next_indent: str, may_begin: Callable[[str], bool]) -> list[str]:
    """Break a text at spaces into lines of at most ``width`` characters, unless a single word is longer.

    Args:
        text: The text to wrap.
        width: Maximum length of a line, including its indent.
        first_indent: Indent of the first line, not included in the result.
        next_indent: Indent of each other line, not included in the result.
        may_begin: Returns whether a word may begin a line. Other words stay on the previous line.
    """
    lines: list[list[str]] = []
    length = 0
    for word in text.split(" "):
        if lines and (length + 1 + len(word) <= width or not may_begin(word)):
            lines[-1].append(word)
            length += 1 + len(word)
        else:
            length = len(next_indent if lines else first_indent) + len(word)
            lines.append([word])
    return [" ".join(line) for line in lines]


def detect_wrap_width(
    lines: Sequence[str], first_indent: str, next_indent: str, may_begin: Callable[[str], bool]
) -> int | None:
    """Return the width at which lines were wrapped, or None if they were not wrapped. ``lines`` have no indents."""
    indents = [first_indent, *[next_indent] * (len(lines) - 1)]
    width = max(len(indent) + len(line) for indent, line in zip(indents, lines, strict=True))
    if len(lines) < 2 or width < MIN_WRAP_WIDTH:
        return None
    is_wrapped = wrap(" ".join(lines), width, first_indent, next_indent, may_begin) == list(lines)
    return width if is_wrapped else None


def break_like_source(source_lines: Sequence[str], text: str, *, has_tags: bool = False) -> list[str]:
    """Break a text at spaces into at most as many lines as its source has, at about the same relative positions.

    Args:
        source_lines: The lines of the source.
        text: The translation to break.
        has_tags: Whether both texts contain tags. Tags count as zero characters and are never broken.
    """
    count = len(source_lines)
    if count < 2:
        return [text]
    lengths = [len(_TAG.sub("", line) if has_tags else line) for line in source_lines]
    spaces: list[tuple[int, int]] = []  # position, and number of visible characters before it
    hidden = 0
    for match in _SPACE_OUTSIDE_TAGS.finditer(text) if has_tags else re.finditer("( )", text):
        if match[1] is None:
            hidden += len(match.group())
        else:
            spaces.append((match.start(), match.start() - hidden))
    source_total, total = max(1, sum(lengths) + count - 1), len(text) - hidden
    visible = [space[1] for space in spaces]
    breaks: list[int] = []
    before = first = 0  # the first space that is after the last break
    for number, length in enumerate(lengths[:-1]):
        before += length + (number > 0)
        wanted = before * total / source_total
        if first == len(spaces):
            break
        after = bisect_left(visible, wanted, first)
        nearest = [index for index in (after - 1, after) if first <= index < len(spaces)]
        chosen = min(nearest, key=lambda index: abs(visible[index] - wanted))
        breaks.append(spaces[chosen][0])
        first = chosen + 1
    edges = [-1, *breaks, len(text)]
    return [text[start + 1 : end] for start, end in pairwise(edges)]
