"""Inline objects at random places: nothing moves, no words are glued together, and white space is kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from inline_objects import MAKERS, make_one, seen
from upper_case import UpperCaseTranslator

from headway.documents import translate_document


@pytest.mark.parametrize(
    ("identity", "seeds"),
    [
        pytest.param(False, range(1), id="few"),
        pytest.param(False, range(100, 150), id="many", marks=pytest.mark.slow),
        pytest.param(True, range(200, 230), id="unchanged", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", MAKERS)
def test_objects_spaces_and_formatting_keep_their_places(
    name: str, identity: bool, seeds: range, tmp_path: Path
) -> None:
    for seed in seeds:
        source, target = tmp_path / f"{seed}.{name}", tmp_path / f"{seed}-out.{name}"
        MAKERS[name](seed, source)
        translate_document(UpperCaseTranslator(identity=identity), source, target)
        before, after = seen(source, after=False), seen(target, after=True)
        assert len(after) == len(before)
        for number, (paragraph, translation) in enumerate(zip(before, after, strict=True)):
            assert translation == (paragraph if identity else [_upper(item) for item in paragraph]), (seed, number)


def _upper(item: Any) -> Any:
    if isinstance(item, tuple) and len(item) == 2:
        return item[0].upper(), item[1]
    return item.upper() if isinstance(item, str) and item != "end" else item


BOLD, ITALIC = "<w:rPr><w:b/></w:rPr>", "<w:rPr><w:i/></w:rPr>"


def _run(text: str, properties: str = "") -> str:
    return f'<w:r>{properties}<w:t xml:space="preserve">{text}</w:t></w:r>'


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("odt", "for<text:s/>the <text:span>two</text:span>", ["for the two"]),
        ("odt", 'a <text:s text:c="3"/>b', ["a b"]),
        ("odt", '<text:bookmark-start text:name="x"/>a<text:tab/>b<text:bookmark-end text:name="x"/> c', ["a", "b c"]),
        ("odt", "<text:span>a<text:line-break/>b</text:span> c", ["a", "b", " c"]),
        ("docx", _run("Name:", BOLD) + _run("  ") + _run("John", ITALIC), ["Name: John"]),
        ("docx", _run("    one   two ") + _run("three   four", BOLD), ["one two three four"]),
        ("docx", _run("    one   two &lt; three"), ["one two < three"]),
        ("docx", _run("Name:      John"), ["Name: John"]),
        ("docx", '<w:bookmarkStart w:id="1"/>' + _run("a") + "<w:r><w:tab/></w:r>" + _run("b c")
         + '<w:bookmarkEnd w:id="1"/>', ["a", "b c"]),
        ("xliff", 'one<x id="1" ctype="lb"/>two', ["one", "two"]),
        ("xliff", 'one<x id="LINE_BREAK" equiv-text="&lt;br/&gt;"/>two', ["one", "two"]),
        ("xliff", 'one<x id="1" equiv-text="&amp;nbsp;"/>two', ["one two"]),
        ("xliff", '<g id="1">one<x id="1" ctype="lb"/>two</g> three', ["one", "two", " three"]),
        ("xliff", "one  two\nthree <x id='1'/>four", ["one  two", "three four"]),
        ("xliff", 'a <bpt id="1"/>one\n  two<ept id="1"/>', ["a one", "two"]),
        ("xliff", '{n, plural,\n  one {<g id="1">#</g> day}\n  other {# days}}', ["# day", "# days"]),
        ("pptx", "<a:r><a:t>one</a:t></a:r><a:br/><a:r><a:t>two\tthree</a:t></a:r>", ["one", "two", "three"]),
    ],
)  # fmt: skip
def test_white_space_separates_the_words_that_a_model_reads(
    name: str, content: str, texts: list[str], tmp_path: Path
) -> None:
    source, target = tmp_path / f"a.{name}", tmp_path / f"b.{name}"
    make_one(name, content, source)
    translator = UpperCaseTranslator()
    translate_document(translator, source, target)
    assert translator.texts == texts
    if "plural" not in content:
        before, after = seen(source, after=False), seen(target, after=True)
        assert [list(map(_upper, paragraph)) for paragraph in before] == after


def test_a_line_break_of_xliff_1_is_found_by_its_code(tmp_path: Path) -> None:
    source, target = tmp_path / "a.xliff", tmp_path / "b.xliff"
    make_one("xliff", 'one<ph id="1">&lt;br /&gt;</ph>two', source)
    translate_document(UpperCaseTranslator(), source, target)
    assert '>ONE<ph id="1">&lt;br /&gt;</ph>TWO</target>' in target.read_text()


def test_line_breaks_of_xliff_2_are_found_by_their_names_and_by_what_they_stand_for(tmp_path: Path) -> None:
    codes = ['equiv="LINE_BREAK"', 'type="fmt" subType="xlf:lb"', 'disp="&lt;br/&gt;"', 'dataRef="d"']
    units = "".join(
        f'<unit id="{code[:3]}"><originalData><data id="d">&lt;br&gt;</data></originalData><segment><source>one'
        f'<ph id="1" {code}/>two</source></segment></unit>'
        for code in codes
    )
    source, target = tmp_path / "a.xliff", tmp_path / "b.xliff"
    source.write_text(
        f'<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0"><file>{units}</file></xliff>'
    )
    translate_document(UpperCaseTranslator(), source, target)
    assert re.findall("<target>(.*?)</target>", target.read_text()) == [f'ONE<ph id="1" {code}/>TWO' for code in codes]
