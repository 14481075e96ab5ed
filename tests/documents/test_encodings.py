"""Text files that are not in UTF-8: what declares their encoding, and what the refusal says if nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest
from upper_case import UpperCaseTranslator

from headway.documents import DocumentError, translate_document
from headway.documents.encodings import likely_encodings
from headway.errors import ConfigError

_PO = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset={}\\n"\n\n#. {}\n#: a.c:1\nmsgid "{}"\nmsgstr ""\n'


@pytest.mark.parametrize(
    ("charset", "text"),
    [("windows-1251", "дом"), ("ISO-8859-1", "größe"), ("KOI8-R", "дом"), ("Shift_JIS", "a ソ b"), ("utf-8", "дом")],
)
def test_a_catalog_is_read_and_written_in_the_charset_of_its_header(charset: str, text: str, tmp_path: Path) -> None:
    source, target = tmp_path / "a.po", tmp_path / "b.po"
    content = _PO.format(charset, text, text)
    source.write_bytes(content.encode(charset))
    translate_document(UpperCaseTranslator(), source, target)
    expected = content.removesuffix('""\n') + f'"{text.upper()}"\n'
    assert target.read_bytes().decode(charset) == expected


def test_a_template_names_no_charset(tmp_path: Path) -> None:
    source, target = tmp_path / "a.pot", tmp_path / "b.pot"
    source.write_text(_PO.format("CHARSET", "é", "é"))
    translate_document(UpperCaseTranslator(), source, target)
    assert target.read_text().endswith('msgid "é"\nmsgstr "É"\n')


def test_an_unknown_charset_and_a_character_that_a_charset_lacks(tmp_path: Path) -> None:
    source = tmp_path / "a.po"
    source.write_text(_PO.format("nonsense", "x", "x"))
    with pytest.raises(DocumentError, match="declares the charset 'nonsense', which is unknown"):
        translate_document(UpperCaseTranslator(), source, tmp_path / "b.po")
    source.write_bytes(_PO.format("iso-8859-1", "x", "ÿ").encode("latin-1"))
    with pytest.raises(DocumentError, match="lacks the character 'Ÿ'"):
        translate_document(UpperCaseTranslator(), source, tmp_path / "b.po")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "größe"),
        ("a.md", "größe *größe*\n"),
        ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\ngröße\n"),
        ("a.html", "<p>größe</p>"),
        ("a.json", '{"a": "größe"}'),
        ("a.po", 'msgid "größe"\nmsgstr ""\n'),
    ],
)
def test_the_encoding_of_a_file_that_declares_none_can_be_named(name: str, content: str, tmp_path: Path) -> None:
    source, target = tmp_path / name, tmp_path / f"b{name[1:]}"
    source.write_bytes(content.encode("latin-1"))
    with pytest.raises(DocumentError, match=r"not valid UTF-8.*it may be windows-1252 .*; convert it to UTF-8$"):
        translate_document(UpperCaseTranslator(), source, target)
    translate_document(UpperCaseTranslator(), source, target, encoding="windows-1252")
    assert "GRÖSSE" in target.read_bytes().decode("latin-1")
    with pytest.raises(ConfigError, match="unknown encoding 'hex'"):
        translate_document(UpperCaseTranslator(), source, target, encoding="hex")


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("windows-1252", "Die größe Straße führt über Köln."),
        ("windows-1252", "El niño comió ¿qué? piñata"),
        ("windows-1251", "Привет, мир! Это Тест. ЗАГОЛОВОК"),
        ("koi8-r", "Привет, мир! Это Тест."),
        ("iso-8859-2", "Żółć gęślą jaźń, proszę."),
        ("windows-1253", "Καλημέρα κόσμε"),
        ("shift_jis", "これは日本語です。テスト"),
        ("gb18030", "这是一个测试，你好。"),
        ("big5", "這是一個測試"),
        ("utf-16-le", "hello"),
    ],
)
def test_likely_encodings_of_a_text(encoding: str, text: str) -> None:
    assert encoding in likely_encodings(text.encode(encoding))


def test_everything_but_the_translations_of_a_catalog_stays_character_by_character(tmp_path: Path) -> None:
    source, target = tmp_path / "a.po", tmp_path / "b.po"
    text = (
        '# first\n#, fuzzy\n#. second\nmsgid ""\nmsgstr ""\n"Plural-Forms: nplurals=3; plural=0;\\n"\n\n'
        'domain "one"\n\n#: a.c:1\n#. after a location\n#, c-format\n#| msgid "previous"\nmsgctxt "menu"\n'
        'msgid ""\n"open "\n"%s\\n"\nmsgstr ""\n\n#~ msgid "old"\n#~ msgstr "alt"\n\n'
        'domain "two"\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n'
        'msgid "done"\nmsgstr "fertig"\r\n\n  msgid "last"\nmsgstr ""'
    )
    source.write_bytes(text.encode())
    translate_document(UpperCaseTranslator(), source, target)
    expected = (
        text.replace('"%s\\n"\nmsgstr ""', '"%s\\n"\nmsgstr "OPEN %s\\n"')
        .replace('msgstr[0] ""\nmsgstr[1] ""\n', 'msgstr[0] "%d FILE"\nmsgstr[1] "%d FILES"\nmsgstr[2] "%d FILES"\n')
        .replace('msgid "last"\nmsgstr ""', 'msgid "last"\nmsgstr "LAST"')
    )
    assert target.read_bytes().decode() == expected


@pytest.mark.parametrize(
    "text", ['msgid "a"\nmsgstr', 'msgstr "a"\nmsgid "b"\n', 'msgid "a\nmsgstr ""\n', '"a"\nmsgid "b"\n']
)
def test_a_catalog_that_is_not_valid_is_refused_with_the_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.po").write_text(text)
    with pytest.raises(DocumentError, match=r"not a valid PO file \(line \d"):
        translate_document(UpperCaseTranslator(), tmp_path / "a.po", tmp_path / "b.po")
