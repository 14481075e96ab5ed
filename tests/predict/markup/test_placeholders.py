"""Placeholders, Markdown, numbers and line breaks: what is found in a text, and what a translation must contain."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator

import pytest
from marked_texts import copied

from headway.predict.markup import placeholders
from headway.predict.markup.document import Document
from headway.predict.markup.placeholders import (
    count_placeholders,
    find_placeholders,
    keeps_placeholders,
    parse_plain_text,
    remove_placeholders,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hallo {name}, {0} {} {{x}} {{{y}}}!", ["{name}", "{0}", "{}", "{{x}}", "{{{y}}}"]),
        ("${z} %{w} #{v} {% if u %}.", ["${z}", "%{w}", "#{v}", "{% if u %}"]),
        ("%s, %d, %1$d, %-5.2f %(name)s", ["%s", "%d", "%1$d", "%-5.2f", "%(name)s"]),
        ("3 %(count)s, 5 ${x}, 5 %{y}, 7 %s, 8 %%", ["%(count)s", "${x}", "%{y}", "%s", "%%"]),
        ("%@ %ld %% %USER% $HOME", ["%@", "%ld", "%%", "%USER%", "$HOME"]),
        ("100%ige 50 %, 100% sicher, 5 $, a%b, 100%sicher, 5%-a", []),
        ("6%s, '5%d' 3%.1f 7%(n)s 8%", ["%s", "%d", "%.1f", "%(n)s"]),
        ("5%d", ["%d"]),
        ("&raquo; &copy &#8211 &#xBB;, &lt", ["&raquo;", "&copy", "&#8211", "&#xBB;", "&lt"]),
        ("AT&T, R&D, Q&A; a.de/?a=1&copy=2 &copyright & Co", []),
        (
            "{n, plural, =0 {keine} one {# Datei} other {# in {folder}}} weg",
            ["{n, plural, =0 {keine} one {# Datei} other {# in {folder}}}"],
        ),
        ("{n,\nselect,\na {A}\nother {B}\n}", ["{n,\nselect,\na {A}\nother {B}\n}"]),
        (
            "Siehe https://a.de/x_(y)?q=1&r=2#s, (www.b.de) oder http://c.de.",
            ["https://a.de/x_(y)?q=1&r=2#s", "www.b.de", "http://c.de"],
        ),
        ("an a.b+c@d-e.co.uk, mailto:f@g.de. @h", ["a.b+c@d-e.co.uk", "mailto:f@g.de"]),
        ("mit `code {x}` und ``a`b``", ["`code {x}`"]),
        ("Toll 🎉👍🏽 👨‍👩‍👧 🇩🇪 1️⃣ ❤️! 5 # * ‼", ["🎉👍🏽", "👨‍👩‍👧", "🇩🇪", "1️⃣", "❤️"]),
        ("nur #\ufe0f\u20e3", ["#\ufe0f\u20e3"]),
        ("Ein Satz. Noch einer: ja, nein! (a) [b] 1. 2,5 3/4 a_b a*b", []),
    ],
)
def test_what_is_found(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in find_placeholders(text)] == expected


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        ("Hallo {a}", "{a} hello", True),
        ("Hallo {a}", "hello", False),
        ("Hallo {a}", "{a} {a}", False),
        ("Hallo {a}", "{ a }", False),
        ("Hallo {a}", "{a} {b}", False),
        ("Hallo", "%s", False),
        ("1,000.5 km", "1.000,5 Kilometer", True),  # separators and units depend on the language
        ("1 000 km", "1000 km", True),
        ("5 km", "50 km", False),
        ("5 km", "5 km 5", False),
        ("٣ km", "3 km", True),  # so do digits
        ("5 km in 30 min, 1984", "in 30 minutes 5 km", True),  # a number without a unit may be written as a word
        ("30 % in $5", "$5 30%", True),
        ("3 Hunde", "three dogs", True),
    ],
)
def test_what_a_translation_must_contain(source: str, target: str, kept: bool) -> None:
    assert keeps_placeholders(source, target) is kept


def test_placeholders_that_the_source_does_not_have_are_removed() -> None:
    assert remove_placeholders("Hallo {a}", "Hello {b}{a} 🎉%s") == "Hello {a} "


def document_of(text: str) -> Document:
    document = parse_plain_text(text)
    assert document is not None
    return document


@pytest.mark.parametrize(
    ("text", "with_placeholders", "without"),
    [
        ("Hallo {name}, wie geht es?", "Hallo {name}, wie geht es?", "Hallo, wie geht es?"),
        ("Der Benutzer „{name}“ ist weg", "Der Benutzer „{name}“ ist weg", "Der Benutzer ist weg"),
        ("Toll 🎉!", "Toll!", "Toll!"),
        ("Das ist **sehr** *gut*", "Das ist sehr gut", "Das ist sehr gut"),
        ("Siehe [das Haus](https://a.de/b_c) dort", "Siehe das Haus dort", "Siehe das Haus dort"),
        ("5 km weit", "5 km weit", "weit"),
        ("a {x}{y} b", "a {x}{y} b", "a b"),
        ("# Titel", "Titel", "Titel"),
        ("- Hallo", "Hallo", "Hallo"),
        ("> - [ ] offen", "offen", "offen"),
        ("  eins\r\n\tzwei\n\n", "eins|zwei", "eins|zwei"),
        ("1. eins\n2. zwei", "eins|zwei", "eins|zwei"),
        ("| a | b c |\n|---|---|", "a|b c", "a|b c"),
        ("eins\n```\nzwei\n```\ndrei", "eins|drei", "eins|drei"),
        (
            "{n, plural,\n one {# Datei}\n other {# Dateien}\n} gelöscht",
            "# Datei|# Dateien|{n} gelöscht",
            "Datei|Dateien|gelöscht",
        ),
        ("{name}", "", ""),
        ("die Fläche $A = \\pi r^2$ ist gut", "die Fläche $A = \\pi r^2$ ist gut", "die Fläche ist gut"),
        ("mit \\(a_b\\) und $x_1$, $5 oder 6$", "mit \\(a_b\\) und $x_1$, $5 oder 6$", "mit und, oder"),
        ("eins\n$$\na_b *c*\n$$\nzwei", "eins|zwei", "eins|zwei"),
        ("> [!WARNING]\n> eins :smile: zwei", "eins zwei", "eins zwei"),
        ("> [!tip] eins\n:::note[zwei]\n:::", "eins|zwei", "eins|zwei"),
    ],
)
def test_what_the_model_reads(text: str, with_placeholders: str | None, without: str) -> None:
    document = document_of(text)
    if with_placeholders is not None:
        assert "|".join(segment.text for segment in document.segments) == with_placeholders
    bare = document.without_placeholders()
    assert "|".join(segment.text for segment in bare.segments) == without
    assert copied(document) == copied(bare) == text  # every mark, space and line break is back


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n",
        "Hallo",
        "  Hallo ",
        "a|b",
        "snake_case und a*b*c",
        "2 * 3 * 4",
        "[a] (b)",
        "1. Mai",
        "3 Hunde",
    ],
)
def test_texts_with_nothing_to_keep(text: str) -> None:
    assert parse_plain_text(text) is None


@pytest.mark.parametrize("text", ["%" + "0" * 100_000 + "!", "%" + "-" * 100_000, "%1." + "0" * 100_000 + "!"])
def test_a_long_number_after_a_percent_sign_takes_no_long_time(text: str) -> None:
    began = time.process_time()
    parse_plain_text(text)
    assert time.process_time() - began < 5


# Removing invented placeholders.

PIECES = [
    *re.findall(
        r"\S+",
        "{ } {a} {x} {{ }} %s %d % %% %a% %(n)s $ $x ` `c` `` a b x é 5 1\u00a0000 km www . .de http : // "
        "http://a.de @ a@b.c # #\u20e3 5\u20e3 * \u20e3 😀 \u200d 👍 🏽 🇩 🇪 "
        "\ufe0f € , plural {n,plural, one{ mailto: - + _ ( ) \" ' [ ] ! s",
    ),
    *(" ", "  ", "\n", "\u00a0"),
]


def removed_one_by_one(source: str, target: str) -> str:
    """Remove the first invented placeholder, and search the whole text again."""
    known = count_placeholders(source)
    while invented := [(start, end) for start, end in find_placeholders(target) if target[start:end] not in known]:
        start, end = invented[0]
        target = target[:start] + target[end:]
    return target


def test_a_placeholder_that_a_removal_forms_is_found_as_in_a_new_search() -> None:
    draw = random.Random(0)
    changed = 0
    for _ in range(2000):
        pieces = draw.sample(PIECES, draw.randint(2, 12))
        target = "".join(draw.choices(pieces, k=draw.randint(1, 30)))
        found = [target[start:end] for start, end in find_placeholders(target)]
        source = " ".join(draw.sample(found, len(found) // 2)) + "".join(draw.choices(pieces, k=3))
        expected = removed_one_by_one(source, target)
        assert remove_placeholders(source, target) == expected, (source, target)
        changed += expected != target
    assert changed > 1000


@pytest.mark.parametrize(
    "repeated", ["{x} w ", "{x}{y}", "{a}{x}", "%s", "%d%s", "5 {x} ", "😀%s", "`x` y ", "word " * 20 + "{x}"]
)
def test_the_characters_searched_are_proportional_to_the_text(repeated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self.pattern, self.characters = pattern, 0

        def finditer(self, text: str) -> Iterator[re.Match[str]]:
            return self.pattern.finditer(text)

        def search(self, text: str, position: int) -> re.Match[str] | None:
            match = self.pattern.search(text, position)
            self.characters += (match.end() if match else len(text)) - position
            return match

    counted = Counted(placeholders._PROTECTED)
    monkeypatch.setattr(placeholders, "_PROTECTED", counted)
    target = repeated * 300
    assert remove_placeholders("{a} %d 😀", target) != target
    assert len(target) <= counted.characters < 10 * len(target)
