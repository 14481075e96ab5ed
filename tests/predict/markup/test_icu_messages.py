"""ICU messages: which arguments are found, what the model reads, and how literal text is written."""

from __future__ import annotations

import random

import pytest
from marked_texts import copied
from pyicumessageformat import Parser

from headway.predict.markup.html import MarkupOptions, parse_markup
from headway.predict.markup.icu_messages import find_branching_arguments, make_literal_writer
from headway.predict.markup.placeholders import parse_plain_text


@pytest.mark.parametrize(
    ("text", "branches"),
    [
        ("{n, plural, =0 {no} one {# file} other {# files}}", ["no", "# file", "# files"]),
        ("{ n ,\tselectordinal ,offset:1\n one{#st}\nother{#th} }", ["#st", "#th"]),
        ("a {n,plural,offset : 2 other{x}} b {g, select, other {y}}", ["x", "y"]),
        ("{0, choice, 0#no files|1#one file|1<{0} files}", ["no files", "one file", "{0} files"]),
        ("{n, plural, other {'{'it''s}}", ["'{'it''s"]),
        ("{n, plural, other {{{n}} days}}", ["{{n}} days"]),
        ("{items.length, plural, other {x}}", ["x"]),
        ("l'{n, plural, other {x}}", ["x"]),  # the quotation does not end
        ("'{n, plural, other {x}}'", []),
        ("{n, plural, other {x}", []),
        ("{n, plural, other {x {}}", []),
        ("{n, plural, other x}", []),
        ("{n, plural}", []),
        ("{n, plural, }", []),
        ("{n, number, currency} {d, date, y} {a, b, c {d}}", []),
    ],
)
def test_which_branches_are_found(text: str, branches: list[str]) -> None:
    arguments = find_branching_arguments(text)
    assert [text[branch.start : branch.end] for argument in arguments for branch in argument.branches] == branches


def test_an_argument_with_too_many_levels_is_not_found() -> None:
    def nested(levels: int) -> str:
        return "{n, select, other {" * levels + "x" + "}}" * levels

    assert find_branching_arguments(nested(16))[0].start == 0
    assert find_branching_arguments(nested(17))[0].start > 0
    assert find_branching_arguments("{n, select, other {" * 2_000) == ()


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("{n, plural, one {# it''s '{n}'} other {l''eau}}", ["# it's {n}", "l'eau"]),
        ("l'eau {n, plural, other {# l'eau}}", ["# l'eau", "l'eau {n}"]),
        ("You {g, select, a {liked {b, select, c {her} other {his}}} other {saw} } photo",
         ["her", "his", "liked {b}", "saw", "You {g} photo"]),
        ("{n, plural, other {\n- # a\n- b\n}}", ["# a", "b"]),
        ("> [!NOTE]\n> {n, plural, other {# $x_1$ days}} :smile: left", ["# $x_1$ days", "{n} left"]),
        ("{n, plural, one {#} other {{n}}}", []),
    ],
)  # fmt: skip
def test_each_branch_is_a_text(text: str, read: list[str]) -> None:
    document = parse_plain_text(text)
    assert document is not None
    assert [segment.text for segment in document.segments] == read
    assert copied(document) == copied(document.without_placeholders()) == text


@pytest.mark.parametrize(
    ("text", "kind", "read"),
    [
        ("<p>{n, plural, one {<b>#</b> day} other {<b>#</b> days}} <i>left</i></p>", "html",
         ["# day", "# days", "{n} left"]),
        ('<img alt="{n, plural, other {# days}}" title="x"/>', "html", ["# days", "x"]),
        ("<b>{n, plural, other {a <br> b}}</b>", "html", ["a", "b"]),
        ("<code>{n, plural, other {a}}</code> b", "html", ["{n, plural, other {a}} b"]),
        ('{n, plural, other {<x id="1"/> a &lt; b}} <g id="2">c</g>', "xml", ["a < b", "{n} c"]),
        ("{n, plural, other {<b>#</b></i> a}}", "xml", ["# a"]),
    ],
)  # fmt: skip
def test_tags_in_branches_are_kept(text: str, kind: str, read: list[str]) -> None:
    options = MarkupOptions.parse({"kind": kind, "attributes": ("alt", "title")}, "options")
    document = parse_markup(text, options)
    assert [segment.text for segment in document.segments] == read
    assert copied(document) == copied(document.without_placeholders()) == text


def test_literal_text_is_written_so_that_an_independent_parser_reads_it() -> None:
    parser, draw = Parser(), random.Random(0)
    for doubles in (False, True):
        write = make_literal_writer("#", doubles=doubles)
        for _ in range(500):
            text = "".join(draw.choices("''{}#|a ", k=6))
            (argument,) = parser.parse(f"{{n, plural, other {{{write(text)}}}}}")
            assert "".join(argument["options"]["other"]) == text, (text, write(text))
