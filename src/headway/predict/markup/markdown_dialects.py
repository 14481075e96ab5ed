r"""Find constructs from Markdown dialects that CommonMark treats as text.

============================  ========================================================================================
formulas                      ``$a_b$``, ``$$...$$``, ``\(...\)``, ``\[...\]``, ``\begin{align}...\end{align}``
templates                     ``{{ site.url }}``, ``{% if x %}``, ``{{< figure >}}`` (Liquid, Jinja, Hugo)
attribute lists               ``{#id .class}``, ``{: .note}``, ``{width=50%}``
emoji names                   ``:smile:``
alerts and containers         ``> [!NOTE]``, ``:::tip Title``, ``!!! note "Title"``, ``=== "Tab"``
JavaScript in MDX             ``import``, ``export``, comments, and tags such as ``<Tabs items={["a"]}>``
tables of contents            ``[TOC]``, ``[[toc]]``
============================  ========================================================================================

Code is not searched. The running time is proportional to the length of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

ConstructKind = Literal["object", "formula", "lines", "title", "container", "title_end"]

_LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")
_CONTAINERS = re.compile(r"(?:[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t])))*+[ \t]*")
_FENCE = re.compile(r"(`{3,}|~{3,})(.*)")
_BRACES = r"\{(?:[^{}\n]|\{(?:[^{}\n]|\{[^{}\n]*+\})*+\})*+\}"
_ENVIRONMENT = re.compile(r"\\begin\{(\w+\*?)\}")
_TEMPLATES = re.compile(  # lines that contain only templates, of at most 2,000 characters each
    r"""
    (?:[ \t]*(?:
        \{\{(?!\{)[^{}]{1,2000}\}\} | \{%(?:(?!%\})[\s\S]){1,2000}%\} | \{/\*(?:(?!\*/)[\s\S]){0,2000}\*/\}
    ))++[ \t]*\r?(?:\n|\Z)
    """,
    re.VERBOSE,
)
_DIRECTIVE = re.compile(r":{3,}[ \t]*(?:\{[^{}\n]*\}|[A-Za-z][\w-]*)?")
_BRACKETED = re.compile(r"\[(?=[^\[\]\n]*\](?:\s*\{[^{}\n]*\})?\s*\Z)")
_ADMONITION = re.compile(
    r"(?:!!!|\?\?\?\+?)[ \t]+[\w-]+(?:[ \t]+[\w-]+)*(?P<quote>[ \t]+\")?|===[!+]?(?P<tab>[ \t]+\")"
)
_PLAIN_ADMONITION = re.compile(  # types of admonitions that are recognized even without title and content
    r"(?:!!!|\?\?\?\+?)[ \t]+(?:abstract|admonition|attention|bug|caution|danger|error|example|failure|hint|important|"
    r"info|note|question|quote|seealso|success|summary|tip|todo|tldr|warning)(?:[ \t]+(?:inline|end))*"
)
_ALERT = re.compile(r"\[![A-Za-z]+\][-+]?[ \t]*")
_CONTENTS = re.compile(r"@?\[\[?_?toc_?\]\]?\s*\Z", re.IGNORECASE)
_SCRIPT = re.compile(  # patterns that distinguish code from prose, which may begin with the same words
    r"""
      import\s+(?:type\s+)?(?:[\w$*{][\w$*{},\s]*\sfrom\s*)?["'][^"'\n]+["']
          (?:\s+(?:with|assert)\s*\{[^{}\n]*\})?[ \t]*+(?:;[ \t]*+)?(?://[^\n]*+)?(?=[\r\n]|\Z)
    | import\s+(?:[\w$*]+\s*,\s*)?\{[^{}\n]*(?=\n|\}\s*from\b)
    | export\s+(?:const|let|var)\s+(?:[\w$]+\s*[=:;]|[{[])
    | export\s+(?:default\s+)?(?:async\s+)?function\b\s*+(?:\*\s*+)?[\w$]*+\s*+[(<]
    | export\s+(?:default\s+)?(?:abstract\s+)?class\s+(?:[\w$]+\s*)?(?:extends\s+[\w$.]+\s*)?\{
    | export\s+(?:type|interface|enum)\s+[\w$]+\s*[=<{]
    | export\s+default\s+(?:
          (?:[\w$.]+[ \t]*;|[a-z]*[A-Z\d_$.][\w$.]*)[ \t]*(?=[\r\n]|\Z) | [\w$.]+\( | [{[] | \(\s*[{[)]
          | (?:async\s+)?(?:[\w$]+|\([\w$,\s]*\))\s*=>
      )
    | export\s*\{[\w$\s,]*\}
    | export\s*\*\s*(?:as\s+[\w$]+\s+)?from\b
    """,
    re.VERBOSE,
)
_LONGEST = 300  # maximum number of characters of a formula or template inside a line
_INLINE = re.compile(
    rf"""
      (?P<code>(?<!`)(`++)[^`\n]++\2(?!`))
    | (?P<formula>
          (?<!\\)\$\$(?!\$)[^$\n]{{1,{_LONGEST}}}?\$\$
        | (?<![\\$\w])\$(?=[^\s$])(?P<inner>[^$\n]{{1,{_LONGEST}}}?)(?<![\s\\])\$(?![\w$])
        | (?<!\\)\\\((?P<round>(?:(?!\\\))[^\n]){{1,{_LONGEST}}})\\\)
        | (?<!\\)\\\[(?P<square>(?:(?!\\\])[^\n]){{1,{_LONGEST}}})\\\]
      )
    | (?P<template>
          (?<!\{{)\{{\{{[^{{}}\n]{{1,{_LONGEST}}}\}}\}}(?!\}}) | \{{\{{\{{[^{{}}\n]{{1,{_LONGEST}}}\}}\}}\}}
        | \{{%[^\n]{{1,{_LONGEST}}}?%\}} | \{{/\*[^\n]{{0,{_LONGEST}}}?\*/\}}
      )
    | (?P<object>
          (?:(?<=[^\s{{])|(?<=[^\s{{]\ ))
          \{{(?:(?::|[.\#](?=\S))[^{{}}\n]{{1,{_LONGEST}}}|\w+=[^{{}}\n]{{1,{_LONGEST}}})\}}
        | (?:<(?=[A-Z])|(?<=\S)<|(?<=\S[ ])<)(?=[A-Za-z][^<>{{}}\n]{{0,{_LONGEST}}}\{{)[A-Za-z][\w.-]*+
          (?:\s+(?:[\w:-]+(?:=(?:"[^"\n]*"|'[^'\n]*'|{_BRACES}))?+|{_BRACES}))++\s*/?>
        | (?<![\w:]):[a-z][a-z0-9_+-]{{1,40}}:(?![\w:])
      )
    | \\[\\`$]
    """,
    re.VERBOSE,
)
_INLINE_HINT = re.compile(r"[$\\{]|:[a-z]")  # a line without a match contains none of the inline constructs
# Prices such as "$5 or 6$" and escaped brackets are not formulas.
_IS_FORMULA = re.compile(r"[\\^_={}]|\A(?!\s*[A-Za-z]{4,}\s*\Z)\s*[\w()'|.!]++(?:\s*[-+*/<>,]\s*[\w()'|.!]++)*\s*\Z")
_MAX_LINES = 100  # maximum number of lines of a construct
_INDENT = 4  # number of spaces that indent a container's content


@dataclass(frozen=True)
class Construct:
    """A construct in a text.

    Attributes:
        start: Start of the construct in the text.
        end: End of the construct. Only constructs of the kind "lines" contain line breaks.
        kind: "formula" (including templates) and "object" are parts of a sentence; only formulas may be passed to the
            model. "lines" are kept, and separate paragraphs. "title" and "container" are at the start of a line, and
            the rest of the line is a title. The content of a container is indented. "title_end" follows the title.
    """

    start: int
    end: int
    kind: ConstructKind


def find_constructs(text: str, *, scripts: bool = True) -> list[Construct]:
    """Return the constructs in a text, from left to right.

    Args:
        text: The Markdown source to search.
        scripts: Whether to find constructs that are probably plain text outside documentation files: JavaScript, and
            containers that begin with ``!!!``, ``???`` or ``===``.
    """
    return list(_Finder(text, scripts).constructs())


class _Finder:
    """Finds the constructs in a text line by line."""

    def __init__(self, text: str, scripts: bool) -> None:
        self._text, self._scripts = text, scripts
        self._lines = [match.span() for match in _LINE.finditer(text)]

    def constructs(self) -> Iterator[Construct]:
        text = self._text
        fence = ""
        number = 0
        follows_blank = True
        while number < len(self._lines):
            start, end = self._lines[number]
            containers = _CONTAINERS.match(text, start, end)
            assert containers is not None
            begin = containers.end()
            content = text[begin:end].rstrip()
            number += 1
            match = _FENCE.match(content)
            if fence or (match and not (match[1][0] == "`" and "`" in match[2])):
                if not fence:
                    assert match is not None
                    fence = match[1]
                elif match and match[1].startswith(fence) and not match[2].strip():
                    fence = ""
                continue
            if (last := self._last_line(number - 1, begin, content, follows_blank)) is not None:
                stop = self._lines[last][1]
                yield Construct(begin, begin + len(text[begin:stop].rstrip()), "lines")
                number, follows_blank = last + 1, True
                continue
            follows_blank = not content
            position = begin
            for construct in self._marks(begin, content, is_quoted=">" in containers.group()):
                yield construct
                position = construct.end if construct.kind != "title_end" else position
            yield from self._inline(position, begin + len(content))

    def _last_line(self, number: int, begin: int, content: str, follows_blank: bool) -> int | None:
        """Return the number of the last line of a multi-line construct that begins in a given line, or None."""
        if _CONTENTS.match(content):
            return number
        if content.startswith("$$"):
            return self._line_that_ends_with("$$", begin + 2, number)
        if content.startswith("\\["):
            last = self._line_that_ends_with("\\]", begin + 2, number)
            inner = "" if last is None else self._text[begin + 2 : self._lines[last][1]].rstrip()[:-2]
            return last if _IS_FORMULA.search(inner) else None
        if environment := _ENVIRONMENT.match(content):
            return self._line_that_ends_with(f"\\end{{{environment[1]}}}", begin, number)
        if content.startswith(("{{", "{%", "{/*")) and (template := _TEMPLATES.match(self._text, begin)):
            return next(line for line in range(number, len(self._lines)) if template.end() <= self._lines[line][1])
        if self._scripts and follows_blank and _SCRIPT.match(self._text, begin):
            return self._end_of_script(number)
        return None

    def _line_that_ends_with(self, closing: str, position: int, number: int) -> int | None:
        """Return the number of the first line that contains ``closing``, or None if the line does not end with it."""
        for line in range(number, min(number + _MAX_LINES, len(self._lines))):
            start, end = self._lines[line]
            content = self._text[max(start, position) : end].rstrip()
            if closing in content:
                return line if content.endswith(closing) else None
        return None

    def _end_of_script(self, number: int) -> int:
        """Return the number of the last line of JavaScript code, which ends before an empty line outside braces."""
        depth, paragraph_end = 0, None
        for line in range(number, min(number + _MAX_LINES, len(self._lines))):
            code = self._text[slice(*self._lines[line])]
            depth += sum(map(code.count, "{(")) - sum(map(code.count, "})"))
            is_last = line + 1 == len(self._lines) or not self._text[slice(*self._lines[line + 1])].strip()
            if is_last and depth <= 0:
                return line
            if is_last and paragraph_end is None:
                paragraph_end = line
        return number if paragraph_end is None else paragraph_end

    def _marks(self, begin: int, content: str, *, is_quoted: bool) -> Iterator[Construct]:
        """Yield the marks in a line that begins a container."""
        if is_quoted and (alert := _ALERT.match(content)):
            kind: ConstructKind = "title" if content[alert.end() :] else "lines"
            yield Construct(begin, begin + len(content[: alert.end()].rstrip()) + (kind == "title"), kind)
        elif directive := _DIRECTIVE.match(content):
            title = content[directive.end() :]
            if bracket := _BRACKETED.match(title.lstrip()):
                start = len(content) - len(title.lstrip()) + bracket.end()
                end = content.index("]", start)
                yield Construct(begin, begin + start, "title")
                yield from self._title_end(begin, content, end)
            elif not title.strip() or title.lstrip().startswith("{"):
                yield Construct(begin, begin + len(content), "lines")
            elif title[0] in " \t":
                yield Construct(begin, begin + len(content) - len(title.lstrip()), "title")
        elif self._scripts and (admonition := _ADMONITION.match(content)):
            rest = content[admonition.end() :]
            if admonition["quote"] or admonition["tab"]:
                if rest.endswith('"') and len(rest) > 1:
                    yield Construct(begin, begin + admonition.end(), "container")
                    yield from self._title_end(begin, content, len(content) - 1)
            elif not rest.strip() and (_PLAIN_ADMONITION.fullmatch(content) or self._has_content(begin)):
                yield Construct(begin, begin + len(content), "container")

    def _has_content(self, begin: int) -> bool:
        """Return whether the first nonblank line after the line that contains ``begin`` is indented."""
        number = bisect_right(self._lines, (begin, len(self._text)))
        margin = begin - self._lines[number - 1][0] + _INDENT
        for start, end in self._lines[number : number + _MAX_LINES]:
            line = self._text[start:end].expandtabs(_INDENT)
            if line.strip():
                return len(line) - len(line.lstrip(" ")) >= margin
        return False

    @staticmethod
    def _title_end(begin: int, content: str, position: int) -> Iterator[Construct]:
        yield Construct(begin + position, begin + len(content), "title_end")

    def _inline(self, start: int, end: int) -> Iterator[Construct]:
        if not _INLINE_HINT.search(self._text, start, end):
            return
        for match in _INLINE.finditer(self._text, start, end):
            inner = match["inner"] or match["round"] or match["square"]
            if match["template"] or (match["formula"] and (inner is None or _IS_FORMULA.search(inner))):
                yield Construct(*match.span(), "formula")
            elif match["object"]:
                yield Construct(*match.span(), "object")
