"""JSON: all strings that are values are translated. Keys, numbers and the layout stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from headway.documents.content import DocumentContent, DocumentError, DocumentLimits, DocumentText, read_text

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")  # valid JSON, but no text
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"(?P<key>\s*:)?', re.DOTALL)


def read_json(path: Path, _: DocumentLimits) -> DocumentContent:
    """Read a JSON file. Raises :class:`DocumentError` if it is not valid."""
    encoded = read_text(path)
    try:
        json.loads(encoded.text)
    except RecursionError:
        raise DocumentError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise DocumentError(f"the file is not valid JSON ({error})") from None
    pieces: list[str] = []  # the text before each string, and the text after the last one
    strings: list[str] = []
    is_ascii: list[bool] = []
    position = 0
    for match in _STRING.finditer(encoded.text):
        value = None if match["key"] else json.loads(match.group())
        if value is None or not any(map(str.isalpha, value)) or _HALF_CHARACTER.search(value):
            continue
        pieces.append(encoded.text[position : match.start()])
        strings.append(value)
        is_ascii.append("\\u" in match.group() and match.group().isascii())
        position = match.end()
    pieces.append(encoded.text[position:])

    def write(translations: Sequence[str], target: Path) -> None:
        written = [
            json.dumps(translation, ensure_ascii=ascii_only)
            for translation, ascii_only in zip(translations, is_ascii, strict=True)
        ]
        encoded.write("".join(part for pair in zip(pieces, [*written, ""], strict=True) for part in pair), target)

    return DocumentContent([DocumentText(each) for each in strings], write)
