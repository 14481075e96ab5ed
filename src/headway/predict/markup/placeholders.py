r"""Find the parts of a text that a translation must keep: placeholders, Markdown, numbers and line breaks.

====================  ==============================================================================================
placeholders          ``{name}``, ``{0}``, ``{{x}}``, ``${x}``, ``%{x}``, ``$x``, ``%s``, ``%1$d``, ``%(name)s``,
                      ``%X%``, ``&copy;``, URLs, e-mail addresses, and code in backticks
ICU messages          the skeleton (:mod:`headway.predict.markup.icu_messages`); branches are separate texts
emoji                 with their modifiers, and sequences of emoji
numbers with units    ``5 km``, ``30 %``, ``$5``. Only their digits must be kept, because separators and units depend on
                      the language: ``1,000 miles`` may become ``1.000 Meilen``
formulas, templates   and the other constructs from :mod:`headway.predict.markup.markdown_dialects`
Markdown              emphasis and links enclose the translations of their words; marks at the start of a line, table
                      rows and fenced code keep their positions
line breaks           lines are translated separately
====================  ==============================================================================================

:mod:`headway.predict.markup.mark_placement` and :mod:`headway.predict.translation.marked_translation` describe how
these parts are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from headway.predict.markup.document import (
    STAND_IN_PATTERN,
    Document,
    DocumentBuilder,
    Item,
    ItemKind,
    Pieces,
    WithoutWords,
)
from headway.predict.markup.entities import ENTITY_PATTERN
from headway.predict.markup.icu_messages import MessageReader, may_have_branches
from headway.predict.markup.markdown_dialects import find_constructs

_NESTED = "[^{}]*+"
for _ in range(4):  # ICU messages are nested: {count, plural, one {# file} other {# files}}
    _NESTED = rf"[^{{}}]*+(?:\{{{_NESTED}\}}[^{{}}]*+)*+"
_ICU_TYPES = "plural|selectordinal|select|number|date|time|duration|ordinal|spellout|choice|list"
_EMOJI = "[\u231a-\u23ff\u2600-\u27bf\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
_MODIFIERS = "[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
_UNITS = (
    "°C|°F|°|%|‰|€|\\$|£|¥|CHF|EUR|USD|GBP|km/h|m/s|[kcmd]?m[²³]|[kcmdµn]?m|mi|ft|[kmµ]?g|t|lb|oz|[mcdh]?l|L|[kM]?Wh|"
    "[kMG]?W|[km]?V|m?A|[kMG]?Hz|[kKMGT]B|kcal|k?J|h?Pa|bar|ms|min|h|s|px|pt|dpi|K"
)
_DIGIT_GROUPS = r"\d++(?:[.,'’]\d++|[\ \u00a0\u202f]\d{3}(?!\d)){0,6}+"  # such as 1,000.5 or 1 000
_URL_END = r"""[^\s<>"“”„»«`.,;:!?')\]}…*_~]"""

_PROTECTED = re.compile(
    rf"""
      (?P<placeholder>
          (?<!`)(?P<ticks>`++)[^`\n]++(?P=ticks)(?!`)
        | \{{\s*[\w.-]+\s*,\s*(?:{_ICU_TYPES})\b{_NESTED}\}}
        | [$%\#]?\{{{{1,3}}[^{{}}\n]{{0,100}}\}}{{1,3}}
        | (?<![\d%])%(?:\([\w.]+\)|\d+\$)?[-+0\#]*+\d*+(?:\.\d++)?(?:hh?|ll?|[jztLq])?[sdiufFeEgGxXoaAcCpn@](?![A-Za-z])
        | (?<=\d)%(?:\([\w.]+\)|\d+\$)?(?:\.\d++)?l{{0,2}}[sdiufgxXc@](?![A-Za-z0-9])
        | {ENTITY_PATTERN.pattern.replace("#", "[#]")}
        | %%(?!\w) | (?<![\w%])%[A-Za-z_]\w*% | (?<!\w)\$[A-Za-z_]\w*
        | (?:https?|ftps?|file)://[^\s<>"“”„»«`]*{_URL_END}
        | (?<![\w.@])www\.[\w-]+\.[^\s<>"“”„»«`]*{_URL_END}
        | {STAND_IN_PATTERN.pattern}
        | (?<![\w.+-])(?:mailto:)?[\w+-]+(?:\.[\w+-]+)*@[\w-]+(?:\.[\w-]+)+
      )
    | (?P<emoji>(?:(?:[\U0001f1e6-\U0001f1ff]{{2}}|[0-9\#*]\ufe0f?\u20e3|{_EMOJI}){_MODIFIERS}*
        (?:\u200d{_EMOJI}{_MODIFIERS}*)*)+)
    | (?P<number>(?<![\w.,])(?:[-+−±]?{_DIGIT_GROUPS}[\ \u00a0\u202f]?(?:{_UNITS})(?!\w|(?<=[%$])(?:[({{%]|\.\d++[a-z]))
        | [$€£¥]\ ?{_DIGIT_GROUPS}))
    """,
    re.VERBOSE,
)
_LINK_END = r"""\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+"[^"]*")?\)"""
_INLINE = re.compile(
    rf"(?P<link_end>{_LINK_END})|{_PROTECTED.pattern}|(?P<link>!?\[(?=[^\[\]]*\]\())|(?P<emphasis>\*{{1,3}}|_{{1,3}}|~~)",
    re.VERBOSE,
)
# A text without any of these characters contains nothing to keep.
_HINT = re.compile(
    "[&{%$@*_~`\\[\\d\\n\\r\u2028\u2029\u20e3\u231a-\u3299\U0001f000-\U0001faff€£¥]|://|www\\.|^\\s*[#>+|-]|\\\\[(\\[]|:[a-z][a-z0-9_+-]+:|^:::|"
    + STAND_IN_PATTERN.pattern
)
# A text without a match contains none of the constructs in headway.predict.markup.markdown_dialects.
_CONSTRUCT = re.compile(r"\$[^$\n]+\$|\$\$|\\[(\[]|\\begin|\{%|^[ \t>]*(?:\[!|:::)|:[a-z][a-z0-9_+-]+:", re.MULTILINE)
_READABLE = 60  # maximum number of characters of a formula or template that is passed to the model
_LINE_BREAK = re.compile("\r\n|[\n\r\u2028\u2029]")
_QUOTES = {
    "„": "“”", "“": "”", '"': '"', "'": "'", "«": "»", "»": "«", "‚": "‘", "‘": "’", "(": ")", "[": "]", "<": ">",
}  # fmt: skip
_DIGITS = re.compile(_DIGIT_GROUPS)
_SPACE = re.compile(r"(?<![\d$€£¥])\s")  # white space that is not part of a number

_MAX_OPEN = 30  # maximum number of unmatched opening marks; if there are more, the oldest are treated as text
_FENCE = re.compile(r"\s*(?:```|~~~)")
_LINE_MARK = re.compile(r"\s*(?:#{1,6}\s+|[-*+]\s+|>\s*)+(?:\[[ xX]\]\s+)?")
_NUMBERED = re.compile(r"\s*\d+[.)]\s+")
_TABLE_ROW = re.compile(r"\s*\|.*\|\s*")


def is_plain(text: str) -> bool:
    """Return whether a text certainly contains no part that must be kept."""
    return not _HINT.search(text)


def is_translatable(text: str) -> bool:
    """Return whether a text contains something to translate: a letter, or a number with a unit, such as 20 %."""
    return any(map(str.isalpha, text)) or any(match["number"] for match in _PROTECTED.finditer(text))


def find_placeholders(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each placeholder and each sequence of emoji in a text, from left to right."""
    if is_plain(text):
        return []
    return [match.span() for match in _PROTECTED.finditer(text) if match.lastgroup != "number"]


def count_placeholders(text: str) -> Counter[str]:
    """Count the occurrences of each placeholder and each sequence of emoji in a text."""
    return Counter(text[start:end] for start, end in find_placeholders(text))


def keeps_placeholders(source: str, target: str) -> bool:
    """Return whether a translation contains the same placeholders as its source, and the same digits in its numbers.

    Only numbers with units are compared.
    """
    if count_placeholders(source) != count_placeholders(target):
        return False
    numbers = [match.group() for match in _PROTECTED.finditer(source) if match.lastgroup == "number"]
    if not numbers:
        return True
    here, there = _digit_counts(source), _digit_counts(target)
    return all(here[digits] == there[digits] for number in numbers for digits in _digit_counts(number))


def _digit_counts(text: str) -> Counter[str]:
    """Count the occurrences of each number in a text. Separators are removed, and digits are converted to ASCII."""
    return Counter(
        "".join(str(int(digit)) for digit in number if digit.isdecimal()) for number in _DIGITS.findall(text)
    )  # fmt: skip


def remove_placeholders(source: str, target: str) -> str:
    """Remove the placeholders from a translation that its source does not contain, from left to right.

    The texts on both sides of a removed placeholder may together form another placeholder. After each removal, the
    search therefore continues from the last position that no placeholder can extend across: after white space that is
    not part of a number, or before three placeholders. Unless the text contains an unpaired brace or backtick, the
    running time is proportional to its length.
    """
    known = count_placeholders(source)
    position = border = 0
    kept: list[int] = []  # starts of the known placeholders before ``position``
    is_open = False  # whether a placeholder of any length may begin in the text before ``position``
    while match := _PROTECTED.search(target, position):
        start, end = match.span()
        is_open |= any(mark in target[position:start] for mark in "{`")
        for space in () if is_open else _SPACE.finditer(target, position, start):
            border = space.end()
        position = end
        if match.lastgroup != "number" and match.group() in known:
            kept.append(start)
        elif match.lastgroup != "number":
            target = target[:start] + target[end:]
            position = max(border, kept[-3]) if len(kept) >= 3 and not is_open else border
            kept = [kept_position for kept_position in kept[-3:] if kept_position < position]
    return target


def split_protected_parts(text: str) -> Iterator[tuple[ItemKind, int, int]]:
    """Yield the kind, start and end of each part to keep, and of the text between these parts, from left to right."""
    position = 0
    for match in () if is_plain(text) else _PROTECTED.finditer(text):
        kind, start, end = _protected_part(text, match, position)
        yield "text", position, start
        yield kind, start, end
        position = end
    yield "text", position, len(text)


def _protected_part(text: str, match: re.Match[str], position: int) -> tuple[ItemKind, int, int]:
    """Return the kind, start and end of the item for a match.

    Quotation marks or brackets around a placeholder become part of it if they are after ``position``. Otherwise, the
    text would contain an empty pair of quotation marks after the placeholder is removed.
    """
    start, end = match.span()
    if match.lastgroup == "number":
        return "number", start, end
    if position < start and end < len(text) and text[end] in _QUOTES.get(text[start - 1], ""):
        start, end = start - 1, end + 1
    return "object" if match.lastgroup == "emoji" else "placeholder", start, end


def _text_items(text: str) -> list[Item]:
    """Return a text as items: leading white space, text, and trailing white space."""
    core = text.strip()
    lead = len(text) - len(text.lstrip())
    parts = (text[:lead], core, text[lead + len(core) :])
    return [Item("text", (part,), part) for part in parts if part]


def parse_plain_text(text: str) -> Document | None:
    """Return the document of a text, or None if the text contains no part that must be kept."""
    if is_plain(text) or not text.strip():
        return None
    outer = DocumentBuilder()
    if STAND_IN_PATTERN.search(text):
        pieces, is_marked = _plain_text_pieces(text, outer)
    elif may_have_branches(text):
        pieces = MessageReader(text, lambda part, inner: _pieces(part, inner)[0]).pieces(outer)
        is_marked = True
    else:
        builder = outer.nested(str)
        pieces, is_marked = _pieces(text, builder)
        pieces = builder.restore(pieces)
    return Document(pieces, tuple(outer.segments)) if is_marked else None


def _pieces(text: str, builder: DocumentBuilder) -> tuple[Pieces, bool]:
    """Return the pieces of a text, with the builder's stand-ins, and whether it contains a part that must be kept."""
    return _plain_text_pieces(_without_constructs(text, builder) if _CONSTRUCT.search(text) else text, builder)


def _without_constructs(text: str, builder: DocumentBuilder) -> str:
    """Replace constructs from Markdown dialects with stand-ins of the builder."""
    out: list[str] = []
    position = 0
    for construct in find_constructs(text, scripts=False):
        source = text[construct.start : construct.end]
        is_readable = construct.kind == "formula" and len(source) <= _READABLE
        item = Item("placeholder", (source,), source) if is_readable else Item("object", (source,))
        out += (text[position : construct.start], builder.add_stand_in(item))
        position = construct.end
    return "".join([*out, text[position:]])


def _plain_text_pieces(text: str, builder: DocumentBuilder) -> tuple[Pieces, bool]:
    """Return the pieces of a text, and whether it contains a part that must be kept."""
    pieces: list[str | int] = []
    lines = list(_lines(text))
    is_marked, in_fence = len(lines) > 1, False
    for line, line_break in lines:
        if _FENCE.match(line):
            in_fence = not in_fence
            pieces.append(line)
        elif in_fence:
            pieces.append(line)
        elif _TABLE_ROW.fullmatch(line):
            is_marked = True
            for cell in re.split(r"(\|)", line):
                pieces += builder.add_segment(_inline_items(cell))
        else:
            mark = _LINE_MARK.match(line) or (_NUMBERED.match(line) if len(lines) > 1 else None)
            items = _inline_items(line[mark.end() if mark else 0 :])
            is_marked |= mark is not None or any(item.kind != "text" for item in items)
            pieces += (mark.group() if mark else "", *builder.add_segment(items))
        pieces.append(line_break)
    return tuple(pieces), is_marked or in_fence


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line of a text and its line break. Line breaks inside a placeholder do not end a line."""
    placeholders = iter(find_placeholders(text))
    start = end = position = 0
    for match in _LINE_BREAK.finditer(text):
        while end <= match.start():
            start, end = next(placeholders, (len(text), len(text) + 1))
        if match.start() <= start:
            yield text[position : match.start()], match.group()
            position = match.end()
    yield text[position:], ""


def _inline_items(line: str) -> list[Item]:
    """Return the items of a line of Markdown, without the mark at its start.

    Emphasis marks and link marks without a partner are treated as text.
    """
    items: list[Item] = []
    opened: list[tuple[str, int]] = []  # possible opening marks, each with its index in items
    position = 0
    for match in _INLINE.finditer(line) if _HINT.search(line) else ():
        (start, end), kind, mark = match.span(), match.lastgroup, match.group()
        if kind in ("placeholder", "emoji", "number"):
            item_kind, start, end = _protected_part(line, match, position)
            items += (*_text_items(line[position:start]), Item(item_kind, (line[start:end],), line[start:end]))
            position = end
            continue
        items += _text_items(line[position:start])
        position = end
        name = "[" if kind in ("link", "link_end") else mark
        partner = next((index for index in reversed(range(len(opened))) if opened[index][0] == name), None)
        left, right = line[start - 1 : start], line[end : end + 1]
        if partner is not None and (kind == "link_end" or (left.strip() and not right.isalnum())):
            index = opened[partner][1]
            without_words: WithoutWords = "source" if kind == "link_end" else "dropped"
            items[index] = Item("open", items[index].raw, without_words=without_words)
            items.append(Item("close", (mark,)))
            del opened[partner:]
        elif kind == "link_end":
            items.append(Item("object", (mark,)))
        else:
            if kind == "link" or (right.strip() and not left.isalnum()):
                opened = [*opened[-_MAX_OPEN:], (name, len(items))]
            items.append(Item("text", (mark,), mark))
    return items + _text_items(line[position:])
