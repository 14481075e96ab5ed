"""What each format keeps, on documents written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import docx
import pytest
from docx.oxml import parse_xml
from upper_case import UpperCaseTranslator

from headway.documents import DocumentError, DocumentText, fill_document, read_document, translate_document
from headway.documents.formats import FORMATS

Translate = Callable[..., str]
_W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


@pytest.fixture
def upper(tmp_path: Path) -> Translate:
    """Return a function that translates a document into upper case."""

    def translate(text: str | bytes, extension: str) -> str:
        source, target = tmp_path / f"a.{extension}", tmp_path / f"b.{extension}"
        source.write_bytes(text.encode() if isinstance(text, str) else text)
        translate_document(UpperCaseTranslator(), source, target)
        return target.read_bytes().decode("latin-1" if isinstance(text, bytes) else "utf-8")

    return translate


def test_a_wrapped_paragraph_is_one_text_and_is_wrapped_again_at_its_width(tmp_path: Path) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "b.txt"
    width = len("  - The first line of this item is as long as possible,")
    source.write_text(
        "Title\n=====\n\n  - The first line of this item is as long as possible,\n"
        "    the second line is indented, and\n"
        "\n    Name:  Ada\n    City:  Bern\n"
    )
    texts: list[DocumentText] = []

    def twice(batch: Any) -> list[str]:
        texts.extend(batch)
        return [f"{text.text} {text.text}" for text in batch]

    fill_document(twice, source, target)
    assert [text.text for text in texts] == [
        "Title",
        "- The first line of this item is as long as possible, the second line is indented, and",
        "Name:  Ada",
        "City:  Bern",
    ]
    lines = target.read_text().splitlines()
    assert lines[:4] == ["Title Title", "=====", "", "  - The first line of this item is as long as possible,"]
    assert all(len(line) <= width for line in lines)
    assert lines[4].startswith("    the second line is indented, and - ")
    assert lines[-2:] == ["    Name:  Ada Name:  Ada", "    City:  Bern City:  Bern"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_the_byte_order_mark_and_the_encoding_are_kept(encoding: str, tmp_path: Path) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_bytes("größe\r\n".encode(encoding))
    translate_document(UpperCaseTranslator(), source, target)
    assert target.read_bytes() == "GRÖSSE\r\n".encode(encoding)


def test_html_keeps_what_browsers_do_not_show_and_translates_attributes(upper: Translate) -> None:
    page = (
        '<!doctype html><title>a b</title><style>p {}</style><p title="the \'title\'">one <b class="x">two</b>'
        " &amp; three<br>four <code>five()</code></p><p translate=no>six</p><!-- seven --><img alt='eight'>"
    )
    expected = (
        '<!doctype html><title>A B</title><style>p {}</style><p title="THE \'TITLE\'">ONE <b class="x">TWO</b>'
        " &amp; THREE<br>FOUR <code>five()</code></p><p translate=no>six</p><!-- seven --><img alt='EIGHT'>"
    )
    assert upper(page, "html") == expected


def test_html_in_another_encoding_stays_in_it(upper: Translate) -> None:
    page = '<meta charset="iso-8859-1"><p>größe</p>'.encode("latin-1")
    assert upper(page, "html") == '<meta charset="iso-8859-1"><p>GRÖSSE</p>'


def test_markdown_constructs(upper: Translate) -> None:
    text = (
        '# one *two* #\n\nthree **four _five_** `six` [seven](a.md "b") ![eight](c.png) <https://d.e> 2 \\* 3 &amp; 4\n'
        "* nine  \n  ten <u>eleven</u>[^f]\n\n| one | `a\\|b` |\n|---|---|\n| x_y | **two** |\n\n"
        "    code\n\n[^f]: twelve words\n"
    )
    expected = (
        '# ONE *TWO* #\n\nTHREE **FOUR _FIVE_** `six` [SEVEN](a.md "b") ![EIGHT](c.png) <https://d.e> 2 \\* 3 &amp; 4\n'
        "* NINE  \n  TEN <u>ELEVEN</u>[^f]\n\n| ONE | `a\\|b` |\n|---|---|\n| X_Y | **TWO** |\n\n"
        "    code\n\n[^f]: TWELVE WORDS\n"
    )
    assert upper(text, "md") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("> | one | two |\n> |---|---|\n> | three | four |\n", "> | ONE | TWO |\n> |---|---|\n> | THREE | FOUR |\n"),
        ("- | one | two |\n  |---|---|\n  | three | four |\n", "- | ONE | TWO |\n  |---|---|\n  | THREE | FOUR |\n"),
        ("> one | two\n> ---|---\n> three | four\n", "> ONE | TWO\n> ---|---\n> THREE | FOUR\n"),
        (
            "| a<br>b | c |\n|---|---|\n| d | <b>e<br>f</b> |\n",
            "| A<br>B | C |\n|---|---|\n| D | <b>E<br>F</b> |\n",
        ),
        ("- [x] done\n- [ ] not yet\n", "- [x] DONE\n- [ ] NOT YET\n"),
        ("[x] done\n", "[X] DONE\n"),
    ],
)
def test_markdown_tables_breaks_and_tasks(upper: Translate, text: str, expected: str) -> None:
    assert upper(text, "md") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"the area $A = \pi r^2$, $x_1$, \(a_b\), $$c_d$$, $5 or 6$",
         r"THE AREA $A = \pi r^2$, $x_1$, \(a_b\), $$c_d$$, $5 OR 6$"),
        ("one\n$$\na_b *c*\n- d\n$$\ntwo\n", "ONE\n$$\na_b *c*\n- d\n$$\nTWO\n"),
        ("- one\n\n  \\[\n  a_b\n  \\]\n\n  two\n", "- ONE\n\n  \\[\n  a_b\n  \\]\n\n  TWO\n"),
        ("\\begin{align}\na\n\\end{align}\n", "\\begin{align}\na\n\\end{align}\n"),
        (r"\(no formula\) \[neither\]", r"\(NO FORMULA\) \[NEITHER\]"),
        ("> [!WARNING]\n> one\n> two\n", "> [!WARNING]\n> ONE\n> TWO\n"),
        ("> [!tip]- one\n> two\n", "> [!tip]- ONE\n> TWO\n"),
        ("| <ul><li>one</li><li>two</li></ul> | - three<br>- a\\|b |\n|---|---|\n| `c\\|d` | 1. x<br/>2. **y** |\n",
         "| <ul><li>ONE</li><li>TWO</li></ul> | - THREE<br>- A\\|B |\n|---|---|\n| `c\\|d` | 1. X<br/>2. **Y** |\n"),
        (":::note\none\n:::\n\n:::tip[two]\n\n:::: warning three\n\n::: {.box}\nfour\n",
         ":::note\nONE\n:::\n\n:::tip[TWO]\n\n:::: warning THREE\n\n::: {.box}\nFOUR\n"),
        ('!!! warning "one"\n    two\n\n    - three\n\n??? note\n\n    four\n\n=== "five"\n\n    six\n',
         '!!! warning "ONE"\n    TWO\n\n    - THREE\n\n??? note\n\n    FOUR\n\n=== "FIVE"\n\n    SIX\n'),
        ("import A from '@x/A';\nimport {b,\n  c} from 'd';\n\nexport const e = () => {\n\n f()\n}\n\none {/*b*/}\n",
         "import A from '@x/A';\nimport {b,\n  c} from 'd';\n\nexport const e = () => {\n\n f()\n}\n\nONE {/*b*/}\n"),
        ("import the data first\n", "IMPORT THE DATA FIRST\n"),
        ("import 'data.csv' as a table\n", "IMPORT 'DATA.CSV' AS A TABLE\n"),
        ("export default settings\n\nexport class names\n", "EXPORT DEFAULT SETTINGS\n\nEXPORT CLASS NAMES\n"),
        ("export default Layout;\n\none\n", "export default Layout;\n\nONE\n"),
        ("export default ({a}) => <div>{a}</div>\n\none\n", "export default ({a}) => <div>{a}</div>\n\nONE\n"),
        ("!!! Read this carefully\n\none\n", "!!! READ THIS CAREFULLY\n\nONE\n"),
        ("!!! my-type other\n    one\n\n!!! warning\ntwo\n", "!!! my-type other\n    ONE\n\n!!! warning\nTWO\n"),
        ('one <Tabs a={[{b: ["c"]}]} d="e">two</Tabs>\n', 'ONE <Tabs a={[{b: ["c"]}]} d="e">TWO</Tabs>\n'),
        ('see <b style={{color: "red"}}>one</b>\n\na <b {c}\n', 'SEE <b style={{color: "red"}}>ONE</b>\n\nA <B {c}\n'),
        ("see [one]({{ site.url }}/a/b) {% if c %}two{% endif %}\n",
         "SEE [ONE]({{ site.url }}/a/b) {% if c %}TWO{% endif %}\n"),
        ("{% raw %}\none\n{% endraw %}\n{{< figure\n  src=\"a\" >}}\n",
         "{% raw %}\nONE\n{% endraw %}\n{{< figure\n  src=\"a\" >}}\n"),
        ("a lone \\ here, C:\\dir, \\* and d\\\n", "A LONE \\ HERE, C:\\DIR, \\* AND D\\\n"),
        ("# one {#two .three}\n\n![four](a.png){width=5%} :smile: 10:30:40\n\n[TOC]\n",
         "# ONE {#two .three}\n\n![FOUR](a.png){width=5%} :smile: 10:30:40\n\n[TOC]\n"),
        ("`$a` one $b_c$ `d$`\n\n```\n:::note\n$$\n```\n\ntwo\n",
         "`$a` ONE $b_c$ `d$`\n\n```\n:::note\n$$\n```\n\nTWO\n"),
        ("one {n, plural, one {**#** day} other {**#** days}}\n",
         "ONE {n, plural, one {**#** DAY} other {**#** DAYS}}\n"),
    ],
)  # fmt: skip
def test_dialects_of_markdown_are_kept(upper: Translate, text: str, expected: str) -> None:
    assert upper(text, "md") == expected
    assert upper(text.replace("\n", "\r\n"), "md") == expected.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("![Figure 1: Profit &amp; loss](a.png)\n", "![FIGURE 1: PROFIT &amp; LOSS](a.png)\n"),
        ("![My\\_screen\\_shot](a.png)\n", "![MY\\_SCREEN\\_SHOT](a.png)\n"),
        ("See ![the `x` and `y`](d.png)\n", "SEE ![THE `x` AND `y`](d.png)\n"),
        ("See ![a [link](x.md) inside](y.png).\n", "SEE ![A [LINK](x.md) INSIDE](y.png).\n"),
        ("![foo\\\nbar](/url)\n", "![FOO\nBAR](/url)\n"),
    ],
)
def test_markup_in_the_description_of_a_picture(upper: Translate, text: str, expected: str) -> None:
    assert upper(text, "md") == expected


@pytest.mark.parametrize(
    ("text", "translation", "expected"),
    [
        ("This is _very_ good.\n", '这是<g id="0">非常</g>好的', "这是*非常*好的\n"),
        ("This is _very_ good.\n", '<g id="0">Sehr</g> gut', "_Sehr_ gut\n"),
        ("`a` and `b`\n", '<keep id="0">a</keep><keep id="1">b</keep>', "`a` `b`\n"),
        ("* one\n  * two\n", "  eins", "* eins\n  * eins\n"),
    ],
)
def test_marks_of_markdown_still_work_in_the_translation(
    text: str, translation: str, expected: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "a.md", tmp_path / "b.md"
    source.write_text(text)
    fill_document(lambda batch: [translation] * len(batch), source, target)
    assert target.read_text() == expected


@pytest.mark.parametrize(
    ("extension", "text"),
    [
        ("txt", "2020-01-01\n(030) 555-1234\n1.2.3\n"),
        ("md", "2020-01-01\n\n| 1.2.3 | 978-3-16 |\n|---|---|\n"),
        ("srt", "1\n00:00:01,000 --> 00:00:02,000\n2020-01-01\n"),
        ("json", '{"a": "2020-01-01", "b": 3}'),
        ("po", 'msgid "1.2.3"\nmsgstr ""\n'),
    ],
)
def test_text_without_words_stays(extension: str, text: str, tmp_path: Path) -> None:
    source, target = tmp_path / f"a.{extension}", tmp_path / f"b.{extension}"
    source.write_text(text)
    assert fill_document(lambda batch: ["x"] * len(batch), source, target) == 0
    assert target.read_text() == text


@pytest.mark.parametrize(
    ("extension", "text", "expected"),
    [
        ("md", "**one** [two](u) ~~three~~ <b>four</b> x\n", "[two](u)   x\n"),
        ("json", '{"a": "<b>one</b> <a>two</a> <i>three</i> <s>four</s> x"}', '{"a": " <a>two</a>   x"}'),
    ],
)
def test_emphasis_without_words_is_left_out_and_links_keep_their_words(
    extension: str, text: str, expected: str, tmp_path: Path
) -> None:
    source, target = tmp_path / f"a.{extension}", tmp_path / f"b.{extension}"
    source.write_text(text)
    empty = " ".join(f'<g id="{number}"></g>' for number in range(4))
    fill_document(lambda batch: [f"{empty} x"] * len(batch), source, target)
    assert target.read_text() == expected


@pytest.mark.parametrize("text", ["Compute 5 * 3, but \\*hello there\\* is text.\n", "snake_case and \\_private\\_\n"])
def test_escaped_characters_do_not_become_emphasis(text: str, tmp_path: Path) -> None:
    import markdown_it

    source, target = tmp_path / "a.md", tmp_path / "b.md"
    source.write_text(text)
    translate_document(UpperCaseTranslator(identity=True), source, target)
    render = markdown_it.MarkdownIt("commonmark").render
    assert render(target.read_text()) == render(text)


def test_subtitles_without_an_empty_line_between_cues(upper: Translate) -> None:
    srt = "1\n00:00:01,000 --> 00:00:02,000\nhello there\n2\n00:00:03,000 --> 00:00:04,000\nwe go\n"
    assert upper(srt, "srt") == srt.replace("hello there", "HELLO THERE").replace("we go", "WE GO")


@pytest.mark.parametrize("name", ["iso-8859-1", "us-ascii", "windows-1252"])
def test_html_in_latin_1_is_read_as_browsers_read_it(name: str, tmp_path: Path) -> None:
    source, target = tmp_path / "a.html", tmp_path / "b.html"
    source.write_bytes(f'<meta charset="{name}"><p>'.encode() + b"it\x92s \x93a\x94</p>")
    translator = UpperCaseTranslator()
    translate_document(translator, source, target)
    assert translator.texts == ["it’s “a”"]
    assert target.read_bytes().endswith(b"<p>IT\x92S \x93A\x94</p>")


@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [("gb2312", "gb18030", "镕"), ("shift_jis", "cp932", "①髙"), ("euc-kr", "cp949", "똠방")],
)
def test_labels_stand_for_larger_encodings(label: str, encoding: str, text: str, tmp_path: Path) -> None:
    source, target = tmp_path / "a.html", tmp_path / "b.html"
    source.write_bytes(f'<meta charset="{label}"><p>{text} a</p>'.encode(encoding))
    translate_document(UpperCaseTranslator(), source, target)
    assert target.read_bytes() == f'<meta charset="{label}"><p>{text} A</p>'.encode(encoding)


@pytest.mark.parametrize("name", ["hex", "rot13", "unicode_escape", "undefined", "nonsense"])
def test_html_in_what_is_no_encoding_is_refused(name: str, tmp_path: Path) -> None:
    source = tmp_path / "a.html"
    source.write_bytes(f'<meta charset="{name}"><p>a b</p>'.encode())
    with pytest.raises(DocumentError, match="which is unknown"):
        translate_document(UpperCaseTranslator(), source, tmp_path / "b.html")


@pytest.mark.parametrize(
    "kept", ["<code>cd *x*</code>", "<kbd>Ctrl</kbd>", '<b translate="no">Acme <i>Co</i></b>', "<code>a\nb</code>"]
)
def test_elements_of_html_in_markdown_that_are_not_translated(upper: Translate, kept: str) -> None:
    expected = kept.replace("\n", " ")
    assert upper(f"one {kept} *two* <i>three</i>\n", "md").replace("\n", " ").strip() == (
        f"ONE {expected} *TWO* <i>THREE</i>"
    )


def test_a_translation_cannot_become_markdown_syntax(tmp_path: Path) -> None:
    source, target = tmp_path / "a.md", tmp_path / "b.md"
    source.write_text("one\n\ntwo\n\n| a | b |\n|---|---|\n| three | c |\n")
    new = {"one": "1. *x*", "two": "# y", "three": "a | b"}
    fill_document(lambda texts: [new.get(text.text, text.text) for text in texts], source, target)
    assert target.read_text() == "1\\. \\*x\\*\n\n\\# y\n\n| a | b |\n|---|---|\n| a \\| b | c |\n"


def test_subtitles_keep_times_tags_and_the_number_of_lines(upper: Translate) -> None:
    srt = (
        "1\n00:00:01,000 --> 00:00:02,000\n{\\an8}<i>a long first line\nshort</i>\n\n"
        "2\n00:00:03,000 --> 00:00:04,000\n- Who?\n- Me.\n"
    )
    expected = srt.replace("a long first line", "A LONG FIRST LINE").replace("short", "SHORT")
    assert upper(srt, "srt") == expected.replace("Who", "WHO").replace("Me", "ME")
    vtt = "WEBVTT\n\nNOTE no\n\nid\n00:01.000 --> 00:02.000 line:0\n<v Bob>hello <00:01.500>you &amp; me\n"
    assert upper(vtt, "vtt") == vtt.replace("hello", "HELLO").replace("you", "YOU").replace("me\n", "ME\n").replace(
        "id\n", "id\n"
    )


def test_a_subtitle_with_an_empty_line_goes_on_until_the_next_one(upper: Translate) -> None:
    text = (
        "1\n00:00:01,000 --> 00:00:02,000\n\none\n\ntwo\n\n2\n00:00:03,000 --> 00:00:04,000\nthree\n1984\n\n"
        "3\n00:00:05,000 --> 00:00:06,000\nfour\n"
    )
    expected = (
        "1\n00:00:01,000 --> 00:00:02,000\n\nONE\n\nTWO\n\n2\n00:00:03,000 --> 00:00:04,000\nTHREE\n1984\n\n"
        "3\n00:00:05,000 --> 00:00:06,000\nFOUR\n"
    )
    assert upper(text, "srt") == expected


@pytest.mark.parametrize(
    ("message", "flag", "expected"),
    [
        ("%dx%d pixels", "c-format", "%dX%d PIXELS"),
        ("%ds and %snumbers", "c-format", "%dS AND %sNUMBERS"),
        ("Usage: %s\\n  -h  help\\n", "c-format", "USAGE: %s\\n  -H  HELP\\n"),
        ("%(count)ddays, 100%% sure", "python-format", "%(count)dDAYS, 100%% SURE"),
        ("<b>bold</b> or <a href='x'>link</a><br/>", "", "<b>BOLD</b> OR <a href='x'>LINK</a><br/>"),
    ],
)
def test_messages_keep_tags_and_directives(upper: Translate, message: str, flag: str, expected: str) -> None:
    head = f"#, {flag}\n" if flag else ""
    found = upper(f'{head}msgid "{message}"\nmsgstr ""\n', "po").replace('"\n"', "")
    assert found.endswith(f'msgstr "{expected}"\n')


def test_po_keeps_translations_flags_contexts_and_fills_all_plural_forms(upper: Translate) -> None:
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nPlural-Forms: nplurals=3; plural=0;\\n"\n\n'
    po = (
        '#. note\n#: a.c:1\n#, c-format\nmsgctxt "menu"\nmsgid "open %s\\n"\nmsgstr ""\n\n'
        'msgid "done"\nmsgstr "fertig"\n\nmsgid "%d file"\nmsgid_plural "%d files"\n'
        'msgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] ""\n'
    )
    assert upper(header + po, "po") == header + (
        '#. note\n#: a.c:1\n#, c-format\nmsgctxt "menu"\nmsgid "open %s\\n"\nmsgstr "OPEN %s\\n"\n\n'
        'msgid "done"\nmsgstr "fertig"\n\nmsgid "%d file"\nmsgid_plural "%d files"\nmsgstr[0] "%d FILE"\n'
        'msgstr[1] "%d FILES"\nmsgstr[2] "%d FILES"\n'
    )


def test_xliff_marks_new_targets_and_keeps_approved_ones(upper: Translate) -> None:
    start = '<?xml version="1.0"?>\n<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2"><file><body>'
    unit = (
        '<trans-unit id="1"><source>one <bpt id="1">x</bpt>two<ept id="1">y</ept></source>{}<note>n</note></trans-unit>'
    )
    kept = '<trans-unit id="2" approved="yes"><source>three</source><target>drei</target></trans-unit>'
    translation = 'ONE <bpt id="1">x</bpt>TWO<ept id="1">y</ept>'
    target = f'<target state="translated" state-qualifier="mt-suggestion">{translation}</target>'
    end = "</body></file></xliff>\n"
    assert upper(start + unit.format("") + kept + end, "xlf") == start + unit.format(target) + kept + end


@pytest.mark.parametrize(
    ("datatype", "source", "expected"),
    [
        ("html", 'a &lt;b title="x y"&gt;c&lt;/b&gt; d', 'A &lt;b title="X Y"&gt;C&lt;/b&gt; D'),
        ("html", "<![CDATA[<p>a <i>b</i> &amp; c</p>]]>", "<![CDATA[<p>A <i>B</i> &amp; C</p>]]>"),
        ("plaintext", "a &lt; b", "A &lt; B"),
        ("html", "a b", "A B"),
        ("html", 'a&lt;br&gt;b <x id="1"/>&lt;b&gt;c&lt;/b&gt;', 'A&lt;br&gt;B <x id="1"/>&lt;b&gt;C&lt;/b&gt;'),
    ],
)
def test_html_as_text_of_xliff(upper: Translate, datatype: str, source: str, expected: str, tmp_path: Path) -> None:
    text = (
        '<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2" version="1.2"><file datatype="{}"><body>'
        '<trans-unit id="1"><source>{}</source></trans-unit></body></file></xliff>'
    )
    assert f">{expected}</target>" in upper(text.format(datatype, source), "xlf")
    (tmp_path / "a.xlf").write_text(text.format("plaintext", "a &lt;b&gt;c&lt;/b&gt;"))
    for syntax, texts in (("html", ["a c"]), ("plain", ["a <b>c</b>"])):
        translator = UpperCaseTranslator()
        translate_document(translator, tmp_path / "a.xlf", tmp_path / "b.xlf", text_syntax=syntax)  # type: ignore[arg-type]
        assert translator.texts == texts


@pytest.mark.parametrize("version", ["1.2", "2.0"])
def test_html_in_xliff_that_declares_none_is_detected(version: str, upper: Translate) -> None:
    start, end = {
        "1.2": ('<trans-unit id="1">', "</trans-unit>"),
        "2.0": ('<unit id="1"><segment>', "</segment></unit>"),
    }[version]
    units = [
        ('&lt;a href="x y"&gt;a&lt;/a&gt; b', '&lt;a href="x y"&gt;A&lt;/a&gt; B'),
        ("<![CDATA[<p>a<br/><code>b</code></p>]]>", "<![CDATA[<p>A<br/><code>b</code></p>]]>"),
        ('a &lt;b&gt;b <ph id="1"/> c&lt;/b&gt;', 'A &lt;b&gt;B <ph id="1"/> C&lt;/b&gt;'),
        ("&lt;i&gt;a&lt;/i&gt;\nb &lt;code&gt;c&lt;/code&gt;", "&lt;i&gt;A&lt;/i&gt;\nB &lt;code&gt;c&lt;/code&gt;"),
        ('<ph id="1"/> a &lt;code&gt;b&lt;/code&gt;', '<ph id="1"/> A &lt;code&gt;b&lt;/code&gt;'),
        ("a &lt; b, c &gt; d", "A &lt; B, C &gt; D"),
        ("a &lt;b and c", "A &lt;B AND C"),  # no tag
        ("<![CDATA[a & b]]>", "<![CDATA[A & B]]>"),
    ]
    body = "".join(f'{start}<source xml:space="preserve">{source}</source>{end}' for source, _ in units)
    written = upper(f'<xliff version="{version}"><file datatype="plaintext">{body}</file></xliff>', "xlf")
    for _, target in units:
        assert f">{target}</target>" in written


@pytest.mark.parametrize(
    "sources",
    [
        ["Use &lt;b&gt; for bold text"],
        ["Select &lt;name&gt;", "the &lt;b&gt;word&lt;/b&gt;", "&lt;file&gt; missing"],
        ["if a &lt;b and c&gt; d"],
        ["Enter &lt;input&gt; here"],
    ],
)
def test_xliff_about_tags_is_no_html(sources: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.xlf"
    units = "".join(f'<trans-unit id="1"><source>{source}</source></trans-unit>' for source in sources)
    path.write_text(f'<xliff version="1.2"><file>{units}</file></xliff>')
    content = read_document(path, FORMATS["xliff"])
    assert [text.syntax for text in content.texts] == ["plain"] * len(sources)


def test_xliff_2_segments(upper: Translate) -> None:
    text = (
        '<xliff xmlns="urn:oasis:names:tc:xliff:document:2.0" version="2.0" srcLang="en" trgLang="de"><file id="f">'
        '<unit id="u"><segment><source>one <ph id="1"/><pc id="2">two</pc></source></segment>'
        '<segment state="final"><source>three</source><target>drei</target></segment></unit>'
        '<unit id="v" translate="no"><segment><source>four</source></segment></unit></file></xliff>'
    )
    expected = text.replace("<segment>", '<segment state="translated">', 1).replace(
        "</source></segment>", '</source><target>ONE <ph id="1"/><pc id="2">TWO</pc></target></segment>', 1
    )
    assert upper(text, "xliff") == expected


def test_json_keeps_keys_numbers_and_layout(upper: Translate) -> None:
    text = '{ "a b" : "c d",\n\t"n": [1.50, null, "e \\"f\\"", "{{name}}", "\\u00e4 b"] }\n'
    assert upper(text, "json") == text.replace("c d", "C D").replace('e \\"f\\"', 'E \\"F\\"').replace(
        "\\u00e4 b", "\\u00c4 B"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'{"a": "no apples | one apple | {count} apples"}', r'{"a": "NO APPLES | ONE APPLE | {count} APPLES"}'),
        (r'{"a": "one|{n} apples", "b": "c|d"}', r'{"a": "ONE|{n} APPLES", "b": "C|D"}'),
        (r'{"a": "see @:menu.open and @.lower:(x)"}', r'{"a": "SEE @:menu.open AND @.lower:(x)"}'),
        (r'{"a": "see $t(common.ok, {\"n\": 1}) now"}', r'{"a": "SEE $t(common.ok, {\"n\": 1}) NOW"}'),
        (r'{"a": "&copy; me &lt; don&#39;t &amp; you"}', r'{"a": "&copy; ME &lt; DON&#39;T &amp; YOU"}'),
        (r'{"a": "\u003cb\u003ex\u003c\/b\u003e \/ größe"}', r'{"a": "\u003cb\u003eX\u003c\/b\u003e \/ GRÖSSE"}'),
        (r'{"a": "Home | About us"}', r'{"a": "HOME | ABOUT US"}'),
        (r'{"a": "{n, choice, 0#none | 1#one}"}', r'{"a": "{n, choice, 0#NONE | 1#ONE}"}'),
    ],
)
def test_json_keeps_separators_other_messages_entities_and_escapes(upper: Translate, text: str, expected: str) -> None:
    assert upper(text, "json") == expected


def test_plural_forms_are_separate_texts(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": "no apples|{n} apples", "b": "this or that"}')
    content = read_document(tmp_path / "a.json", FORMATS["json"])
    assert [text.text for text in content.texts] == ["no apples", "{n} apples", "this or that"]


def test_columns_of_plain_text_are_separate_texts(upper: Translate, tmp_path: Path) -> None:
    text = (
        "Name:\tAda\n12\tRed  house     last \t \n\n1.\tThe first line of this item is as long as possible,\n"
        "\tthe second line goes on, and on, and so on, and\n\tends.\n"
    )
    assert upper(text, "txt") == text.upper()
    content = read_document(tmp_path / "a.txt", FORMATS["txt"])
    assert [text.text for text in content.texts][:4] == ["Name:", "Ada", "Red  house", "last"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ann <ann.b@c.de> and <https://d.de/x> wrote", "ANN <ann.b@c.de> AND <https://d.de/x> WROTE"),
        ("up to 6%s of 7%1$s and 50% sure", "UP TO 6%s OF 7%1$s AND 50% SURE"),
    ],
)
def test_placeholders_in_brackets_and_after_numbers(upper: Translate, text: str, expected: str) -> None:
    assert upper(text, "txt") == expected


def test_html_entities_without_semicolons_are_read_as_browsers_do(upper: Translate) -> None:
    page = '<p>one &raquo two &copy <a href="?a=1&copy=2">x</a> AT&T</p>'
    assert upper(page, "html") == '<p>ONE » TWO © <a href="?a=1&copy=2">X</a> AT&T</p>'


@pytest.mark.parametrize(
    ("extension", "document"),
    [
        ("txt", "{}\n"),
        ("md", "# {}\n\n*{}*\n"),
        ("srt", "1\n00:00:01,000 --> 00:00:02,000\n{}\n"),
        ("json", '{{"a": "{}", "b": "<b>{}</b>"}}'),
        ("po", 'msgid "{}"\nmsgstr ""\n'),
        ("xliff", '<xliff version="1.2"><file><trans-unit id="1"><source>{}</source></trans-unit></file></xliff>'),
    ],
)
def test_entities_in_text_are_kept_with_and_without_semicolons(extension: str, document: str, upper: Translate) -> None:
    source, target = "one &raquo two &copy; 6%s&#8211 AT&T 5%d", "ONE &raquo TWO &copy; 6%s&#8211 AT&T 5%d"
    if extension == "xliff":
        source, target = (text.replace("&", "&amp;") for text in (source, target))
    written = upper(document.replace("{}", source).replace("{{", "{").replace("}}", "}"), extension)
    assert written.count(target) == document.count("{}")


def word_document(tmp_path: Path, body: str) -> Path:
    document = docx.Document()
    document.element.body.insert(0, parse_xml(f"<w:p {_W}>{body}</w:p>"))
    path = tmp_path / "a.docx"
    document.save(str(path))
    return path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (r"\aone", r"\aONE"),
        (r"caf\303\251 \x41 \101b", r"CAFÉ A AB"),
        (r"\033[1mone\033[0m two", r"\033[1mONE\033[0m TWO"),
        (r"one\x22two \\a", r"ONE\"TWO \\A"),
    ],
)
def test_escapes_of_c_in_catalogs(upper: Translate, source: str, expected: str) -> None:
    catalog = f'msgid "{source}"\nmsgstr ""\n'
    assert upper(catalog, "po") == f'msgid "{source}"\nmsgstr "{expected}"\n'


def test_control_characters_are_kept_in_messages(upper: Translate) -> None:
    assert upper(r'{"a": "\u001b[1mone\u001b[0m", "b": "<3 one <0>two</0>"}', "json") == (
        r'{"a": "\u001b[1mONE\u001b[0m", "b": "<3 ONE <0>TWO</0>"}'
    )


def translated_paragraph(tmp_path: Path, body: str) -> str:
    target = tmp_path / "b.docx"
    translate_document(UpperCaseTranslator(), word_document(tmp_path, body), target)
    element = docx.Document(str(target)).paragraphs[0]._p
    from lxml import etree

    xml: str = etree.tostring(element).decode()
    return xml[xml.index(">") + 1 : -len("</w:p>")].replace(' xml:space="preserve"', "")


def run(text: str, properties: str = "") -> str:
    return f"<w:r>{properties}<w:t>{text}</w:t></w:r>"


BOLD, ITALIC = "<w:rPr><w:b/></w:rPr>", "<w:rPr><w:i/></w:rPr>"
FOOTNOTE = '<w:r><w:footnoteReference w:id="2"/></w:r>'
FIELD = '<w:r><w:fldChar w:fldCharType="{}"/></w:r>'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (run("he") + "<w:proofErr w:type='spellStart'/>" + run("llo"), run("HELLO")),
        (run("one ") + run("two", BOLD) + run(" three"), run("ONE ") + run("TWO", BOLD) + run(" THREE")),
        (run("all bold", BOLD), run("ALL BOLD", BOLD)),
        ("<w:r><w:t>one <w:r><w:t>two</w:t></w:r> three</w:t></w:r>", run("ONE TWO THREE")),
        (run("one", BOLD) + run(" ") + run("two two", ITALIC), run("ONE", BOLD) + run(" ") + run("TWO TWO", ITALIC)),
        (run("one ", BOLD) + run("two two"), run("ONE ", BOLD) + run("TWO TWO")),
        (run("one") + FOOTNOTE + run(" ", BOLD) + run("two", ITALIC) + run(" ") + FOOTNOTE,
         run("ONE") + FOOTNOTE + run(" ", BOLD) + run("TWO", ITALIC) + run(" ") + FOOTNOTE),
        (run("a b ") + '<w:hyperlink w:anchor="x">' + run("link", ITALIC) + "</w:hyperlink>" + run(" c"),
         run("A B ") + '<w:hyperlink w:anchor="x">' + run("LINK", ITALIC) + "</w:hyperlink>" + run(" C")),
        (run("page ") + FIELD.format("begin") + "<w:r><w:instrText>PAGE</w:instrText></w:r>" + FIELD.format("separate")
         + run("kee") + FIELD.format("end") + run(" of it"),
         run("PAGE ") + FIELD.format("begin") + "<w:r><w:instrText>PAGE</w:instrText></w:r>" + FIELD.format("separate")
         + run("kee") + FIELD.format("end") + run(" OF IT")),
        ('<w:bookmarkStart w:id="1" w:name="x"/>' + run("one") + '<w:bookmarkEnd w:id="1"/>' + run(" two"),
         '<w:bookmarkStart w:id="1" w:name="x"/>' + run("ONE") + '<w:bookmarkEnd w:id="1"/>' + run(" TWO")),
        ('<w:bookmarkStart w:id="1" w:name="x"/>' + run("one") + '<w:bookmarkStart w:id="2" w:name="y"/>' + run(" two")
         + '<w:bookmarkEnd w:id="1"/>' + run(" three") + '<w:bookmarkEnd w:id="2"/>',
         '<w:bookmarkStart w:id="1" w:name="x"/>' + run("ONE") + '<w:bookmarkStart w:id="2" w:name="y"/>' + run(" TWO")
         + '<w:bookmarkEnd w:id="1"/>' + run(" THREE") + '<w:bookmarkEnd w:id="2"/>'),
        ('<w:r><w:t>one</w:t><w:tab/><w:t>two</w:t><w:br/></w:r>',
         run("ONE") + "<w:r><w:tab/></w:r>" + run("TWO") + "<w:r><w:br/></w:r>"),
    ],
)  # fmt: skip
def test_word_runs(body: str, expected: str, tmp_path: Path) -> None:
    assert translated_paragraph(tmp_path, body) == expected


def test_controls_whose_text_is_chosen_stay_and_others_keep_their_translation(tmp_path: Path) -> None:
    source, target = tmp_path / "a.docx", tmp_path / "b.docx"
    document = docx.Document()
    for properties, text in (("<w:dropDownList/>", "one of a list"), ('<w:dataBinding w:xpath="/a"/>', "a title")):
        control = (
            f"<w:sdt {_W}><w:sdtPr>{properties}</w:sdtPr><w:sdtContent><w:p><w:r><w:t>{text}</w:t></w:r></w:p>"
            "</w:sdtContent></w:sdt>"
        )
        document.element.body.insert(0, parse_xml(control))
    document.save(str(source))
    translate_document(UpperCaseTranslator(), source, target)
    body = docx.Document(str(target)).element.body
    assert [each.text for each in body.iter("{*}t")] == ["A TITLE", "one of a list"]
    assert not list(body.iter("{*}dataBinding"))


def test_text_in_a_text_box_and_around_it_is_translated(tmp_path: Path) -> None:
    box = f"<w:pict><w:txbxContent><w:p>{run('inside')}</w:p></w:txbxContent></w:pict>"
    expected = run("AROUND ") + f"<w:r>{box}</w:r>" + run("IT")
    assert translated_paragraph(tmp_path, run("around ") + f"<w:r>{box}</w:r>" + run("it")) == expected.replace(
        "inside", "INSIDE"
    )


def test_a_text_that_cannot_be_translated_stays_and_is_reported(tmp_path: Path) -> None:
    class Failing(UpperCaseTranslator):
        def translate_each(self, texts: Any, *arguments: Any, **keywords: Any) -> Any:
            found = super().translate_each(texts, *arguments, **keywords)
            return [
                DocumentError("no") if source.text == "two" else each for source, each in zip(texts, found, strict=True)
            ]

    (tmp_path / "a.txt").write_text("one\ntwo\n")
    report = translate_document(Failing(), tmp_path / "a.txt", tmp_path / "b.txt")
    assert (report.num_texts, len(report.errors)) == (2, 1)
    assert (tmp_path / "b.txt").read_text() == "ONE\ntwo\n"


def test_progress_is_reported_and_may_cancel(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    seen: list[tuple[int, int]] = []
    translate_document(
        UpperCaseTranslator(), tmp_path / "a.txt", tmp_path / "b.txt", progress=lambda *counts: seen.append(counts)
    )
    assert seen == [(0, 2), (2, 2)]

    def cancel(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        translate_document(UpperCaseTranslator(), tmp_path / "a.txt", tmp_path / "c.txt", progress=cancel)
    assert not (tmp_path / "c.txt").exists()


def test_a_translation_that_loses_a_tag_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    source = word_document(tmp_path, run("one ") + run("two", BOLD))
    with pytest.raises(DocumentError, match="inline tag"):
        fill_document(lambda texts: ["x"] * len(texts), source, tmp_path / "b.docx")
    assert not (tmp_path / "b.docx").exists()


def test_every_format_has_an_own_name_and_extension() -> None:
    extensions = [extension for each in FORMATS.values() for extension in each.extensions]
    assert len(extensions) == len(set(extensions))
    assert all(f".{name}" in each.extensions for name, each in FORMATS.items())
    assert callable(read_document)
