"""JSON files. All string values are translated. Keys, numbers, HTML tags and the layout are not changed.

Files with linked messages (``@:key``), or with plural forms such as ``one apple | {count} apples``, are treated as
vue-i18n files; see :class:`~headway.documents.messages.Message`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from headway.documents.content import DocumentContent, DocumentError, ReadingOptions, read_text
from headway.documents.messages import Message, MessageSyntax

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # unpaired surrogates: valid JSON, but not valid text
_ESCAPE = re.compile(r"(\\u00[0-7][0-9a-fA-F]|\\/)|\\.")
_LINKED_MESSAGE = re.compile(r"(?<![\w.])@(?:\.\w+)?:[\w(]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"(?P<key>\s*:)?', re.DOTALL)


def read_json(path: Path, options: ReadingOptions) -> DocumentContent:
    """Read a JSON file. Raises :class:`DocumentError` if the file is not valid."""
    encoded = read_text(path, options.encoding)
    try:
        json.loads(encoded.text)
    except RecursionError:
        raise DocumentError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise DocumentError(f"the file is not valid JSON ({error})") from None
    pieces: list[str] = []  # the text before each string, and the text after the last one
    messages: list[tuple[Message, _Escapes]] = []
    strings = (match.group() for match in _STRING.finditer(encoded.text) if not match["key"])
    syntax: MessageSyntax = "vue-i18n" if any(map(_is_of_vue, strings)) else "json"
    position = 0
    for match in _STRING.finditer(encoded.text):
        value = None if match["key"] else json.loads(match.group())
        if value is None or _HALF_CHARACTER.search(value):
            continue
        message = Message(value, syntax)
        if not message.texts:
            continue
        pieces.append(encoded.text[position : match.start()])
        messages.append((message, _Escapes(match.group())))
        position = match.end()
    pieces.append(encoded.text[position:])

    def write(translations: Sequence[str], target: Path) -> None:
        remaining = iter(translations)
        written = [escapes.quote(message.fill(remaining)) for message, escapes in messages]
        encoded.write("".join(part for pair in zip(pieces, [*written, ""], strict=True) for part in pair), target)

    return DocumentContent([text for message, _ in messages for text in message.texts], write)


def _is_of_vue(string: str) -> bool:
    """Return whether a string links to another message, or has vue-i18n plural forms with a number."""
    has_forms = "|" in string and ("{n}" in string or "{count}" in string)
    return has_forms or _LINKED_MESSAGE.search(string) is not None


class _Escapes:
    """The escapes in a string that JSON does not require, such as ``\\u003c`` and ``\\/``."""

    def __init__(self, string: str) -> None:
        self._is_ascii = "\\u" in string and string.isascii()
        escapes = (match[1] for match in _ESCAPE.finditer(string) if match[1])
        self._written = {json.loads(f'"{escape}"'): escape for escape in escapes}

    def quote(self, text: str) -> str:
        """Return a text as a JSON string in which these characters are escaped."""
        if not self._written:
            return json.dumps(text, ensure_ascii=self._is_ascii)
        characters = (
            self._written.get(character) or json.dumps(character, ensure_ascii=self._is_ascii)[1:-1]
            for character in text
        )
        return f'"{"".join(characters)}"'
