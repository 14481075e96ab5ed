"""Read translation memories: a streaming parser for all versions of TMX (1.0 to 1.4b).

A file consists of translation units, each with variants of a text in several languages:

    <tu><tuv xml:lang="de"><seg>Guten <ph>&lt;br&gt;</ph>Tag</seg></tuv>
        <tuv xml:lang="en-US"><seg>Good day</seg></tuv></tu>

Each unit that has all requested languages yields an example. A language includes its regions: "de" matches "de-DE". If
several variants match, an exact match is preferred, otherwise the first variant in the file. Inline codes (``bpt``,
``ept``, ``it``, ``ph``, ``ut``) are removed along with their content, which is markup of the original document. Text
inside ``hi`` is kept. Line ends inside a segment are replaced with a space.

The parser is expat, which accesses neither other files nor the network. Files that declare entities are rejected,
because a few lines of entities can expand to gigabytes. The depth and the sizes of units and tags are limited, so
memory use does not grow with the size of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from xml.parsers import expat

from headway.data.bad_lines import LineProblem
from headway.errors import DataError

Texts = tuple[str, ...]

_INLINE_CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
_LANGUAGE_ATTRIBUTES = ("xml:lang", "lang")  # in version 1.4, and in earlier versions
_MAX_DEPTH = 100
_MAX_UNIT = 1 << 24  # maximum number of characters in all variants of a unit
_MAX_TAG = 1 << 24  # maximum size in bytes of a tag, a comment or a processing instruction
# Maximum number of languages to collect for an error message, and to list in it.
_MAX_LANGUAGES, _MAX_LISTED = 1_000, 10
_LINE_END = re.compile(r"[\r\n][ \t\r\n]*")
_INCOMPLETE = frozenset(
    expat.errors.codes[message]
    for message in (
        expat.errors.XML_ERROR_NO_ELEMENTS,
        expat.errors.XML_ERROR_PARTIAL_CHAR,
        expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
        expat.errors.XML_ERROR_UNCLOSED_TOKEN,
    )
)


def read_tmx(blocks: Iterable[bytes], path: Path, languages: Sequence[str]) -> Iterator[Texts | LineProblem]:
    """Yield the texts of each translation unit that has all ``languages``, or a :class:`LineProblem` for an invalid
    unit.

    Args:
        blocks: The content of the file, in blocks of any size.
        path: Path of the file, for messages.
        languages: Languages of the texts to return, in this order.

    Raises:
        DataError: The file is not TMX or is incomplete, or no unit has all languages. The message contains the line
            number.
    """
    parser = _TmxParser(path, languages)
    for block in blocks:
        yield from parser.parse(block)
    yield from parser.parse(b"", is_last=True)
    parser.check_languages()


class _TmxParser:
    def __init__(self, path: Path, languages: Sequence[str]) -> None:
        self._path, self._languages = path, tuple(languages)
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._characters
        self._parser.EntityDeclHandler = self._refuse_declaration
        self._parser.SkippedEntityHandler = self._refuse_unknown
        self._num_bytes = 0
        self._results: list[Texts | LineProblem] = []
        self._is_empty, self._has_units = True, False
        self._seen_languages: dict[str, None] = {}
        self._depth = 0
        # The unit, variant and segment that is currently being parsed.
        self._variants: dict[str, str] | None = None
        self._problem: LineProblem | None = None
        self._unit_size = 0
        self._language: str | None = None
        self._segment: list[str] | None = None
        self._num_codes = 0

    def parse(self, block: bytes, *, is_last: bool = False) -> list[Texts | LineProblem]:
        """Parse a block of the file, and return the results of the units that end in this block."""
        self._num_bytes += len(block)
        try:
            self._parser.Parse(block, is_last)
        except expat.ExpatError as error:
            where = f"{self._path}, line {error.lineno}"
            if is_last and error.code in _INCOMPLETE:
                fault = "the file is incomplete" if self._depth else "the file contains no XML"
                raise DataError(f"{where}: {fault}; expected TMX up to </tmx>: download or export it again") from None
            reason = expat.ErrorString(error.code)
            raise DataError(
                f"{where}, column {error.offset + 1}: not valid XML ({reason}); repair this line, or export the file "
                "again"
            ) from None
        if self._num_bytes - self._parser.CurrentByteIndex > _MAX_TAG + len(block):
            raise self._error(f"a tag or comment of more than {_MAX_TAG >> 20} MiB")
        results, self._results = self._results, []
        return results

    def check_languages(self) -> None:
        """Raise :class:`DataError` if the file yielded no examples and no problems."""
        if not self._is_empty:
            return
        if not self._has_units:
            raise DataError(f"{self._path}: contains no translation unit; expected TMX with <tu> elements")
        seen = list(self._seen_languages)
        more = f" and {len(seen) - _MAX_LISTED:,} more" if len(seen) > _MAX_LISTED else ""
        raise DataError(
            f"{self._path}: no translation unit has a text in each of the languages {', '.join(self._languages)}; the "
            f"file contains {', '.join(seen[:_MAX_LISTED]) or 'no texts'}{more}"
        )

    def _error(self, fault: str, advice: str = "expected TMX, a translation memory") -> DataError:
        return DataError(f"{self._path}, line {self._parser.CurrentLineNumber}: {fault}; {advice}")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._depth and name != "tmx":
            raise self._error(f"the XML is <{name}>, not <tmx>")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} nested elements")
        if self._segment is not None:
            self._num_codes += name in _INLINE_CODES
        elif name == "tu":
            self._has_units, self._variants, self._problem, self._unit_size = True, {}, None, 0
        elif name == "tuv" and self._variants is not None:
            self._language = next((attributes[key] for key in _LANGUAGE_ATTRIBUTES if attributes.get(key)), None)
            if self._language is None and self._problem is None:
                where = f"{self._path}, line {self._parser.CurrentLineNumber}"
                self._problem = LineProblem(where, "a <tuv> without a language", "expected the attribute xml:lang")
        elif name == "seg" and self._language is not None:
            self._segment, self._num_codes = [], 0

    def _characters(self, text: str) -> None:
        if self._segment is None or self._num_codes:
            return
        self._unit_size += len(text)
        if self._unit_size > _MAX_UNIT:
            raise self._error(f"a translation unit of more than {_MAX_UNIT:,} characters")
        self._segment.append(text)

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._segment is not None:
            self._num_codes -= name in _INLINE_CODES
            if name == "seg":
                self._end_segment("".join(self._segment))
        elif name == "tuv":
            self._language = None
        elif name == "tu" and self._variants is not None:
            self._end_unit(self._variants)

    def _end_segment(self, text: str) -> None:
        assert self._variants is not None
        assert self._language is not None
        if "\n" in text or "\r" in text:
            text = " ".join(line.rstrip(" \t") for line in _LINE_END.split(text)).strip(" ")
        self._variants.setdefault(self._language, text)
        if len(self._seen_languages) < _MAX_LANGUAGES:
            self._seen_languages.setdefault(self._language)
        self._segment = None

    def _end_unit(self, variants: dict[str, str]) -> None:
        self._variants = None
        if self._problem is not None:
            self._is_empty = False
            self._results.append(self._problem)
            return
        texts = [_variant(variants, language) for language in self._languages]
        complete = tuple([text for text in texts if text is not None])
        if len(complete) == len(texts):
            self._is_empty = False
            self._results.append(complete)

    def _refuse_declaration(self, name: str, *_: object) -> None:
        raise self._error(
            f"declares the entity {name!r}", "declarations are not allowed, because entities can expand without limit"
        )

    def _refuse_unknown(self, name: str, *_: object) -> None:
        raise self._error(f"the entity &{name}; is unknown", "expected the character, or its number such as &#233;")


def _variant(variants: dict[str, str], language: str) -> str | None:
    """Return the text in ``language``, otherwise the first text in a regional or script variant of it."""
    wanted = _subtags(language)
    matching = [
        (len(tags), text) for name, text in variants.items() if (tags := _subtags(name))[: len(wanted)] == wanted
    ]
    exact = [text for length, text in matching if length == len(wanted)]
    return next(iter(exact or [text for _, text in matching]), None)


def _subtags(language: str) -> list[str]:
    return language.strip().replace("_", "-").casefold().split("-")
