"""Subtitles: SubRip (.srt) and WebVTT (.vtt).

The text of each cue is translated. Numbers, times, settings, notes, styles and tags such as ``<i>``, ``<v Name>`` and
``{\\an8}`` are kept. A translation has at most as many lines as its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import unescape
from pathlib import Path

from headway.documents.content import DocumentContent, DocumentError, ReadingOptions, read_text
from headway.documents.inline_tags import TAG_END_PATTERN, TAG_START_PATTERN, InlineText, parse_tags, write_tags
from headway.documents.line_breaks import break_like_source

_LINE = re.compile(r"([^\r\n]*)(\r\n|\n|\r|\Z)")
_TIME = r"(?:\d{1,4}:)?\d{1,2}:\d{2}[.,]\d{1,3}"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s|\Z)")
# WebVTT has classes after names (<c.loud.red>) and times (<00:01.000>); both formats have codes such as {\an8}.
_TAG = re.compile(rf"{TAG_START_PATTERN}(?:\.[^\s<>]*)?{TAG_END_PATTERN}|<[\d:.]+>|\{{\\[^{{}}]*\}}")
_SPEAKER = re.compile(r"\s*(?:[-–—]\s*\S|[A-ZÀ-Þ][A-ZÀ-Þ .]+:\s)")  # a line that begins the text of another speaker


@dataclass(frozen=True)
class _CueText:
    """Lines in a cue that form one text, with their line breaks."""

    lines: Sequence[str]
    ends: Sequence[str]
    inline: InlineText

    def render(self, translation: str, is_vtt: bool) -> str:
        text = write_tags(self.inline, translation, partial(_escape, is_vtt=is_vtt))
        lines = break_like_source(self.lines, " ".join(text.split("\n")), has_tags=True)
        return "".join(
            line + end for line, end in zip(lines, [*self.ends[: len(lines) - 1], self.ends[-1]], strict=True)
        )


def read_subtitles(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read subtitles. Raises :class:`DocumentError` if the file has no cue."""
    encoded = read_text(path, options.encoding)
    is_vtt = encoded.text.startswith("WEBVTT")
    parts = list(_parts(encoded.text, is_vtt))
    cues = [part for part in parts if isinstance(part, _CueText)]
    if not is_vtt and not any(isinstance(part, str) and _TIMES.match(part) for part in parts):
        raise DocumentError("the file has no subtitles, because no line has the form 00:00:01,000 --> 00:00:02,000")

    def write(translations: Sequence[str], target: Path) -> None:
        remaining = iter(translations)
        encoded.write(
            "".join(part if isinstance(part, str) else part.render(next(remaining), is_vtt) for part in parts), target
        )

    return DocumentContent([cue.inline.source for cue in cues], write)


def _parts(text: str, is_vtt: bool) -> Iterator[str | _CueText]:
    """Yield the texts in cues and the lines between them."""
    lines = [(match[1], match[2]) for match in _LINE.finditer(text)]
    cue: list[tuple[str, str]] = []
    in_cue = False
    for (line, end), (following, _) in zip(lines, [*lines[1:], ("", "")], strict=True):
        is_number = line.strip().isdecimal() and _TIMES.match(following) is not None
        if _TIMES.match(line):
            # If no empty line separates two cues, the second cue's number looks like the last line of the first cue.
            number = [cue.pop()] if cue and cue[-1][0].strip().isdecimal() else []
            yield from _cue_texts(cue, is_vtt)
            cue, in_cue = [], True
            yield "".join(part for line_parts in (*number, (line, end)) for part in line_parts)
        elif in_cue and line.strip() and not (is_number and not cue):
            if _SPEAKER.match(_TAG.sub("", line)):
                yield from _cue_texts(cue, is_vtt)
                cue = []
            cue.append((line, end))
        else:
            yield from _cue_texts(cue, is_vtt)
            # A SubRip cue may contain empty lines; it ends before the number and time of the next cue.
            cue, in_cue = [], in_cue and not is_vtt and not is_number
            yield line + end
    yield from _cue_texts(cue, is_vtt)


def _cue_texts(lines: Sequence[tuple[str, str]], is_vtt: bool) -> Iterator[str | _CueText]:
    if not lines:
        return
    texts, ends = [line.strip() for line, _ in lines], [end for _, end in lines]
    inline = parse_tags(" ".join(texts), _TAG, unescape if is_vtt else str)
    if inline.is_translatable:
        yield _CueText(texts, ends, inline)
    else:
        yield "".join(line + end for line, end in lines)


def _escape(text: str, is_vtt: bool) -> str:
    """Escape the text of a cue so that it contains no tag and no timing line."""
    if not is_vtt:
        return text.replace("-->", "→")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
