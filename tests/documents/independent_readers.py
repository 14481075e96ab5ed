"""What readers that Headway does not use see of a document, as far as a translation must not change it.

All texts are in upper case, in which a document and its translation by ``UpperCaseTranslator`` are equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree


class _Tags(HTMLParser):
    """Collects the tags, the comments and the texts of a page. White space counts as browsers show it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []
        self._texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._end_text()
        self.found.append((tag, [(name, _shown(value or "")) for name, value in attrs]))

    def handle_endtag(self, tag: str) -> None:
        self._end_text()
        self.found.append(tag)

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    def handle_comment(self, data: str) -> None:
        self._end_text()
        self.found.append(("comment", data))

    def _end_text(self) -> None:
        if text := _shown("".join(self._texts)):
            self.found.append(("text", text))
        self._texts.clear()


def _shown(text: str) -> str:
    return " ".join(text.split()).upper()


def _page(text: str) -> list[Any]:
    tags = _Tags()
    tags.feed(text + "<end>")
    return tags.found


def _html(path: Path) -> list[Any]:
    return _page(path.read_text(encoding="utf-8"))


def _markdown(path: Path) -> list[Any]:
    from markdown_it import MarkdownIt

    text = path.read_text(encoding="utf-8")
    return _page(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text))


def _text(path: Path) -> list[str]:
    return [" ".join(block.split()).upper() for block in re.split(r"\n\s*\n", path.read_text(encoding="utf-8"))]


def _subtitles(path: Path) -> list[Any]:
    """Return the lines before the first text of each cue, and its text."""
    blocks = re.split(r"\r?\n\r?\n", path.read_bytes().decode().strip())
    found: list[Any] = []
    for block in blocks:
        lines = block.splitlines()
        at = next((number for number, line in enumerate(lines, start=1) if "-->" in line), len(lines))
        found.append((lines[:at], len(lines), " ".join(lines[at:]).upper()))
    return found


def _po(path: Path) -> list[Any]:
    from babel.messages.pofile import read_po

    with path.open("rb") as file:
        catalog = read_po(file)
    return [
        (message.id, message.context, sorted(message.flags), message.auto_comments, message.locations)
        for message in [*catalog, *catalog.obsolete.values()]
        if message.id
    ]


def _xliff(path: Path) -> list[Any]:
    """Return all elements but the targets, each of which must contain the elements of its source."""
    found: list[Any] = []

    def read(element: ElementTree.Element, parent: ElementTree.Element | None) -> None:
        name = element.tag.rpartition("}")[2]
        if name == "target":
            assert parent is not None
            source = next(each for each in parent if each.tag.endswith("}source"))
            assert _inner(element) == _inner(source)
            return
        attributes = {key: value for key, value in element.attrib.items() if key != "state"}
        found.append((name, attributes, (element.text or "").strip().upper()))
        for child in element:
            read(child, element)

    def _inner(element: ElementTree.Element) -> list[Any]:
        return [(each.tag, each.attrib) for each in element.iter() if each is not element] + [
            "".join(element.itertext()).upper()
        ]

    read(ElementTree.parse(path).getroot(), None)
    return found


def _json(path: Path) -> Any:
    def shown(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shown(each) for key, each in value.items()}
        if isinstance(value, list):
            return [shown(each) for each in value]
        return value.upper() if isinstance(value, str) else value

    return shown(json.loads(path.read_bytes()))


READERS: dict[str, Callable[[Path], Any]] = {
    "txt": _text,
    "html": _html,
    "md": _markdown,
    "srt": _subtitles,
    "vtt": _subtitles,
    "po": _po,
    "xliff": _xliff,
    "json": _json,
}
