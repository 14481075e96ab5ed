"""Time grows with the length of a text only: in every regular expression, parser and splitter for users' texts."""

from __future__ import annotations

import ast
import importlib
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docx
import pytest
from hostile_texts import assert_linear, atoms, hostile_texts

import headway
from headway.documents import DocumentError, fill_document
from headway.predict.markup.markdown_dialects import find_constructs

PACKAGE = Path(headway.__file__).parent
READERS = ("bundle", "cli", "config", "data", "documents", "interop", "predict", "serve", "text")
METHODS = {"search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"}
# Patterns that cannot get such a text, and why.
EXCEPTIONS = {
    "headway.documents.json_strings._STRING": "the file was parsed as JSON before, so every string ends",
    "headway.text.sentences._LAST_WORDS": "it reads 80 characters",
    "headway.documents.gettext_catalog._STRINGS": "it divides strings that were matched before, so every string ends",
}
OPTIONAL = ("headway.serve.ray",)


def patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Yield each compiled pattern of the package with a method by which it is used, and the literal ones of `re`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE).with_suffix("")
        name = ".".join(["headway", *inside.parts]).removesuffix(".__init__")
        if inside.parts[0] not in READERS or name in OPTIONAL:
            continue
        source = path.read_text(encoding="utf-8")
        if not re.search(r"\bre\.", source):
            continue
        nodes = list(ast.walk(ast.parse(source)))
        used = [
            (part.id, node.attr)
            for node in nodes
            if isinstance(node, ast.Attribute) and node.attr in METHODS
            for part in ast.walk(node.value)
            if isinstance(part, ast.Name)
        ]
        for variable, value in vars(importlib.import_module(name)).items():
            if isinstance(value, re.Pattern) and f"{name}.{variable}" not in EXCEPTIONS:
                methods = {method for owner, method in used if owner == variable} or {"finditer"}
                yield from ((f"{name}.{variable}", value, method) for method in sorted(methods))
        for node in nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[ast.Constant(value=literal), *_]
                ) if method in METHODS:
                    yield f"{name}, line {node.lineno}", re.compile(literal, flags(node)), method


def flags(call: ast.Call) -> int:
    """Return the flags that are given to a function of `re`."""
    named = [node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute) and node.attr.isupper()]
    return sum(getattr(re, name) for name in named)


def runner(pattern: re.Pattern[Any], method: str) -> Callable[[str], object]:
    def run(text: str) -> object:
        subject: Any = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
        if method == "finditer":
            return sum(1 for _ in pattern.finditer(subject))
        if method in ("sub", "subn"):
            return getattr(pattern, method)(subject[:0], subject)
        return getattr(pattern, method)(subject)

    return run


def check_patterns(num_atoms: int, count: int) -> None:
    num_patterns, failures = 0, []
    for name, pattern, method in patterns():
        num_patterns += 1
        for text in hostile_texts(atoms(pattern)[:num_atoms], count):
            try:
                assert_linear(runner(pattern, method), text, f"{name}.{method}")
            except AssertionError as error:
                failures.append(str(error).partition("\n")[0])
                break
    assert not failures, "\n".join(failures)
    assert num_patterns > 60


def test_regular_expressions_take_linear_time() -> None:
    check_patterns(4, 3)


@pytest.mark.parametrize("beginning", ["export function", "import 'x'", "export default async", "export class a"])
@pytest.mark.parametrize("end", [".x", "(y", "y"])
def test_scripts_in_markdown_are_found_in_linear_time(beginning: str, end: str) -> None:
    assert_linear(find_constructs, lambda size: beginning + " " * (size - len(beginning)) + end, "find_constructs")


@pytest.mark.slow
def test_regular_expressions_take_linear_time_for_many_texts() -> None:
    check_patterns(60, 80)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"%[-+ 0#']*(?:\d+|\*)?[dxs]", "search"),
        (r"<meta\s[^>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", "search"),
        (r"<(?P<name>[A-Za-z][^\s>]*)(?:[^<>]++)*+>", "match"),
    ],
)
def test_the_check_finds_what_took_minutes(pattern: str, method: str) -> None:
    compiled = re.compile(pattern, re.DOTALL if method == "match" else 0)

    def check() -> None:
        for text in hostile_texts([*atoms(compiled), "0"], 300):
            assert_linear(runner(compiled, method), text, "pattern")

    with pytest.raises(AssertionError, match="for a size of"):
        check()


PARTS = {
    "html": [
        "<b>",
        "</b>",
        "<p>",
        "<",
        ">",
        "&amp;",
        "&",
        '"',
        "<!--",
        "<script>",
        "<a href='",
        " ",
        "a",
        "<br/>",
        "<td>",
    ],
    "json": ["a", " ", "<b>", "{n}", "{n, plural, ", "one {", "}", "|", "@:", "&copy;", "%s"],
    "md": ["*", "**", "_", "`", "[", "](", "]", "<b>", "|", "> ", "- ", "1. ", "#", "$", "\n", "a", " ", "~~~", "^"],
    "po": ["%", "0", "#", "<b>", "</b>", "a", " ", "d", "{n}", "\\n"],
    "srt": ["<i>", "</i>", "{\\\\", "}", "a", " ", "- ", ":", "A"],
    "txt": ["a", " ", "- ", "1. ", "\n", "{n}", "|", "http://", ".", "@", "_"],
}
FRAMES = {
    "po": '#, c-format\nmsgid "{}"\nmsgstr ""\n',
    "json": '{{"a": "{}"}}',
    "srt": "1\n00:00:01,000 --> 00:00:02,000\n{}\n",
}


def translated_as_it_is(folder: Path, extension: str) -> Callable[[str], object]:
    """Return a function that reads a document with a text, and writes it with its own texts as translations."""
    source, target = folder / f"a.{extension}", folder / f"b.{extension}"

    def run(text: str) -> object:
        source.write_text(FRAMES.get(extension, "{}").format(text), encoding="utf-8")
        return fill_document(lambda texts: [document_text.text for document_text in texts], source, target)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("extension", PARTS)
def test_documents_take_linear_time(extension: str, tmp_path: Path) -> None:
    run = translated_as_it_is(tmp_path, extension)
    for text in hostile_texts(PARTS[extension], 10):
        try:
            run(text(50))
        except DocumentError:  # it is no document of this format
            continue
        assert_linear(run, text, extension, size=1500, negligible_s=0.05)


def office(folder: Path, element: str) -> Callable[[str], object]:
    """Return a function that translates a Word document in whose paragraph an element is as often as a text is long."""
    original, source, target = (folder / f"{name}.docx" for name in ("original", "a", "b"))
    document = docx.Document()
    document.add_paragraph("one two")
    document.save(str(original))

    def run(text: str) -> object:
        with zipfile.ZipFile(original) as package, zipfile.ZipFile(source, "w") as changed:
            for name in package.namelist():
                data = package.read(name)
                if name == "word/document.xml":
                    data = data.replace(b"</w:p>", element.encode() * len(text) + b"</w:p>", 1)
                changed.writestr(name, data)
        return fill_document(lambda texts: [document_text.text for document_text in texts], source, target)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "element",
    [
        '<w:r><w:fldChar w:fldCharType="begin"/></w:r>',
        '<w:r><w:fldChar w:fldCharType="end"/></w:r>',
        '<w:bookmarkStart w:id="1" w:name="a"/>',
        '<w:bookmarkEnd w:id="1"/>',
        '<w:bookmarkStart w:id="1" w:name="a"/><w:r><w:t>a</w:t></w:r>',
    ],
    ids=["field", "end", "bookmark", "bookmark end", "bookmark and text"],
)
def test_paragraphs_take_linear_time(element: str, tmp_path: Path) -> None:
    run = office(tmp_path, element)
    assert_linear(run, lambda size: "x" * size, element, size=300, negligible_s=0.1)
