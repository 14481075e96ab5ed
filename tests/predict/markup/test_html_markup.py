"""HTML and XML: which parts are translated, and that tags, nesting and everything else stay as they are."""

from __future__ import annotations

import re
import time
from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hostile_texts import assert_linear
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_texts import aligned, copied

from headway.errors import ConfigError
from headway.predict.markup.document import Document
from headway.predict.markup.html import MarkupKind, MarkupOptions, _tokenize, parse_markup
from headway.predict.markup.mark_placement import AlignedText, render_document

HTML, XML = MarkupOptions(kind="html"), MarkupOptions(kind="xml")


def texts(source: str, options: MarkupOptions = HTML) -> list[str]:
    return [segment.text for segment in parse_markup(source, options).segments]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<p>eins</p> <p>zwei <b>drei</b></p>", ["eins", "zwei drei"]),
        ("eins<br>zwei<BR/>drei", ["eins", "zwei", "drei"]),
        ("<ul><li>eins<li>zwei</ul>", ["eins", "zwei"]),
        ("<b><p>eins</p>zwei</b>", ["eins", "zwei"]),  # an inline tag around a block separates, too
        ("eins\n   zwei&nbsp;&auml;&#x41;&lt;", ["eins zwei\u00a0äA<"]),
        ("<script>if (a<b) </p> c</script>eins<style>b{}</style>", ["eins"]),
        ("<pre>eins</pre><p translate=no>zwei</p><p class='x notranslate'>drei</p>vier", ["vier"]),
        ("<p translate='yes'>eins</p>", ["eins"]),
        ("nutze <code>ls</code> hier", ["nutze ls hier"]),
        ("nutze <code>" + "x " * 40 + "</code> hier", ["nutze hier"]),
        ("<!-- eins --><!DOCTYPE html><p>zwei<!-- drei --></p>", ["zwei"]),
        ("<td>12</td><td>...</td><td>5 km</td>", ["5 km"]),
        ("Hallo {name}<br>{x}", ["Hallo {name}"]),
        ("", []),
    ],
)
def test_segments_of_html(source: str, expected: list[str]) -> None:
    assert texts(source) == expected
    assert copied(parse_markup(source, HTML)).split() == source.replace("&auml;&#x41;", "äA").split()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["eins", "zwei drei", "vier"]),  # b stands beside text, so it is inline
        ({"outline_detection": False}, ["eins zwei drei vier"]),
        ({"outline_detection": False, "splitting_tags": ["b"]}, ["eins", "zwei", "drei", "vier"]),  # p around b, too
        ({"non_splitting_tags": ["p"]}, ["eins zwei drei", "vier"]),
        ({"ignore_tags": ["p"]}, ["vier"]),
        ({"ignore_tags": ["b"]}, ["eins", "zwei drei", "vier"]),  # read by the model, and kept
    ],
)
def test_segments_of_xml(options: dict[str, object], expected: list[str]) -> None:
    source = "<d><t><p>eins</p> <p>zwei <b>drei</b></p></t> <q>vier</q></d>"
    assert texts(source, MarkupOptions.model_validate({"kind": "xml", **options})) == expected


def test_attributes_are_translated_on_request() -> None:
    source = '<p title="Ein &quot;Titel&quot;">Das <img alt=\'Ein Bild\' src="x.png"> hier</p>'
    document = parse_markup(source, MarkupOptions(kind="html", attributes=("title", "alt")))
    assert [segment.text for segment in document.segments] == ['Ein "Titel"', "Ein Bild", "Das hier"]
    found = render_document(document, [AlignedText('A "title"'), AlignedText("it's a <pic>"), AlignedText("this here")])
    assert found == (
        '<p title="A &quot;title&quot;">this <img alt=\'it&#39;s a &lt;pic&gt;\' src="x.png"> here</p>'
    )  # fmt: skip
    assert texts(source) == ["Das hier"]


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("a &amp; b &lt;", "x & <y> &amp;", "x &amp; &lt;y&gt; &amp;amp;"),
        ("a & b", "x & y &lt;", "x & y &amp;lt;"),  # a bare & stays bare, unless an entity would result
        ("a < b > c", "x < y <z>", "x < y &lt;z>"),
        ("a&nbsp;b", "x\u00a0y", "x&nbsp;y"),
        ("a\u00a0b", "x\u00a0y", "x\u00a0y"),
    ],
)
def test_text_is_escaped_as_in_the_source(source: str, target: str, expected: str) -> None:
    document = parse_markup(source, HTML)
    assert render_document(document, [aligned(document.segments[0], target)]) == expected


@pytest.mark.parametrize(
    "source", ["a <b c", "</b> a", "<b a='x> b", "a &foo; b", "a &#0; b", "<1> a <", "<!-- a", "<b><i>a</b></i>"]
)
def test_invalid_markup_stays_as_it_is(source: str) -> None:
    assert copied(parse_markup(source, HTML)).replace("&lt;", "<").replace("&gt;", ">") == source


def test_unknown_kinds_and_keys() -> None:
    assert MarkupOptions.of("xml") == XML
    with pytest.raises(ConfigError, match="kind"):
        MarkupOptions.of("markdown")
    with pytest.raises(ConfigError, match="splitting_tags"):
        MarkupOptions.parse({"kind": "xml", "spliting_tags": ["b"]}, "options")


REPEATED = [
    *("<", "<b>", "</b>", "<b", '<b a="', "<b a='", "<!--", "<![CDATA[", "<?", "&", "&amp;", "{", "{a, plural, ", "`"),
    *("](", "[a](", "*a ", "_a *a", "](u)", "1 ", "1.", "%", "%s ", "{a} ", "http://", "a@", "a.", "|", "<b>a</b> "),
    *("a <x/>.", " ", "😀", "<i><b>", "<p>a</p>", "<code>a</code> b "),
]


@pytest.mark.slow
@pytest.mark.parametrize("unit", REPEATED)
def test_the_time_is_linear(unit: str) -> None:
    """Anyone may send any text. 100,000 characters take a second, instead of minutes."""
    options = MarkupOptions(kind="html", attributes=("title",))
    started = time.process_time()
    document = parse_markup((unit * 100_000)[:100_000] + "a", options)
    copied(document)
    render_document(document.without_placeholders(), [AlignedText("a") for _ in document.segments])
    assert time.process_time() - started < 15


@pytest.mark.slow
def test_the_time_of_many_pairs_around_one_word_is_linear() -> None:
    def render(document: Document) -> str:
        return render_document(document, [AlignedText("a") for _ in document.segments])

    assert_linear(render, lambda size: parse_markup("<b>a</b> " * (size // 9), HTML), "rendering", 25_000, 0.05)


TEXTS = st.lists(
    st.sampled_from([
        *("eins", "zwei", "Äpfel", "天", " ", " ", " ", ".", ",", "&amp;", "&foo;", "&nbsp;", "&", "<", ">", '"', "\n"),
        *("<b>", "</b>", "<i>", "</i>", "<p>", "</p>", "<br>", "<img src='a'>", "<x/>", "<code>", "</code>"),
        *("<span translate=no>", "</span>", "<!-- c -->", "<!--", "<a title='Ein Titel' href=\"b\">", "</a>"),
        *("{name}", "%s", "https://a.de/b", "a@b.de", "🎉", "**", "_", "`", "3 km", "- "),
    ]),
    max_size=16,
).map("".join)  # fmt: skip
TARGETS = st.lists(
    st.sampled_from(["un", "deux", "天", " ", ".", "&", "<", ">", "{name}", "{", "}", "<b>", "</b>", "&lt;", "%", "'"]),
    max_size=12,
).map("".join)
LINKS = st.frozensets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12)
OPTIONS = st.builds(
    MarkupOptions,
    kind=st.sampled_from(["html", "xml"]),
    attributes=st.sampled_from([(), ("title",)]),
    ignore_tags=st.sampled_from([(), ("i",)]),
    splitting_tags=st.sampled_from([(), ("b",)]),
    outline_detection=st.booleans(),
)


def tags(text: str, options: MarkupOptions) -> Counter[tuple[str, bool]]:
    return Counter((each.name, each.closing) for each in _tokenize(text, options.kind == "html") if each.kind == "tag")


@given(text=TEXTS, options=OPTIONS)
@settings(max_examples=80)
def test_tokens_are_the_text(text: str, options: MarkupOptions) -> None:
    assert "".join(each.raw for each in _tokenize(text, options.kind == "html")) == text


@given(text=TEXTS, options=OPTIONS, protect=st.booleans())
@settings(max_examples=80)
def test_a_translation_that_copies_changes_only_white_space_and_entities(
    text: str, options: MarkupOptions, protect: bool
) -> None:
    text = re.sub(r"(?<=\w)(?=[<&🎉])|(?<=[>;🎉])(?=\w)", " ", text)  # tags inside words move to their edges
    found = copied(parse_markup(text, options, protect=protect))

    def normalized(text: str) -> str:
        known = {"&gt;": ">", "&lt;": "<", "&amp;": "&", "&nbsp;": " "}
        return "".join(re.sub("&(gt|lt|amp|nbsp);", lambda match: known[match.group()], text).split())

    assert normalized(found) == normalized(text)


def test_a_comment_does_not_move_behind_the_start_of_one_without_an_end() -> None:
    text = "eins<!-- c --><i>zwei<!--</i>"
    document = parse_markup(text, MarkupOptions(kind="html"))
    assert render_document(document, [aligned(each, "un") for each in document.segments]) == "un<!-- c --><i>un<!--</i>"


def test_a_translation_does_not_end_an_unfinished_tag() -> None:
    document = parse_markup("eins<eins<>", HTML)
    filled = render_document(document, [aligned(segment, "<b>") for segment in document.segments])
    assert filled.count(">") == 0


@given(text=TEXTS, options=OPTIONS, data=st.data())
@settings(max_examples=80)
def test_tags_occur_once_in_any_text(text: str, options: MarkupOptions, data: st.DataObject) -> None:
    document = parse_markup(text, options)
    found = render_document(
        document, [aligned(each, data.draw(TARGETS), data.draw(LINKS)) for each in document.segments]
    )
    assert tags(found, options) == tags(text, options)


class _Tags(HTMLParser):
    """The standard library's parser, which is independent of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, ...]] = Counter()
        self.text = ""
        self._opened: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._opened.append(tag)
        self.elements[tuple(self._opened)] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self._opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(text: str) -> _Tags:
    parser = _Tags()
    parser.feed(text)
    parser.close()
    return parser


def names(text: str) -> Counter[tuple[str, ...]]:
    """Count the elements of well-formed XML, each with the names of the elements around it."""
    found: Counter[tuple[str, ...]] = Counter()

    def visit(element: ElementTree.Element, around: tuple[str, ...]) -> None:
        found[(*around, element.tag)] += 1
        for child in element:
            visit(child, (*around, element.tag))

    visit(ElementTree.fromstring(text), ())
    return found


def in_element(text: str, tag: str) -> str:
    return f"<{tag}>{text}</{tag}>"


WELL_FORMED: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(["eins ", "zwei ", "drei", " ", "&amp;", "{x}", "<x></x>"]),
    lambda inner: st.lists(
        st.one_of(inner, st.builds(in_element, inner, st.sampled_from(["cite", "abbr", "p"]))), max_size=4
    ).map("".join),
    max_leaves=12,
)  # fmt: skip


@given(text=WELL_FORMED, kind=st.sampled_from(["html", "xml"]), data=st.data())
@settings(max_examples=80)
def test_nesting_is_preserved_for_any_translation(text: str, kind: MarkupKind, data: st.DataObject) -> None:
    """Checked by the parsers of the standard library."""
    text = f"<a>{text}</a>"
    document = parse_markup(text, MarkupOptions(kind=kind))
    found = render_document(
        document, [aligned(each, data.draw(TARGETS), data.draw(LINKS)) for each in document.segments]
    )
    assert names(found) == names(text)
    assert parsed(found).elements == parsed(text).elements


@given(text=WELL_FORMED, data=st.data())
@settings(max_examples=80)
def test_without_tags_the_result_is_the_translation(text: str, data: st.DataObject) -> None:
    document = parse_markup(f"<a>{text}</a>", MarkupOptions(kind="xml", outline_detection=False), protect=False)
    if document.segments:
        (segment,) = document.segments
        assert segment.text == " ".join(parsed(text).text.split())
        target = data.draw(TARGETS)
        found = render_document(document, [aligned(segment, target, data.draw(LINKS))])
        assert "".join(parsed(found).text.split()) == "".join(target.split())
