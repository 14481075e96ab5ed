"""JSON files. All string values are translated. Keys, numbers, HTML tags and the layout stay unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from headway.documents.content import DocumentContent, DocumentError, ReadingOptions, read_text
from headway.documents.messages import Message

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # unpaired surrogates: valid JSON, but not valid text
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
    messages: list[Message] = []
    is_ascii: list[bool] = []
    position = 0
    for match in _STRING.finditer(encoded.text):
        value = None if match["key"] else json.loads(match.group())
        if value is None or _HALF_CHARACTER.search(value):
            continue
        message = Message(value, has_directives=False)
        if not message.texts:
            continue
        pieces.append(encoded.text[position : match.start()])
        messages.append(message)
        is_ascii.append("\\u" in match.group() and match.group().isascii())
        position = match.end()
    pieces.append(encoded.text[position:])

    def write(translations: Sequence[str], target: Path) -> None:
        remaining = iter(translations)
        written = [
            json.dumps(message.fill(remaining), ensure_ascii=ascii_only)
            for message, ascii_only in zip(messages, is_ascii, strict=True)
        ]
        encoded.write("".join(part for pair in zip(pieces, [*written, ""], strict=True) for part in pair), target)

    return DocumentContent([text for message in messages for text in message.texts], write)
