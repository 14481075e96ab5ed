"""ICU messages in documents: an independent parser finds the same skeleton in the translation, with translated text."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from pyicumessageformat import Parser
from upper_case import UpperCaseTranslator

from headway.documents import translate_document

PARSER = Parser({"allow_tags": True, "tag_type": "tag", "strict_tags": False, "require_other": False})
TYPES = ("plural", "selectordinal", "select")


class MessageMaker:
    """Makes random messages with nested arguments, tags and quoted text."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def message(self) -> str:
        """Return a message that contains an argument with branches. Its tags are ``<b>``, ``</b>`` and ``<x/>``."""
        start, end = self._words(0, 2), self._words(0, 2)
        return f"{start}{self._argument(self._draw.randrange(3))} {end}"

    def _words(self, least: int, most: int) -> str:
        words = ["lune", "l'eau", "été,", "it''s", "night.", "'{KEPT}'", "{name}", "{when, date, ::dMMM}"]
        return "".join(f"{self._draw.choice(words)} " for _ in range(self._draw.randint(least, most)))

    def _branch(self, depth: int, number: str) -> str:
        parts: list[str] = []
        for _ in range(self._draw.randint(1, 3)):
            kind = self._draw.randrange(8)
            word = f"{number}tree{self._draw.choice(['', 's', '!'])}"
            if kind == 0 and depth:
                parts.append(self._argument(depth - 1))
            elif kind == 1:
                parts.append(f"<b>{word}</b> und")
            elif kind == 2:
                parts.append(f"<b>{self._words(1, 2)}{word}</b>")
            elif kind == 3:
                parts.append("sun <x/> sky")
            else:
                parts.append(self._words(1, 3) + word)
        space = self._draw.choice(["", "", " "])
        return space + " ".join(parts) + space

    def _argument(self, depth: int) -> str:
        kind = self._draw.choice(TYPES)
        number = "" if kind == "select" else "# "
        keys = ["male", "female", "other"] if kind == "select" else ["=0", "one", "few", "other"]
        offset = "offset:1 " if kind == "plural" and self._draw.random() < 0.3 else ""
        gap = self._draw.choice([" ", "\n  "])
        branches = gap.join(f"{key} {{{self._branch(depth, number)}}}" for key in keys[self._draw.randrange(2) :])
        return f"{{n{self._draw.randrange(3)}, {kind}, {offset}{branches}}}"


def skeleton(message: str, *, upper: bool = False) -> list[Any]:
    """Return what an independent parser finds in a message. White space beside tags and arguments is left out."""
    return tree(PARSER.parse(message), upper)


def tree(parts: list[Any], upper: bool) -> list[Any]:
    result: list[Any] = []
    for part in parts:
        if isinstance(part, dict):
            plain = {key: value for key, value in part.items() if key not in ("options", "contents")}
            options = {key: tree(value, upper) for key, value in part.get("options", {}).items()}
            result.append((plain, options, tree(part.get("contents", []), upper)))
        else:
            words = re.sub(r"\s+", " ", part.upper() if upper else part)
            if result and isinstance(result[-1], str):
                result[-1] += words
            else:
                result.append(words)
    return [part.replace(" ", "") if isinstance(part, str) else part for part in result]


def to_elements(message: str, pair: str, empty: str) -> str:
    numbers = iter(range(10_000))
    text = re.sub("<b>", lambda _: f'\0{pair} id="{next(numbers)}"\1', message)
    text = re.sub("<x/>", lambda _: f'\0{empty} id="x{next(numbers)}"/\1', text).replace("</b>", f"\0/{pair}\1")
    return escape(text, quote=False).replace("\0", "<").replace("\1", ">")


def from_elements(content: str) -> str:
    text = re.sub(r"<(?:g|pc) [^>]*>", "\0b\1", content)
    text = re.sub(r"</(?:g|pc)>", "\0/b\1", re.sub(r"<(?:x|ph|img) [^>]*>", "\0x/\1", text))
    return unescape(text).replace("\0", "<").replace("\1", ">")


def inner_xml(element: etree._Element) -> str:
    source = etree.tostring(element, encoding="unicode", with_tail=False)
    return re.sub(r' xmlns(?::\w+)?="[^"]*"', "", source).partition(">")[2].rpartition("<")[0]


def json_file(messages: list[str], path: Path) -> None:
    path.write_text(json.dumps(dict(enumerate(messages))), encoding="utf-8")


def json_messages(path: Path) -> list[str]:
    return list(json.loads(path.read_text(encoding="utf-8")).values())


def po_file(messages: list[str], path: Path) -> None:
    entries = [
        f'msgctxt {json.dumps(str(key))}\nmsgid {json.dumps(text, ensure_ascii=False)}\nmsgstr ""\n'
        for key, text in enumerate(messages)
    ]
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'
    path.write_text("\n".join([header, *entries]), encoding="utf-8")


def po_messages(path: Path) -> list[str]:
    from translate.storage.pypo import pofile

    return [str(unit.target) for unit in pofile.parsestring(path.read_bytes()).units if not unit.isheader()]


def xliff_1_file(messages: list[str], path: Path) -> None:
    units = "".join(
        f'<trans-unit id="{key}"><source>{to_elements(text, "g", "x")}</source></trans-unit>'
        for key, text in enumerate(messages)
    )
    path.write_text(
        '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" '
        f'datatype="plaintext" original="a"><body>{units}</body></file></xliff>',
        encoding="utf-8",
    )


def xliff_2_file(messages: list[str], path: Path) -> None:
    units = "".join(
        f'<unit id="{key}"><segment><source>{to_elements(text, "pc", "ph")}</source></segment></unit>'
        for key, text in enumerate(messages)
    )
    path.write_text(
        '<xliff version="2.0" srcLang="en" xmlns="urn:oasis:names:tc:xliff:document:2.0">'
        f'<file id="f">{units}</file></xliff>',
        encoding="utf-8",
    )


def xliff_messages(path: Path) -> list[str]:
    return [from_elements(inner_xml(target)) for target in etree.parse(path).iter("{*}target")]


def html_file(messages: list[str], path: Path) -> None:
    lines = "".join(
        f"<p>{escape(text, quote=False).replace('&lt;', '<').replace('&gt;', '>')}</p>\n" for text in messages
    )
    path.write_text(f"<html><body>{lines.replace('<x/>', '<img src=a>')}</body></html>", encoding="utf-8")


def html_messages(path: Path) -> list[str]:
    return [
        unescape(text).replace("<img src=a>", "<x/>")
        for text in re.findall("(?s)<p>(.*?)</p>", path.read_text(encoding="utf-8"))
    ]


FORMATS: dict[str, tuple[Callable[[list[str], Path], None], Callable[[Path], list[str]]]] = {
    "json": (json_file, json_messages),
    "po": (po_file, po_messages),
    "1.2.xliff": (xliff_1_file, xliff_messages),
    "2.0.xliff": (xliff_2_file, xliff_messages),
    "html": (html_file, html_messages),
}


@pytest.mark.parametrize("count", [5, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_the_skeleton_is_kept_and_branches_are_translated(name: str, count: int, tmp_path: Path) -> None:
    write, read = FORMATS[name]
    messages = [MessageMaker(seed).message() for seed in range(count)]
    source, target = tmp_path / f"a.{name}", tmp_path / f"b.{name}"
    write(messages, source)
    assert translate_document(UpperCaseTranslator(), source, target).errors == ()
    translations = read(target)
    assert len(translations) == count
    for message, translation in zip(messages, translations, strict=True):
        assert skeleton(translation) == skeleton(message, upper=True), (message, translation)


def test_line_breaks_do_not_separate_the_parts_of_a_message(tmp_path: Path) -> None:
    message = '{n, plural, one {<pc id="1">#</pc> lune} other {# <ph id="2" equiv="LINE_BREAK"/> lunes}}'
    unit = f'<unit id="u"><segment><source>{message}</source></segment></unit>'
    file = f'<file id="f">{unit}</file>'
    source, target = tmp_path / "a.xlf", tmp_path / "b.xlf"
    source.write_text(f'<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0">{file}</xliff>')
    translate_document(UpperCaseTranslator(), source, target)
    assert f"<target>{message.replace('lune', 'LUNE').replace('LUNEs', 'LUNES')}</target>" in target.read_text()


@pytest.mark.parametrize("line_break", ["  \n", "\\\n", "<br>\n"])
def test_a_visible_line_break_in_a_branch_does_not_end_the_message(tmp_path: Path, line_break: str) -> None:
    message = f"They {{n, plural, one {{# file{line_break}new}} other {{# files}}}} sent."
    source, target = tmp_path / "a.md", tmp_path / "b.md"
    source.write_text(f"{message}\n", encoding="utf-8")
    translate_document(UpperCaseTranslator(), source, target)
    words = re.sub(r"\s+", " ", target.read_text(encoding="utf-8").replace("<br>", " "))
    assert words.strip() == "THEY {n, plural, one {# FILE NEW} other {# FILES}} SENT."
