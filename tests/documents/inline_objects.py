"""Documents whose paragraphs consist of words, spaces, formatting and inline objects at random places.

Each format has a function that makes a document, and one that returns what a reader sees: the characters of each
paragraph with their formatting, and the objects between them, in order.
"""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lxml import etree

_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_A = "http://schemas.openxmlformats.org/drawingml/2006/main"
_P = "http://schemas.openxmlformats.org/presentationml/2006/main"
_TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
_OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
_TYPES = "http://schemas.openxmlformats.org/package/2006/content-types"
_NUM_PARAGRAPHS = 12
Seen = list[Any]


class _Maker:
    """Makes the content of paragraphs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._count = 0

    def number(self) -> int:
        self._count += 1
        return self._count

    def words(self) -> str:
        """Return words, most of them separated by one space. They begin with a space, so that no words are glued."""
        spaces = [" ", " ", " ", "  ", "     "]
        words = [self.random.choice(["one", "Two", "three,", "four.", "x", "12", "&lt;five"]) for _ in range(3)]
        parts = [part for word in words[: self.random.randint(1, 3)] for part in (word, self.random.choice(spaces))]
        start, end = self.random.choice([" ", " ", "  "]), self.random.choice(["", "", " ", "  "])
        return start + "".join(parts[:-1]) + end

    def some(self, makers: list[Callable[[], str]], most: int) -> str:
        return "".join(self.random.choice(makers)() for _ in range(self.random.randint(1, most)))


def _package(path: Path, files: dict[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def _types(name: str, content_type: str) -> str:
    return f'<Types xmlns="{_TYPES}"><Override PartName="/{name}" ContentType="{content_type}"/></Types>'


def make_docx(seed: int, path: Path) -> None:
    make = _Maker(seed)
    choose = make.random.choice
    space = '<w:r><w:t xml:space="preserve"> </w:t></w:r>'

    def run() -> str:
        properties = choose(["", "", "<w:rPr><w:b/></w:rPr>", "<w:rPr><w:i/></w:rPr>", "<w:rPr><w:u/></w:rPr>"])
        contents = [
            lambda: f'<w:t xml:space="preserve">{make.words()}</w:t>',
            lambda: f'<w:t xml:space="preserve">{make.words()}</w:t>',
            lambda: f'<w:t xml:space="preserve">{choose([" ", "   "])}</w:t>',
            lambda: choose(["<w:tab/>", "<w:br/>", "<w:cr/>", "<w:noBreakHyphen/>", '<w:footnoteReference w:id="2"/>']),
        ]
        return f"<w:r>{properties}{make.some(contents, 3)}</w:r>"

    def runs() -> str:
        return make.some([run], 2)

    def mark() -> str:
        number = make.number()
        return (
            f'<w:bookmarkStart w:id="{number}" w:name="b{number}"/>{content()}<w:bookmarkEnd w:id="{number}"/>'
            if make.random.random() < 0.7
            else f'<w:bookmarkStart w:id="{number}" w:name="b{number}"/>'
        )

    def content() -> str:
        return make.some(
            [
                run,
                run,
                run,
                lambda: f'<w:hyperlink w:anchor="a{make.number()}">{runs()}</w:hyperlink>',
                lambda: f'<w:ins w:id="{make.number()}">{runs()}</w:ins>',
                lambda: f'<w:del w:id="{make.number()}"><w:r><w:delText>old</w:delText></w:r></w:del>',
                lambda: '<w:proofErr w:type="spellStart"/>',
                lambda: f"{space}<w:fldSimple w:instr='PAGE {make.number()}'><w:r><w:t>7</w:t></w:r></w:fldSimple>",
            ],
            4,
        )

    _write_docx([make.some([content, mark], 3) for _ in range(_NUM_PARAGRAPHS)], path)


def _write_docx(paragraphs: list[str], path: Path) -> None:
    body = "".join(f"<w:p>{content}</w:p>" for content in paragraphs)
    main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    document = f'<w:document xmlns:w="{_W}"><w:body>{body}</w:body></w:document>'
    _package(path, {"[Content_Types].xml": _types("word/document.xml", main), "word/document.xml": document})


def make_pptx(seed: int, path: Path) -> None:
    make = _Maker(seed)

    def run() -> str:
        properties = make.random.choice(["", "", '<a:rPr b="1"/>', '<a:rPr i="1"/>'])
        words = make.words() + make.random.choice(["", "", "\t" + make.words()])
        return f"<a:r>{properties}<a:t>{make.random.choice([words, words, words, '   '])}</a:t></a:r>"

    def field() -> str:
        return f'<a:r><a:t> </a:t></a:r><a:fld id="{make.number()}" type="slidenum"><a:t>7</a:t></a:fld>'

    makers = [run, run, run, lambda: "<a:br/>", field]
    _write_pptx([make.some(makers, 6) for _ in range(_NUM_PARAGRAPHS)], path)


def _write_pptx(paragraphs: list[str], path: Path) -> None:
    body = "".join(f"<a:p>{content}<a:endParaRPr/></a:p>" for content in paragraphs)
    base = "application/vnd.openxmlformats-officedocument.presentationml"
    types = (
        f'<Types xmlns="{_TYPES}"><Override PartName="/p.xml" ContentType="{base}.presentation.main+xml"/>'
        f'<Override PartName="/slide1.xml" ContentType="{base}.slide+xml"/></Types>'
    )
    slide = f'<p:sld xmlns:p="{_P}" xmlns:a="{_A}"><p:txBody>{body}</p:txBody></p:sld>'
    _package(path, {"[Content_Types].xml": types, "p.xml": f'<p:presentation xmlns:p="{_P}"/>', "slide1.xml": slide})


def make_odt(seed: int, path: Path) -> None:
    make = _Maker(seed)

    def words() -> str:  # white space of a text is one space
        return " ".join(["", *make.words().split(), ""][: make.random.randint(3, 9)])

    def mark() -> str:
        number = make.number()
        start = f'<text:bookmark-start text:name="b{number}"/>'
        return f'{start}{content()}<text:bookmark-end text:name="b{number}"/>' if make.random.random() < 0.7 else start

    def content() -> str:
        return make.some(
            [
                words,
                words,
                words,
                lambda: f'<text:s text:c="{make.random.randint(1, 4)}"/>',
                lambda: make.random.choice(["<text:tab/>", "<text:line-break/>", "<text:soft-page-break/>"]),
                lambda: f'<text:span text:style-name="S{make.number()}">{words()}{content()}</text:span>',
                lambda: f'<text:bookmark text:name="m{make.number()}"/>',
                lambda: f' <text:page-number text:n="{make.number()}">7</text:page-number>',
            ],
            4,
        )

    _write_odt([make.some([content, mark], 3) for _ in range(_NUM_PARAGRAPHS)], path)


def _write_odt(paragraphs: list[str], path: Path) -> None:
    body = "".join(f"<text:p>{content}</text:p>" for content in paragraphs)
    text = (
        f'<office:document-content xmlns:office="{_OFFICE}" xmlns:text="{_TEXT}"><office:body><office:text>{body}'
        "</office:text></office:body></office:document-content>"
    )
    files = {"mimetype": "application/vnd.oasis.opendocument.text", "META-INF/manifest.xml": "<m/>"}
    _package(path, files | {"content.xml": text})


def make_xliff(seed: int, path: Path) -> None:
    make = _Maker(seed)
    is_first = seed % 2 == 0
    g, x, start, end = (
        ("g", "x", '<bx id="{0}" rid="r{0}"/>', '<ex id="{0}" rid="r{0}"/>')
        if is_first
        else ("pc", "ph", '<sc id="{0}"/>', '<ec startRef="{0}"/>')
    )
    line_break = 'ctype="lb"' if is_first else 'equiv="LINE_BREAK"'

    def mark() -> str:
        number = make.number()
        return start.format(number) + content() + (end.format(number) if make.random.random() < 0.7 else "")

    def content() -> str:
        return make.some(
            [
                make.words,
                make.words,
                make.words,
                lambda: make.random.choice(["\n", "\n  ", "\t"]),
                lambda: f'<{x} id="{make.number()}" {line_break}/>',
                lambda: f'<{x} id="{make.number()}"/>',
                lambda: f'<{g} id="{make.number()}">{make.words()}{content()}</{g}>',
            ],
            4,
        )

    _write_xliff([make.some([content, mark], 3) for _ in range(_NUM_PARAGRAPHS)], path, is_first=is_first)


def _write_xliff(sources: list[str], path: Path, *, is_first: bool = True) -> None:
    form = (
        '<trans-unit id="{0}"{1}><source>{2}</source></trans-unit>'
        if is_first
        else '<unit id="{0}"{1}><segment><source>{2}</source></segment></unit>'
    )
    spaces = (' xml:space="preserve"', "")
    units = "".join(form.format(number, spaces[number % 2], source) for number, source in enumerate(sources))
    namespace = f"urn:oasis:names:tc:xliff:document:{'1.2' if is_first else '2.0'}"
    body = f"<file><body>{units}</body></file>" if is_first else f'<file id="f">{units}</file>'
    path.write_text(f'<xliff xmlns="{namespace}" version="{namespace[-3:]}">{body}</xliff>')


def make_one(name: str, content: str, path: Path) -> None:
    """Write a document with one paragraph."""
    writers: dict[str, Callable[[list[str], Path], None]] = {
        "docx": _write_docx,
        "pptx": _write_pptx,
        "odt": _write_odt,
        "xliff": _write_xliff,
    }
    writers[name]([content], path)


MAKERS: dict[str, Callable[[int, Path], None]] = {
    "docx": make_docx,
    "odt": make_odt,
    "pptx": make_pptx,
    "xliff": make_xliff,
}
_FILES = {"docx": ("word/document.xml", "{*}p"), "odt": ("content.xml", "{*}p"), "pptx": ("slide1.xml", "{*}p")}
_CHARACTERS = {"noBreakHyphen": "\u2011"}


def seen(path: Path, *, after: bool) -> list[Seen]:
    """Return what a reader sees of each paragraph, or for XLIFF of each source, or of each target (``after``)."""
    if path.suffix == ".xliff":
        root = etree.parse(path).getroot()
        return [_joined(_inside(unit)) for unit in root.iter("{*}target" if after else "{*}source")]
    file, name = _FILES[path.suffix[1:]]
    with zipfile.ZipFile(path) as archive:
        root = etree.fromstring(archive.read(file))
    return [
        _joined(_office(paragraph, b"") if file != "content.xml" else _inside(paragraph))
        for paragraph in root.iter(name)
    ]


def _joined(items: Iterator[Any]) -> Seen:
    """Return objects, and characters with their formatting; the formatting of spaces does not count."""
    return [(item[0], b"") if isinstance(item, tuple) and item[0] == " " else item for item in items]


def _inside(element: etree._Element) -> Iterator[Any]:
    yield from element.text or ""
    for child in element:
        yield ("begin", etree.QName(child).localname, sorted(child.attrib.items()))
        yield from _inside(child)
        yield "end"
        yield from child.tail or ""


def _office(parent: etree._Element, formatting: bytes) -> Iterator[Any]:
    for child in parent:
        name = etree.QName(child).localname
        if name in ("proofErr", "rPr", "pPr", "endParaRPr"):
            continue
        if name == "r":
            properties = child.find("{*}rPr")
            yield from _office(child, b"" if properties is None else etree.tostring(properties, method="c14n"))
        elif name in ("t", "noBreakHyphen"):
            for character in _CHARACTERS.get(name, child.text or ""):
                yield character if character == "\t" else (character, formatting)
        else:
            yield ("begin", name, sorted(child.attrib.items()))
            yield from _office(child, formatting)
            yield "end"
