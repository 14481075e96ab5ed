"""Place the marks of a document into the translations of its segments, by word alignment.

- A pair encloses the run of target words with the largest sum of scores. The score of a target word is the share of its
  source words that the pair encloses, scaled to [-1, 1]. Pairs are nested as in the source. Spaces at the start and end
  of a pair are enclosed if they are enclosed in the source. A pair inside a word, such as the exponent of a number,
  encloses the same characters if the translation contains the same word. A pair whose words have no counterpart
  encloses the translation of the nearest word that no other pair encloses. If no word is left, see
  :attr:`headway.predict.markup.document.Item.without_words`.
- An object is placed before the translation of the word that follows it. If punctuation follows, the object is placed
  before the same punctuation mark, or after the translation of the previous word. An object with a space only on its
  right is also placed after the translation of the previous word. An object is never placed inside words such as
  "don't", "well-known" and "12.5", unless it is next to an apostrophe or hyphen in the source. An object inside a word
  keeps its position if the translation contains the same word.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from headway.predict.markup.document import (
    TAG_CHARACTER,
    Document,
    Mark,
    Pieces,
    Segment,
    Span,
    raw_pieces,
    text_as_seen,
)
from headway.text.words import word_spans

_UNALIGNED = -0.25  # score of an unaligned target word
_NEIGHBORS = 3  # number of words on each side of a pair that it may enclose if its own words are unaligned
_LOOKAHEAD = 8  # maximum number of characters to skip in order to find the next token in a text


@dataclass(frozen=True)
class AlignedText:
    """A translation of a segment.

    Attributes:
        text: The translation, without marks.
        placeholders: Start and end of each of the segment's placeholders; see :meth:`Segment.find_placeholders`.
        links: Pairs (source word, target word) of indices into the words of both texts; see :func:`split_into_spans`.
    """

    text: str
    placeholders: tuple[Span, ...] = ()
    links: frozenset[tuple[int, int]] = frozenset()


def split_into_spans(text: str, placeholders: Iterable[Span]) -> list[Span]:
    """Return the start and end of each word, and of each character between words. A placeholder is one word."""
    kept = sorted(placeholders)
    inside = {position for start, end in kept for position in range(start, end)}
    return sorted([*kept, *(span for span in word_spans(text) if span[0] not in inside)])


def render_document(document: Document, translations: Sequence[AlignedText | None]) -> str:
    """Return the text of a document with a translation in place of each segment. None leaves a segment unchanged."""

    def join(pieces: Pieces) -> str:
        return "".join(piece if isinstance(piece, str) else segment_text(piece) for piece in pieces)

    def segment_text(number: int) -> str:
        segment, translation = document.segments[number], translations[number]
        if translation is None:
            return join(raw_pieces(segment.items))
        filled = _fill_segment(segment, translation, join)
        return join(raw_pieces(segment.before)) + filled + join(raw_pieces(segment.after))

    return join(document.pieces)


def visible_text(segment: Segment, translation: AlignedText) -> str:
    """Return the translation of a segment with its objects, as it is displayed. Tags separate words."""
    visible = replace(
        segment,
        marks=tuple(map(_as_visible, segment.marks)),
        placeholders=tuple(
            replace(placeholder, raw=(segment.text[placeholder.start : placeholder.end],))
            for placeholder in segment.placeholders
        ),
        escape=str,
    )
    filled = _fill_segment(visible, translation, lambda pieces: "".join(map(str, pieces)))
    return text_as_seen(segment.before) + filled + text_as_seen(segment.after)


def _as_visible(mark: Mark) -> Mark:
    closing = None if mark.closing is None else (TAG_CHARACTER,)
    return replace(mark, opening=(mark.visible,), closing=closing, children=list(map(_as_visible, mark.children)))


def _fill_segment(segment: Segment, translation: AlignedText, join: Callable[[Pieces], str]) -> str:
    """Return the translation of a segment's text with its marks, in the document's syntax.

    ``join`` concatenates the pieces of a tag.
    """
    out: list[str] = []
    pairs = zip(translation.placeholders, segment.placeholders, strict=True)
    kept = sorted(pairs, key=lambda pair: pair[0], reverse=True)

    def add_text(start: int, end: int) -> None:
        """Add a part of the translation, with placeholders as written in the source."""
        while kept and kept[-1][0][1] <= end:
            (begin, after), placeholder = kept.pop()
            out.extend((segment.escape(translation.text[start:begin]), join(placeholder.raw)))
            start = after
        out.append(segment.escape(translation.text[start:end]))

    if not segment.marks:
        add_text(0, len(translation.text))
        return "".join(out)
    placement = _Placement(segment, translation)

    def render(marks: Sequence[Mark], source: Span, target: Span) -> None:
        position = target[0]
        last: Mark | None = None  # an object at the current position
        for (start, end), mark in placement.place(marks, source, target):
            has_gap = mark.closing is None and start - 1 > position and _has_gap(translation.text[:start], mark)
            if start > position:
                add_text(position, start - has_gap)
                last = None
            if mark.closing is None:
                before = "" if has_gap else _space(translation.text[:start][-1:], mark.left_character)
                if last is not None:
                    before = "" if out[-1] == " " else " "
                out.extend(
                    (before, join(mark.opening), _space(translation.text[start : start + 1], mark.right_character))
                )
                last = mark
            else:
                is_dropped = start == end and mark.without_words == "dropped"
                words = _source_words(segment, mark) if start == end and mark.without_words == "source" else ""
                if words and (last is not None or translation.text[:start][-1:].strip()):
                    out.append(" ")
                out.append("" if is_dropped else join(mark.opening))
                if mark.starts_with_space and mark.start == start == 0 and not mark.has_pair_at(0):
                    out.append(" ")
                render(mark.children, (mark.start, mark.end), (start, end))
                out.append(words)
                ends = mark.end == len(segment.text) and end == len(translation.text)
                if mark.ends_with_space and ends and not mark.has_pair_at(mark.end):
                    out.append(" ")
                out.append("" if is_dropped else join(mark.closing))
                if words and translation.text[end : end + 1].isalnum():
                    out.append(" ")
                last = mark if words else None
            position = end
        add_text(position, target[1])

    render(segment.marks, (0, len(segment.text)), (0, len(translation.text)))
    return "".join(out)


def _source_words(segment: Segment, pair: Mark) -> str:
    """Return the source words that a pair encloses, except for words that a nested pair encloses."""
    is_inside = any(child.closing is not None and child.without_words == "source" for child in pair.children)
    return "" if is_inside else segment.escape(segment.text[pair.start : pair.end].strip())


def _has_gap(before: str, mark: Mark) -> bool:
    """Return whether a text ends with a space that separates the object's neighbors instead of preceding the object."""
    return before[-2:] == f"{mark.left_character} " and not mark.left_character.isspace() and bool(mark.right_character)


def _space(neighbor: str, source_neighbor: str) -> str:
    """Return the space between an object and its neighbor in the translation; see :attr:`Mark.left_character`."""
    if not neighbor or neighbor.isspace():
        return ""
    if neighbor.isalnum():
        return "" if source_neighbor.isalnum() else " "
    return " " if source_neighbor.isspace() else ""


_JOINERS = "'\u2019\u2010\u2011-"  # apostrophes and hyphens
# Words with joiners inside, and numbers with separators. No object is placed inside them.
_JOINED = re.compile(rf"(?<!\w)\w++(?:[{_JOINERS}]\w++|(?<=\d)[.,:]\d++)+")


class _Placement:
    """Places marks into a translation by word alignment."""

    def __init__(self, segment: Segment, translation: AlignedText) -> None:
        self._source = split_into_spans(
            segment.text, [(placeholder.start, placeholder.end) for placeholder in segment.placeholders]
        )
        self._target = split_into_spans(translation.text, translation.placeholders)
        self._source_text, self._target_text = segment.text, translation.text
        self._source_starts, self._source_ends = [start for start, _ in self._source], [end for _, end in self._source]
        self._target_starts, self._target_ends = [start for start, _ in self._target], [end for _, end in self._target]
        # The first entry is not a word: it precedes every position.
        self._joined = [(-1, -1), *(match.span() for match in _JOINED.finditer(translation.text))]
        rows, columns = len(self._source), len(self._target)
        links = {(i, j) for i, j in translation.links if i < rows and j < columns}
        if not links and columns:  # no alignment: assume the order of the source
            links = {(i, min(columns - 1, round(i * columns / rows))) for i in range(rows)}
        self._targets: list[list[int]] = [[] for _ in self._source]  # aligned words, in ascending order
        self._sources: list[list[int]] = [[] for _ in self._target]
        for i, j in sorted(links):
            self._targets[i].append(j)
            self._sources[j].append(i)

    def place(self, marks: Sequence[Mark], source: Span, target: Span) -> list[tuple[Span, Mark]]:
        """Return the position of each mark, in the order of the translation.

        ``source`` and ``target`` are the ranges of characters in the source and the translation that the marks are in.
        """
        spans: dict[int, Span] = {}
        taken: set[int] = set()
        for order, mark in enumerate(marks):
            if mark.closing is not None and (enclosed := self._inside_word(mark, target, spans)):
                spans[order], word = enclosed
                taken.add(word)
        for order, mark in enumerate(marks):
            if order not in spans and mark.closing is not None and (run := self._best_run(mark, target, taken)):
                taken.update(range(*run))
                start, end = self._inside_edge_words(mark, run)
                spans[order] = max(start, target[0]), min(end, target[1])
        for order, mark in enumerate(marks):
            if order not in spans and mark.closing is not None and (run := self._neighbor(mark, target, taken)):
                taken.update(range(*run))
                spans[order] = self._target[run[0]][0], self._target[run[1] - 1][1]
        self._enclose_spaces(marks, spans, target)
        placed = [(span, order) for order, span in spans.items()]
        for order, mark in enumerate(marks):
            if order in spans:
                continue
            if enclosed := self._inside_word(mark, target, spans):
                placed.append((enclosed[0], order))
                continue
            inside_word = self._position_inside_word(mark, target)
            position = self._position(mark, source, target) if inside_word is None else inside_word
            if inside_word is None and not {mark.left_character, mark.right_character}.intersection(_JOINERS):
                start, end = self._joined[bisect_left(self._joined, (position,)) - 1]
                position = start if start < position < end else position
            position = min(max(position, target[0]), target[1])
            for other, (start, end) in spans.items():
                if start < position < end:
                    inside = self._target_text[start:position].strip(), self._target_text[position:end].strip()
                    position = start if not inside[0] or (inside[1] and order < other) else end
                    break
            placed.append(((position, position), order))
        return [(span, marks[order]) for span, order in sorted(placed)]

    def _inside_word(self, mark: Mark, target: Span, spans: dict[int, Span]) -> tuple[Span, int] | None:
        """Return the position of a mark inside a word that the translation contains unchanged, and this word's index.

        Positions outside the range ``target``, and positions that overlap with one of ``spans``, are not considered.
        """
        word = bisect_right(self._source_ends, mark.start)
        if word == len(self._source):
            return None
        begin, end = self._source[word]
        start = max(begin, mark.start)  # a mark includes the space before its first word
        is_inside = begin < mark.start < end if mark.closing is None else mark.end <= end
        if not is_inside or (start, mark.end) == (begin, end):
            return None
        for j in dict.fromkeys([*self._targets[word], *range(len(self._target))]):
            first = self._target[j][0]
            span = first + start - begin, first + mark.end - begin
            if not self._is_same(word, j) or span[0] < target[0] or span[1] > target[1]:
                continue
            if all(span[1] <= other[0] or other[1] <= span[0] for other in spans.values()):
                return span, j
        return None

    def _inside_edge_words(self, mark: Mark, run: Span) -> Span:
        """Return the range of characters in a run of target words that a pair encloses.

        If the pair begins inside a word, and the run begins with the same word, it begins at the same position in the
        run. The same applies to the end.
        """
        start, end = self._target[run[0]][0], self._target[run[1] - 1][1]
        first, last = bisect_right(self._source_ends, mark.start), bisect_left(self._source_starts, mark.end) - 1
        before = max(0, mark.start - self._source_starts[first])
        rest = max(0, self._source_ends[last] - mark.end)
        return start + before * self._is_same(first, run[0]), end - rest * self._is_same(last, run[1] - 1)

    def _position_inside_word(self, mark: Mark, target: Span) -> int | None:
        """Return the position of an object inside a word whose translation is the same word, or None."""
        i = bisect_right(self._source_ends, mark.start)
        if i == len(self._source) or self._source[i][0] >= mark.start:
            return None
        offset = mark.start - self._source[i][0]
        positions = (self._target[j][0] + offset for j in self._targets[i] if self._is_same(i, j))
        return next((position for position in positions if target[0] <= position <= target[1]), None)

    def _is_same(self, i: int, j: int) -> bool:
        """Return whether the translation contains a source word unchanged, except for its case."""
        source, target = self._source_text[slice(*self._source[i])], self._target_text[slice(*self._target[j])]
        return len(source) == len(target) and source.casefold() == target.casefold()

    def _enclose_spaces(self, marks: Sequence[Mark], spans: dict[int, Span], target: Span) -> None:
        """Extend the spans of pairs by the spaces that the pairs enclose in the source. Each space is enclosed once."""
        last = target[0]
        for order, (start, end) in sorted(spans.items(), key=lambda entry: entry[1]):
            if marks[order].starts_with_space and self._target_text[max(last, start - 1) : start] == " ":
                start -= 1
            if marks[order].ends_with_space and self._target_text[end : min(target[1], end + 1)] == " ":
                end += 1
            spans[order], last = (start, end), end

    def _best_run(self, mark: Mark, target: Span, taken: set[int]) -> Span | None:
        """Return the run of target words with the largest sum of scores, or None if no run has a positive sum.

        The run is a pair (first word, end). It contains no word in ``taken``, and no word that is completely outside
        the range ``target``.
        """
        inside = range(bisect_right(self._source_ends, mark.start), bisect_left(self._source_starts, mark.end))
        aligned = [j for i in inside for j in self._targets[i]]
        best: tuple[float, Span | None] = (0.0, None)
        total, begin = 0.0, None
        for j in range(min(aligned, default=0), max(aligned, default=-1) + 1):
            (start, end), sources = self._target[j], self._sources[j]
            if end <= target[0] or start >= target[1] or j in taken:
                total, begin = 0.0, None
                continue
            enclosed = bisect_left(sources, inside.stop) - bisect_left(sources, inside.start)
            score = 2 * enclosed / len(sources) - 1 if sources else _UNALIGNED
            if begin is None or total <= 0:
                total, begin = 0.0, j
            total += score
            if total > best[0]:
                best = total, (begin, j + 1)
        return best[1]

    def _neighbor(self, mark: Mark, target: Span, taken: set[int]) -> Span | None:
        """Return the run of target words that a pair encloses if its own words have no run. None if all are taken.

        The first free word is chosen, in this order: translations of the pair's own words, translations of the words
        after and before the pair that are not separated from it by punctuation, and the nearest word. Joined words,
        such as "7:29", form one run.
        """
        first, last = bisect_left(self._target_starts, target[0]), bisect_right(self._target_ends, target[1])
        if len(taken) >= last - first:
            return None
        start, end = bisect_right(self._source_ends, mark.start), bisect_left(self._source_starts, mark.end)
        before, after = range(start - 1, max(-1, start - 1 - _NEIGHBORS), -1), range(end, end + _NEIGHBORS)
        neighbors = [*self._same_clause(after), *self._same_clause(before), *before, *after]
        near = [j for i in [*range(start, end), *neighbors] if i < len(self._source) for j in self._targets[i]]
        if not near:
            near = [min(len(self._target) - 1, start * len(self._target) // max(1, len(self._source)))]
        free = (j for j in near if first <= j < last and j not in taken and self._is_word(j))
        chosen = next(free, None)
        if chosen is None:
            by_distance = sorted((abs(j - near[0]), j) for j in range(first, last) if j not in taken)
            chosen = next((j for _, j in by_distance if self._is_word(j)), by_distance[0][1])
        return self._joined_run(chosen, first, last, taken)

    def _same_clause(self, words: Iterable[int]) -> Iterator[int]:
        """Yield source words up to the first punctuation mark."""
        return takewhile(
            lambda i: 0 <= i < len(self._source) and self._source_text[self._source[i][0]].isalnum(), words
        )

    def _is_word(self, j: int) -> bool:
        start, end = self._target[j]
        return end > start + 1 or self._target_text[start].isalnum()

    def _joined_run(self, j: int, first: int, last: int, taken: set[int]) -> Span:
        """Return the run of a target word and the words that are joined to it, or only the word if one is taken."""
        start, end = self._joined[bisect_right(self._joined, (self._target[j][0], len(self._target_text))) - 1]
        run = bisect_left(self._target_starts, start), bisect_right(self._target_ends, end)
        is_inside = first <= run[0] <= j < run[1] <= last
        return run if is_inside and taken.isdisjoint(range(*run)) else (j, j + 1)

    def _position(self, mark: Mark, source: Span, target: Span) -> int:
        """Return the position at which an object is inserted into the translation."""
        first, last = bisect_left(self._source_starts, source[0]), bisect_right(self._source_ends, source[1])
        before = range(first, bisect_right(self._source_ends, mark.start))
        after = range(bisect_left(self._source_starts, mark.start), last)
        if not after:
            return target[1]
        if not before:
            return target[0]
        is_word = self._source_text[slice(*self._source[after[0]])][0].isalnum()
        is_attached = bool(mark.left_character.strip()) and mark.right_character.isspace()
        if not is_word and not is_attached and (position := self._same_punctuation(after[0], before[-1])) is not None:
            return position
        belongs_left = not is_word or (mark.left_character.strip() and not mark.right_character.strip())
        for distance in range(max(len(before), len(after))):
            near = [(i, True) for i in after[distance : distance + 1]]
            near += [(i, False) for i in before[::-1][distance : distance + 1]]
            for i, follows in reversed(near) if belongs_left and distance == 0 else near:
                if self._targets[i]:
                    return self._target[min(self._targets[i])][0] if follows else self._target[max(self._targets[i])][1]
        return target[1]

    def _same_punctuation(self, following: int, preceding: int) -> int | None:
        """Return the start of the punctuation mark in the translation that corresponds to a source punctuation mark.

        This is the first occurrence of the same character after the translation of the previous word, or None.
        """
        character = self._source_text[slice(*self._source[following])]
        first = max(self._targets[preceding], default=-1) + 1
        return next((start for start, end in self._target[first:] if self._target_text[start:end] == character), None)


def link_words(
    segment: Segment,
    translation: str,
    placeholders: Sequence[Span],
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    token_pairs: Iterable[tuple[int, int]],
) -> frozenset[tuple[int, int]]:
    """Return the pairs (source word, target word) that contain aligned tokens; see :class:`AlignedText`.

    Args:
        segment: The source segment.
        translation: The translation of the segment's text.
        placeholders: Start and end of each placeholder in the translation.
        source_tokens: The tokens of the source as displayed.
        target_tokens: The tokens of the translation as displayed.
        token_pairs: Pairs (source token, target token).
    """
    source_words = split_into_spans(
        segment.text, [(placeholder.start, placeholder.end) for placeholder in segment.placeholders]
    )
    source = _words_of_tokens(segment.text, source_words, source_tokens)
    target = _words_of_tokens(translation, split_into_spans(translation, placeholders), target_tokens)
    return frozenset((i, j) for one, other in token_pairs for i in source[one] for j in target[other])


def _words_of_tokens(text: str, words: Sequence[Span], tokens: Sequence[str]) -> list[list[int]]:
    """Return, for each token, the indices of the words that it overlaps. Empty if the token is not found in the text.

    A token is searched for near the end of the previous token, because tokenizers may normalize the text.
    """
    word_at = {start: index for index, span in enumerate(words) for start in range(*span)}
    word_ids: list[list[int]] = []
    position = 0
    for token in tokens:
        core = re.sub(r"^[\s▁]+|(?<!\s)\s+$|@@ ?$", "", token)
        start = text.find(core, position, position + len(core) + _LOOKAHEAD) if core else -1
        if start < 0:
            word_ids.append([])
            continue
        position = start + len(core)
        word_ids.append(sorted({word_at[character] for character in range(start, position) if character in word_at}))
    return word_ids
