"""Marks and placeholders are put into the translation by alignment, whatever the translation and its alignment are."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marked_texts import aligned, copied, translated

from headway.predict.markup.document import Document, DocumentBuilder, Item, make_segment
from headway.predict.markup.html import MarkupOptions, parse_markup
from headway.predict.markup.mark_placement import AlignedText, link_words, render_document
from headway.predict.markup.placeholders import parse_plain_text

HTML = MarkupOptions(kind="html")

# The adjective and the noun change places.
RED_HOUSE = {"das": "la", "rote": "rouge", "Haus": "maison", "dort": "là"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("das <b>rote</b> Haus dort", "la maison <b>rouge</b> là"),
        ("das <b>rote</b> <i>Haus</i> dort", "la <i>maison</i> <b>rouge</b> là"),
        ("das <b>rote <i>Haus</i></b> dort", "la <b><i>maison</i> rouge</b> là"),
        ("<b>das rote</b> Haus dort", "<b>la</b> maison rouge là"),  # two equally good runs: the first
        ("<p><b>das rote Haus dort</b></p>", "<p><b>la maison rouge là</b></p>"),
        ("das r<b>ot</b>e Haus dort", "la maison <b>rouge</b> là"),
        ("das <b>rote </b><i>Haus </i>dort", "la <i>maison </i><b>rouge </b>là"),
        ("das<b> rote</b><i> Haus</i> dort", "la<i> maison</i><b> rouge</b> là"),
        ("das<b> rote <i>Haus </i></b>dort", "la<b> <i>maison </i>rouge </b>là"),
        ("das rote<b> Haus </b>dort", "la<b> maison </b>rouge là"),
        ("das <b>rote</b><i> Haus</i> dort", "la<i> maison</i> <b>rouge</b> là"),
        ("das rote Haus <i><b>dort </b></i><img src=x>", "la maison rouge <i><b>là </b></i><img src=x>"),
        ("<img src=x><i><b> das</b></i> rote Haus dort", "<img src=x><i><b> la</b></i> maison rouge là"),
        ("das <b>rote </b><img src=x>Haus dort", "la <img src=x>maison <b>rouge </b>là"),
        ("das <img src=x> rote Haus dort", "la maison <img src=x> rouge là"),
        ("das <img src=x>rote Haus dort", "la maison <img src=x>rouge là"),
        ("das rote<img src=x> Haus dort", "la maison rouge<img src=x> là"),
        ("das rote Haus <b></b>dort", "la maison rouge <b></b>là"),
        ("das rote Haus dort<br/>", "la maison rouge là<br/>"),
    ],
)
def test_inline_tags_follow_their_words(source: str, expected: str) -> None:
    assert translated(parse_markup(source, HTML), "la maison rouge là", RED_HOUSE) == expected


@pytest.mark.parametrize(
    ("source", "target", "pairs", "expected"),
    [
        ("ich 🎉 bin da", "I'm there", {"ich": "I", "bin": "' m", "da": "there"}, "🎉 I'm there"),
        ("ich will 🎉 nicht", "I don't want", {"ich": "I", "will": "want", "nicht": "' t"}, "I 🎉 don't want"),
        ("das 🎉 Wasser", "l’eau", {"das": "l", "Wasser": "eau"}, "🎉 l’eau"),
        ("the 🎉 mail", "die E-Mail", {"the": "die E", "mail": "Mail"}, "die 🎉 E-Mail"),
        ("um 🎉 halb drei", "at 2.30", {"um": "at", "halb": "30", "drei": "2"}, "at 🎉 2.30"),
        ("l'🎉eau", "l'acqua", {"l": "l", "eau": "acqua"}, "l'🎉acqua"),  # as in the source
    ],
)
def test_points_are_not_placed_inside_of_joined_words(
    source: str, target: str, pairs: dict[str, str], expected: str
) -> None:
    assert translated(parse_markup(source, HTML), target, pairs) == expected


@pytest.mark.parametrize(
    ("source", "target", "pairs", "expected"),
    [
        ("um 7:29 **PM**", "à 19:29", {"um": "à", "7": "19", "29": "29"}, "à **19:29**"),
        ("um 7:29 **PM**, ja", "à 19:29, oui", {"um": "à", "7": "19", "29": "29", "ja": "oui"}, "à **19:29**, oui"),
        ("[die](u) Taste hier", "touche ici", {"Taste": "touche", "hier": "ici"}, "[touche](u) ici"),
        ("ja, **so** doch.", "oui, si.", {"ja": "oui", "doch": "si"}, "oui, **si**."),
        ("ja **so**, doch", "oui, si", {"ja": "oui", "doch": "si"}, "**oui**, si"),
        ("das ~~x~~", "", {}, ""),
        ("**a** *b* c", "x", {"a": "x"}, "**x**"),
        ("**a** [b](u) c", "x", {"a": "x"}, "**x** [b](u)"),
        ("**[a](u)** b", "", {}, "[a](u)"),
        ("[**a**](u) b", "x", {"b": "x"}, "[**x**](u)"),
        ("**zu** sehr", "trop", {"zu": "trop", "sehr": "trop"}, "**trop**"),
    ],
)
def test_a_pair_without_a_counterpart_encloses_a_neighbor(
    source: str, target: str, pairs: dict[str, str], expected: str
) -> None:
    document = parse_plain_text(source)
    assert document is not None
    assert translated(document, target, pairs) == expected
    as_html = (("[", "<a href=u>"), ("](u)", "</a>"), ("**", "<b>"), ("~~", "<s>"), ("*", "<i>"))
    for mark, opening in as_html:
        closing = opening.replace("<", "</")
        source, expected = (
            text.replace(mark, opening)
            if mark in ("[", "](u)")
            else re.sub(rf"{re.escape(mark)}(.*?){re.escape(mark)}", rf"{opening}\1{closing}", text)
            for text in (source, expected)
        )
    assert translated(parse_markup(source, HTML), target, pairs) == expected


@pytest.mark.parametrize(
    "source",
    [
        "10 m<sup>2</sup> Haus",
        "das <i>rote 2<sup>31</sup></i>-1 Haus",
        "rote C<sub>2</sub>H<sub>5</sub>OH und C<sub>2</sub>",
        "das 1<sup><b>st</b></sup> Haus",
        "der <b>W</b>eltraum und <i>das <b>rote</b> Haus</i>es",
        "<b>Haus</b>es, <i>W</i>ald und <i>sehr <b>W</b>ald</i>",
    ],
)
def test_tags_inside_of_words_that_are_copied_stay_inside(source: str) -> None:
    assert copied(parse_markup(source, HTML)) == source


def test_tags_inside_of_words_follow_them_unless_they_change() -> None:
    document = parse_markup("rote 2<sup>31</sup> Haus", HTML)
    pairs = {"rote": "rouge", "231": "231", "Haus": "maison"}
    assert translated(document, "231 maison rouge", pairs) == "2<sup>31</sup> maison rouge"
    assert translated(document, "maison 232 rouge", pairs | {"231": "232"}) == "maison <sup>232</sup> rouge"


def test_an_outlier_in_the_alignment_does_not_widen_a_pair() -> None:
    """The attention aligns "the" at the start to "Haus". The sum over the whole run would be 1 - 3 + 1."""
    links = {"Hund": "dog", "sieht": "sees", "ein": "a", "Haus": "the house"}
    document = parse_markup("der Hund sieht ein <b>Haus</b>", HTML)
    found = translated(document, "the dog sees a house", links)
    assert found in ("<b>the</b> dog sees a house", "the dog sees a <b>house</b>")


@pytest.mark.parametrize(
    ("source", "target", "pairs", "expected"),
    [
        ("Hallo {name}, wie geht's?", "Hello, how is it?",
         {"Hallo": "Hello", "wie": "how"}, "Hello {name}, how is it?"),
        ("Ich habe {n} Briefe gelesen.", "I have read letters.",
         {"Ich": "I", "habe": "have", "Briefe": "letters", "gelesen": "read"}, "I have read {n} letters."),
        ("Öffne {file}.", "Open.", {"Öffne": "Open"}, "Open {file}."),
        ("Öffne „%s“!", "Open!", {"Öffne": "Open"}, "Open „%s“!"),
        ("Pfad =$x/ fehlt", "path = / is missing", {"Pfad": "path", "fehlt": "missing"}, "path =$x/ is missing"),
        ("%1$s öffnet", "opens", {"öffnet": "opens"}, "%1$s opens"),
        ("Das *rote* Haus", "la maison rouge", {"rote": "rouge", "Haus": "maison"}, "la maison *rouge*"),
        ("Siehe [das Haus](https://a.de/b_c).", "See the house.",
         {"Siehe": "See", "das": "the", "Haus": "house"}, "See [the house](https://a.de/b_c)."),
        ("Von {a} nach {b} fahren", "go from to", {"Von": "from", "nach": "to", "fahren": "go"}, "{b} go from {a} to"),
        ("eins {a} {b} zwei", "un deux", {"eins": "un", "zwei": "deux"}, "un {a} {b} deux"),
    ],
)  # fmt: skip
def test_removed_placeholders_stay_at_their_neighbors(
    source: str, target: str, pairs: dict[str, str], expected: str
) -> None:
    document = parse_plain_text(source)
    assert document is not None
    assert translated(document.without_placeholders(), target, pairs) == expected


@pytest.mark.parametrize(
    "source", ['Der Befehl "{x}" hilft', "Autor <a@b.de>", "setze --pfad=$x/ und '@{x}'", "a.%p.%n (siehe b)"]
)
def test_removed_placeholders_return_to_the_place_they_were_removed_from(source: str) -> None:
    document = parse_plain_text(source)
    assert document is not None
    assert copied(document.without_placeholders()) == source


def test_a_copied_placeholder_is_one_word_for_tags() -> None:
    """Tags never stand inside a placeholder, even if the alignment separates its parts."""
    document = parse_markup("<b>Datei</b> {name} <i>offen</i>", HTML)
    (segment,) = document.segments
    kept = segment.find_placeholders("open file {name}")
    assert kept == ((10, 16),)
    links = link_words(
        segment,
        "open file {name}",
        kept,
        ["Datei", " {", "name", "}", " offen"],
        ["open", " file", " {", "name", "}"],
        [(4, 0), (0, 1), (1, 2), (0, 3), (4, 4)],
    )
    assert render_document(document, [AlignedText("open file {name}", kept, links)]) == "<i>open</i> <b>file</b> {name}"


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("Datei <code>a&amp;b</code> &lt;", "file a&b <", "file <code>a&amp;b</code> &lt;"),  # written as in the source
        ("<code>rm</code> und <code>ls</code>", "ls and rm", "<code>ls</code> and <code>rm</code>"),
        ("nutze <code>a</code>", "use a", "use <code>a</code>"),
        ("nutze <code>a</code>", "use an axe", None),  # only whole words count
        ("nutze <code>a</code> a", "use a a", None),  # the text contains the code's text a second time
        ("nutze <code>ls</code>", "use ls ls", None),
    ],
)
def test_code_is_found_in_the_translation(source: str, target: str, expected: str | None) -> None:
    document = parse_markup(source, HTML)
    (segment,) = document.segments
    found = aligned(segment, target)
    assert (None if found is None else render_document(document, [found])) == expected


def test_without_an_alignment_marks_keep_their_relative_place() -> None:
    document = parse_markup("ein <b>zwei</b> drei vier", HTML)
    assert render_document(document, [AlignedText("one two three four")]) == "one <b>two</b> three four"


def test_a_segment_may_stay_as_it_is() -> None:
    document = parse_markup("<p>ein  <b>zwei &lt;</b></p><p>drei</p>", HTML)
    assert render_document(document, [None, AlignedText("three")]) == "<p>ein  <b>zwei &lt;</b></p><p>three</p>"


def test_words_are_found_in_tokens_of_any_tokenizer() -> None:
    source, target = make_segment([Item("text", ("das rote Haus",), "das rote Haus")]), "the red house."
    expected = frozenset({(0, 0), (1, 1), (2, 2), (2, 3)})
    for there in (
        ["the", " red", " hou", "se", "."],
        ["▁the", "▁red", "▁house", "."],
        ["the", "red", "hou@@", "se", "."],
    ):
        last = [(2, at) for at in range(2, len(there))]
        found = link_words(source, target, (), source.text.split(), there, [(0, 0), (1, 1), *last])
        assert found == expected


KINDS: st.SearchStrategy[list[str]] = st.recursive(
    st.sampled_from(["eins", "zwei", "Äpfel", "天", ".", ",", " ", "placeholder", "object"]).map(lambda kind: [kind]),
    lambda inner: st.lists(
        st.one_of(inner, inner.map(lambda kinds: ["open", *kinds, "close"])), max_size=5
    ).map(lambda lists: list(chain.from_iterable(lists))),
    max_leaves=14,
)  # fmt: skip


def numbered(kinds: list[str]) -> list[Item]:
    """Return items with unique names. Other kinds than those of marks are texts."""
    items: list[Item] = []
    opened: list[int] = []
    for number, kind in enumerate(kinds):
        name = f"⟦{number}⟧"
        if kind == "placeholder":
            items.append(Item("placeholder", (name,), name))
        elif kind == "object":
            items.append(Item("object", (name,)))
        elif kind == "open":
            opened.append(number)
            items.append(Item("open", (f"⟪{number}⟫",)))
        elif kind == "close":
            items.append(Item("close", (f"⟪/{opened.pop()}⟫",)))
        else:
            items.append(Item("text", (kind,), kind))
    return items


TARGETS = st.lists(st.sampled_from(["un", "deux", "天", " ", ".", "&"]), max_size=10)
LINKS = st.frozensets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12)


@given(kinds=KINDS, data=st.data(), keep=st.booleans())
@settings(max_examples=300)
def test_everything_occurs_once_and_pairs_stay_nested(kinds: list[str], data: st.DataObject, keep: bool) -> None:
    """Whatever the translation and its alignment are, and whether it copies the placeholders or lacks them."""
    items = numbered(kinds)
    builder = DocumentBuilder()
    pieces = builder.add_segment(items)
    document = Document(pieces, tuple(builder.segments))
    if not keep:
        document = document.without_placeholders()
    translations = []
    for segment in document.segments:
        names = [segment.text[each.start : each.end] for each in segment.placeholders]
        words = data.draw(st.permutations([*data.draw(TARGETS), *names]))
        translations.append(aligned(segment, "".join(words), data.draw(LINKS)))
    found = render_document(document, translations)
    opened: list[str] = []
    parents: dict[str, tuple[str, ...]] = {}
    for item in items:
        name = "".join(map(str, item.raw))
        if item.kind in ("placeholder", "object", "open", "close"):
            assert found.count(name) == 1
        if item.kind == "open":
            parents[name] = tuple(opened)
            opened.append(name)
        elif item.kind == "close":
            opened.pop()
    for name, around in parents.items():
        closing = name.replace("⟪", "⟪/")
        assert found.index(name) < found.index(closing)
        for outer in around:
            assert found.index(outer) < found.index(name)
            assert found.index(closing) < found.index(outer.replace("⟪", "⟪/"))
        for other in parents:
            if other not in around and name not in parents[other] and other != name:
                inside = found.index(name) < found.index(other) < found.index(closing)
                assert not inside, "two pairs side by side became nested"


ENCLOSED = ["eins", "<b>zwei</b>", "<s>drei</s>", "<a href=u>vier</a>", "<i>fünf <a href=u>sechs</a></i>", ",", "{x}"]


@given(parts=st.lists(st.sampled_from(ENCLOSED), max_size=8), data=st.data())
@settings(max_examples=100)
def test_no_pair_is_empty_whatever_the_translation_is(parts: list[str], data: st.DataObject) -> None:
    source = " ".join(parts)
    document = parse_markup(source, HTML).without_placeholders()
    found = render_document(
        document, [aligned(each, "".join(["un", *data.draw(TARGETS)]), data.draw(LINKS)) for each in document.segments]
    )
    assert not re.search(r"<(\w+)[^>]*>\s*(<\w+[^>]*></\w+>)*</\1>", found), found
    assert found.count("<a href=u>") == source.count("<a href=u>")
