"""Normalize texts that look the same to a reader: spaces, invisible characters and accents get one canonical form.

Three steps, in this order:

1. Characters are composed: Unicode's Normalization Form C (Unicode Standard Annex 15). Canonically equivalent texts
   become equal. Compatibility forms, such as full-width letters, are not changed.
2. Invisible characters are removed: control characters, and code points that are not displayed (Unicode property
   Default_Ignorable_Code_Point), such as the zero-width space, the byte order mark, the soft hyphen and directional
   marks. They are kept if a script or an emoji needs them: zero-width joiners and non-joiners next to letters of
   joining scripts, such as Arabic and Devanagari; joiners, variation selectors and tags in emoji; variation selectors
   after Han characters and symbols; Mongolian variation selectors; and zero-width spaces between letters of scripts
   that are written without spaces, where they separate words. What is left is composed again, because a removed
   character can stand between a letter and its mark.
3. Runs of spaces in a line, tabs and wide spaces, such as the em space, are replaced with a single space. A run that
   consists only of no-break, thin or ideographic spaces is replaced with its first character, so single characters of
   this kind are not changed. White space at both ends is removed. Line breaks inside the text are kept.

Language models must reproduce the white space of their texts, so the third step is omitted for them
(:func:`normalize_characters`).

Most texts are already normalized. A check that takes less than a microsecond per sentence detects and returns them
unchanged.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

_Ranges = tuple[tuple[int, int], ...]

_INVISIBLE_RANGES: _Ranges = (
    (0x00, 0x08), (0x0E, 0x1B), (0x7F, 0x84), (0x86, 0x9F), (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C),
    (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)  # fmt: skip
# Tabs, and spaces other than U+0020.
_OTHER_SPACE_RANGES: _Ranges = (
    (0x09, 0x09), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x202F, 0x202F), (0x205F, 0x205F),
    (0x3000, 0x3000),
)  # fmt: skip


def _character_class(ranges: _Ranges) -> str:
    """Return the content of a character class for a regular expression."""
    return "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in ranges)


def _run_without(ranges: _Ranges) -> re.Pattern[str]:
    """Return a pattern that matches a run of characters outside the ranges.

    The pattern lists the complementary ranges, which ``re`` matches several times as fast as a negated class.
    """
    ends = sorted(ranges)
    starts = [0, *(last + 1 for _, last in ends)]
    stops = [*(first - 1 for first, _ in ends), sys.maxunicode]
    between = tuple((start, stop) for start, stop in zip(starts, stops, strict=True) if start <= stop)
    return re.compile(f"[{_character_class(between)}]*")


_INVISIBLE = _character_class(_INVISIBLE_RANGES)
# Scripts with letters that join or form conjuncts, controlled by joiners and non-joiners.
_JOINING = (
    "Arab Syrc Mong Nkoo Mand Mani Phag Adlm Rohg Deva Beng Guru Gujr Orya Taml Telu Knda Mlym Sinh Khmr Mymr Tibt "
    "Bali Java Sund Cham Tglg Limb Lepc Newa Gran Tirh Sidd Modi Sylo Saur Cakm Mtei"
)
_WITHOUT_SPACES = "Thai Laoo Khmr Mymr Lana Tale Talu Tavt Tibt"

_NEVER_NEEDED = frozenset(map(chr, (*range(9), *range(0x0E, 0x1C), *range(0x7F, 0x85), *range(0x86, 0xA0))))
_NEVER_NEEDED |= frozenset("\u00ad\u200e\u200f\u2060\ufeff")  # frequent characters that do not need the slower pattern
_VISIBLE = _run_without(_INVISIBLE_RANGES)
_VISIBLE_WITHOUT_OTHER_SPACE = _run_without((*_INVISIBLE_RANGES, *_OTHER_SPACE_RANGES))
_ONLY_INVISIBLE = re.compile(rf"[\s{_INVISIBLE}]*")
# Latin letters, punctuation and emoji that are normalized in every context.
_LATIN = re.compile("[ -~\u00a1-\u00ac\u00ae-\u02ff‐-’“”„…€\U0001f300-\U0001faff]*")
_ENDS = re.compile(r"\A\s+|(?<!\s)\s+\Z")
_WIDE = "\t\u1680\u2000-\u2006\u2008\u205f"  # tabs, and spaces that differ from U+0020 only in width
_RUN = re.compile(f"[ {_character_class(_OTHER_SPACE_RANGES)}]{{2,}}|[{_WIDE}]")
_HAS_ORDINARY = re.compile(f"[ {_WIDE}]")


def normalize(text: str) -> str:
    """Return a normalized text (steps 1 to 3)."""
    text = text.strip()
    if "  " not in text:
        if text.isprintable() if text.isascii() else _LATIN.fullmatch(text):
            return text
        if _VISIBLE_WITHOUT_OTHER_SPACE.fullmatch(text) and unicodedata.is_normalized("NFC", text):
            return text
    return collapse_spaces(normalize_characters(text))


def normalize_characters(text: str) -> str:
    """Return a text with normalized characters and unchanged white space (steps 1 and 2)."""
    if text.isascii() and text.isprintable():
        return text
    return unicodedata.normalize("NFC", remove_invisible(unicodedata.normalize("NFC", text)))


def collapse_spaces(text: str) -> str:
    """Return a text with normalized white space (step 3)."""
    return _RUN.sub(_space, text).strip()


def remove_invisible(text: str) -> str:
    """Return a text without unnecessary invisible characters (step 2, before the second composition)."""
    return text if _VISIBLE.fullmatch(text) else _remove_needless(text)


def _remove_needless(text: str) -> str:
    """Remove invisible characters that are not needed in their context.

    The result is the same as with ``_needed_or_invisible().sub``, which is slower because it tries its pattern
    everywhere.
    """
    parts, end = [], 0
    while True:
        visible = _VISIBLE.match(text, end)
        assert visible is not None
        parts.append(visible[0])
        end = visible.end()
        if end == len(text):
            return "".join(parts)
        if text[end] in _NEVER_NEEDED:
            end += 1
        else:
            invisible = _needed_or_invisible().match(text, end)
            parts.append(invisible[1] or "")
            end = invisible.end()


def is_blank(text: str) -> bool:
    """Return whether a text has no visible characters."""
    return not normalize(text)


def split_surrounding_space(text: str) -> tuple[str, str, str]:
    """Split a text into leading white space, the text itself, and trailing white space.

    Unnecessary invisible characters at the ends are dropped.
    """
    core = text.strip()
    lead, trail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    if core and not _VISIBLE.fullmatch(core[0] + core[-1]):
        start, end = _ONLY_INVISIBLE.match(core), _ONLY_INVISIBLE.match(core[::-1])
        assert start is not None
        assert end is not None
        if start.end() == len(core):
            return "", "", ""
        stop = len(core) - end.end()
        first, last = _needed_span(core, start.end(), stop)
        lead += _white_space(core[:first])
        trail = _white_space(core[last:]) + trail
        core = core[first:last]
    return lead, core, trail


def original_pieces(text: str, pieces: Sequence[str]) -> list[str]:
    """Return the parts of a text that correspond to pieces of its normalized form.

    Args:
        text: The original text.
        pieces: Strings whose concatenation is the normalized ``text``. Otherwise they are returned unchanged.
    """
    form, origins = text, list(range(len(text) + 1))
    for pattern, replacement in (
        (_cluster(), _composed),
        (_needed_or_invisible(), _needed),
        (_cluster(), _composed),
        (_RUN, _space),
        (_ENDS, _nothing),
    ):
        form, origins = _rewrite(form, origins, pattern, replacement)
    if "".join(pieces) != form or not pieces:
        return list(pieces)
    starts = [0, *(origins[end] for end in accumulate(map(len, pieces[:-1]))), len(text)]
    return [text[start:end] for start, end in pairwise(starts)]


def _rewrite(text: str, origins: list[int], pattern: Any, replacement: Any) -> tuple[str, list[int]]:
    """Replace the matches of a pattern. Return the new text, and the index in the original text of each character and
    the end.
    """
    parts: list[str] = []
    indices: list[int] = []
    done = 0
    for match in pattern.finditer(text):
        start, end = match.span()
        new = replacement(match)
        if new == text[start:end]:
            continue
        parts += [text[done:start], new]
        indices += origins[done:start]
        indices += [origins[min(start + offset, end - 1)] for offset in range(len(new))]
        done = end
    return "".join([*parts, text[done:]]), [*indices, *origins[done:]]


def _needed_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Extend the span so that it includes all invisible characters that are needed in their context."""
    kept = [match.span() for match in _needed_or_invisible().finditer(text) if match[1]]
    return min([start, *(span[0] for span in kept)]), max([end, *(span[1] for span in kept)])


def _white_space(text: str) -> str:
    return "".join(filter(str.isspace, text))


def _needed(match: Any) -> str:
    return match[1] or ""


def _composed(match: Any) -> str:
    return unicodedata.normalize("NFC", match[0])


def _space(match: Any) -> str:
    run: str = match[0]
    return " " if _HAS_ORDINARY.search(run) else run[0]


def _nothing(match: Any) -> str:
    return ""


@cache
def _needed_or_invisible() -> Any:
    """Return a pattern that matches invisible characters. Group 1 matches if the character is needed in its context."""
    joining, unspaced, mongolian = (_letters_of(scripts.split()) for scripts in (_JOINING, _WITHOUT_SPACES, "Mong"))
    pictograph, tags = r"\p{Extended_Pictographic}", "[\U000e0020-\U000e007e]+\U000e007f"
    # NFC sorts the marks of a letter by their combining classes, so any of them can stand next to the character.
    marks = rf"[\p{{M}}--[{_INVISIBLE}]]*"
    after_joining = rf"(?<={joining}{marks}|{mongolian}[\u180b-\u180d\u180f])"
    before_joining, before_unspaced = (rf"(?:{kind}|{marks}[{kind}&&\p{{M}}])" for kind in (joining, unspaced))
    needed = (
        rf"{after_joining}\u200c(?=\u200c*{before_joining})",
        rf"{after_joining}\u200d|\u200d(?={before_joining})",
        rf"(?<={pictograph}\ufe0f?|\p{{Emoji_Modifier}})\u200d(?={pictograph}(?![{_INVISIBLE}]*\u0338))",
        rf"(?<={pictograph})[\ufe0e\ufe0f]|(?<=[0-9#*])[\ufe0e\ufe0f](?=\u20e3)",
        rf"(?<=[\p{{Han}}\p{{Sm}}\p{{So}}\p{{Phag}}\p{{Mymr}}]|[\p{{Mymr}}&&\p{{M}}]{marks})"
        r"[\ufe00-\ufe0f\U000e0100-\U000e01ef]",
        rf"(?<={mongolian}{marks})[\u180b-\u180f]|\u180e(?={mongolian})",
        rf"(?<=\U0001f3f4){tags}",
        rf"(?<={unspaced}{marks})\u200b(?=\u200b*{before_unspaced})",
    )
    # The first lookahead skips visible characters: a lookbehind at each mark of a long run would take quadratic time.
    return _regex(rf"(?=[{_INVISIBLE}])(?:({'|'.join(needed)})|[{_INVISIBLE}])")


def _letters_of(scripts: Iterable[str]) -> str:
    # Marks such as Arabic vowels belong to several scripts (Script_Extensions). Marks for Latin letters are excluded,
    # because they belong to too many scripts.
    classes = "".join(map(r"\p{{scx={}}}".format, scripts))
    return rf"[[\p{{L}}\p{{M}}]&&[{classes}]--[\u0300-\u036f{_INVISIBLE}]]"


@cache
def _cluster() -> Any:
    return _regex(r"\X")


def _regex(pattern: str) -> Any:
    import regex  # loaded only for texts that are not normalized

    return regex.compile(pattern, regex.V1 | regex.DOTALL)
