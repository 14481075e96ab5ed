"""GNU gettext message catalogs (PO). The translate-toolkit escapes, unescapes and wraps their strings.

Messages without a translation are translated, with all plural forms. Only their ``msgstr`` lines change. Existing
translations, comments, flags, contexts, domains, obsolete messages and the layout are kept. Messages keep their HTML
tags. Messages with a flag such as ``c-format`` also keep their printf directives.

A catalog uses the encoding that its header declares, or UTF-8 if the header declares none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.documents.content import DocumentContent, DocumentError, EncodedText, ReadingOptions, read_text
from headway.documents.encodings import python_codec_name
from headway.documents.messages import CONTROL_CHARACTER, Message
from headway.errors import MissingPackageError
from headway.predict.markup.placeholders import is_translatable

_MAX_PLURALS = 6
_PRINTF = ("c-format", "objc-format", "php-format", "python-format")  # flags of messages with printf directives
_NUM_PLURALS = re.compile(r"nplurals\s*=\s*(\d+)")
_CHARSET = re.compile(rb'"(?>[^"\n]*?Content-Type:)[^"\n]*?charset=([\w.:-]+)', re.IGNORECASE)
_PLACEHOLDER = "charset"  # the encoding that templates declare before a translator enters the actual one
_LINE = re.compile(r"([^\r\n]*)((?<!\r)\r+\n|\n|\r|\Z)")
_STRING = r'"(?:[^"\\]|\\.)*+"'
_KEYWORD = re.compile(
    rf"\s*(?:(domain|msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*)?({_STRING}(?:\s*{_STRING})*)\s*"
)
_STRINGS = re.compile(_STRING)
# C escapes that the translate-toolkit does not support: bytes in the file's encoding, and control characters.
_ESCAPE = re.compile(r"(?P<bytes>(?:\\[0-7]{1,3}|\\x[0-9A-Fa-f]{1,2})+)|\\(?P<control>[abfv])|\\.")
_BYTE = re.compile(r"\\x?([0-9A-Fa-f]+)")
_CONTROLS = {"a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_CONTROL = re.compile(CONTROL_CHARACTER)
_ESCAPES = {character: f"\\{letter}" for letter, character in _CONTROLS.items()}


@dataclass
class _Entry:
    """A message and its position in the file.

    Attributes:
        flags: The comments that contain the message's flags.
        strings: The quoted strings of each keyword, such as msgid.
        start: Index of the first ``msgstr`` line.
        end: Index of the line after the last ``msgstr`` line.
    """

    flags: str = ""
    strings: dict[str, list[str]] = field(default_factory=dict)
    start: int = 0
    end: int = 0


def read_po(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read a message catalog.

    Raises:
        DocumentError: The catalog is not valid.
        MissingPackageError: The translate-toolkit is not installed.
    """
    try:
        from translate.storage.pypo import quoteforpo, unquotefrompo
    except ImportError:
        raise MissingPackageError("translating PO files", "translate-toolkit") from None
    encoded = _read(path, options.encoding)

    def unquoted(strings: Sequence[str]) -> str:
        return str(unquotefrompo([_decode_escapes(string, encoded.encoding) for string in strings]))

    def quoted(text: str) -> list[str]:
        return [_CONTROL.sub(_escape, line) for line in quoteforpo(text)]

    if "msgid" not in encoded.text:
        raise DocumentError("the file is not a PO file, because it has no msgid")
    lines = [match.group() for match in _LINE.finditer(encoded.text)]
    entries = list(_entries(lines))
    headers = [entry for entry in entries if not unquoted(entry.strings["msgid"])]
    match = _NUM_PLURALS.search(unquoted(headers[0].strings.get("msgstr", []))) if headers else None
    num_plurals = min(int(match[1]), _MAX_PLURALS) if match else 2
    units: list[tuple[_Entry, list[Message]]] = []
    for entry in entries:
        sources = [unquoted(entry.strings[name]) for name in ("msgid", "msgid_plural") if name in entry.strings]
        translations = [strings for name, strings in entry.strings.items() if name.startswith("msgstr")]
        if is_translatable(sources[0]) and entry.end and not any(map(unquoted, translations)):
            has_directives = any(flag in entry.flags for flag in _PRINTF)
            units.append((entry, [Message(source, "c-format" if has_directives else "gettext") for source in sources]))

    def write(translations: Sequence[str], target: Path) -> None:
        remaining = iter(translations)
        out, position = list[str](), 0
        for entry, messages in units:
            forms = [message.fill(remaining) for message in messages]
            if len(forms) > 1:
                # If there are several plural forms, the first one is the singular.
                forms = [*forms[: num_plurals > 1], *[forms[-1]] * max(1, num_plurals - 1)]
            end = lines[entry.end - 1][len(lines[entry.end - 1].rstrip("\r\n")) :]
            newline = end or "\n"
            written = [
                (f"msgstr[{number}] " if len(messages) > 1 else "msgstr ") + newline.join(quoted(form))
                for number, form in enumerate(forms)
            ]
            out += (*lines[position : entry.start], newline.join(written) + end)
            position = entry.end
        encoded.write("".join([*out, *lines[position:]]), target)

    return DocumentContent([text for _, messages in units for message in messages for text in message.texts], write)


def _read(path: Path, encoding: str | None) -> EncodedText:
    match = _CHARSET.search(path.read_bytes())
    declared = match[1].decode("ascii") if match else _PLACEHOLDER
    if encoding is None and declared.lower() != _PLACEHOLDER:
        encoding = python_codec_name(declared)
        if encoding is None:
            raise DocumentError(f"the header declares the charset {declared!r}, which is unknown")
    return read_text(path, encoding)


def _decode_escapes(string: str, encoding: str) -> str:
    """Replace the escapes in a quoted string that the translate-toolkit does not support with their characters."""
    return _ESCAPE.sub(lambda escape: _decoded(escape, encoding), string) if "\\" in string else string


def _decoded(escape: re.Match[str], encoding: str) -> str:
    if escape["control"]:
        return _CONTROLS[escape["control"]]
    if not escape["bytes"]:
        return escape.group()
    values = [int(match[1], 16 if "x" in match.group() else 8) for match in _BYTE.finditer(escape["bytes"])]
    text = bytes(value & 0xFF for value in values).decode(encoding, "replace")
    return "".join(f"\\{character}" if character in '"\\' else character for character in text)


def _escape(control: re.Match[str]) -> str:
    character = control.group()
    return _ESCAPES.get(character, f"\\{ord(character):03o}")


def _entries(lines: Sequence[str]) -> Iterator[_Entry]:
    """Yield the messages of a catalog, except obsolete ones."""
    entry, keyword = _Entry(), ""
    for number, line in enumerate(lines):
        text = line.strip()
        if not text or text.startswith("#"):
            if entry.end:
                yield entry
                entry, keyword = _Entry(), ""
            if text.startswith("#,"):
                entry.flags += text
            continue
        match = _KEYWORD.fullmatch(text)
        name = match[1] or keyword if match else ""
        if match is None or not name:
            raise DocumentError(f"the file is not a valid PO file (line {number + 1:,}: {text[:40]!r})")
        if match[1] in ("domain", "msgctxt", "msgid") and (entry.end or "domain" in entry.strings):
            if entry.end:
                yield entry
            entry = _Entry(entry.flags if not entry.end else "")
        keyword = name
        entry.strings.setdefault(name, []).extend(_STRINGS.findall(match[2]))
        if name.startswith("msgstr"):
            if "msgid" not in entry.strings:
                raise DocumentError(f"the file is not a valid PO file (line {number + 1:,}: a msgstr without a msgid)")
            entry.start = entry.start if entry.end else number
            entry.end = number + 1
    if entry.end:
        yield entry
