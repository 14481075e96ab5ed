"""Translating texts with markup and placeholders: what is kept, what is translated again, and what never changes."""

from __future__ import annotations

import html
import random
import re
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.decode import DecodingOptions
from headway.errors import ConfigError, DataError
from headway.predict import Candidate, Source, TranslateOptions, Translation, Translator
from headway.predict.markup.placeholders import count_placeholders
from headway.predict.translation import call as call_module
from headway.predict.translation.marked_translation import MarkedTexts, TranslationUnit

Make = Callable[..., Translator]


class FakeModel:
    """Translates with a function, and remembers what it was asked."""

    def __init__(self, function: Callable[[str], str]) -> None:
        self._function = function
        self.calls: list[list[str]] = []
        self.aligned: list[str] = []

    def _translate(self, units: Sequence[TranslationUnit]) -> list[Translation]:
        texts = [unit.source.text for unit in units]
        self.calls.append(texts)
        self.aligned += [unit.source.text for unit in units if unit.needs_alignment]
        return [Translation(text, (Candidate(self._function(text), -1.0, -1.0, ("x",)),)) for text in texts]

    def translate(self, *texts: str, markup: str | None = None, protect: bool = True) -> list[str]:
        marked = MarkedTexts(texts, TranslateOptions(markup=markup, protect=protect), can_align=True)
        marked.store(marked.units, self._translate(marked.units))
        if retries := marked.prepare_retries():
            marked.store(retries, self._translate(retries))
        return [result.text if isinstance(result, Translation) else f"{result}" for result in marked.merge()]


def without(*unwanted: str) -> Callable[[str], str]:
    """Return a translator into upper case that leaves some strings out and keeps placeholders otherwise."""

    def translate(text: str) -> str:
        for each in unwanted:
            text = text.replace(each, "")
        return " ".join(word if "{" in word else word.upper() for word in text.split())

    return translate


def test_placeholders_that_the_model_copies_are_left_to_it() -> None:
    model = FakeModel(without())
    assert model.translate("ein {name} zwei", "drei") == ["EIN {name} ZWEI", "DREI"]
    assert model.calls == [["ein {name} zwei", "drei"]]
    assert not model.aligned


def test_placeholders_that_the_model_drops_are_put_back_by_alignment() -> None:
    model = FakeModel(without("{name}"))
    assert model.translate("ein {name} zwei", "drei") == ["EIN {name} ZWEI", "DREI"]
    assert model.calls == [["ein {name} zwei", "drei"], ["ein zwei"]]
    assert model.aligned == ["ein zwei"]


def test_only_the_segment_that_lacks_one_is_translated_again() -> None:
    model = FakeModel(without("{b}"))
    assert model.translate("eins {a}\nzwei {b}\r\n\n") == ["EINS {a}\nZWEI {b}\r\n\n"]
    assert model.calls == [["eins {a}", "zwei {b}"], ["zwei"]]


def test_numbers_with_units_are_put_back_if_they_change() -> None:
    assert FakeModel(lambda text: text.replace("5", "7")).translate("noch 5 km weit") == ["noch 5 km weit"]
    model = FakeModel(lambda text: text.replace("1,000", "1.000").replace("km", "Kilometer"))
    assert model.translate("noch 1,000 km weit") == ["noch 1.000 Kilometer weit"]
    assert len(model.calls) == 1


def test_without_protection_the_model_sees_the_text() -> None:
    model = FakeModel(without("{name}"))
    assert model.translate("ein {name}\nzwei", protect=False) == ["EIN ZWEI"]
    assert model.translate("<b>ein {name}</b>", markup="html", protect=False) == ["<b>EIN</b>"]


def test_a_segment_stays_as_it_is_if_nothing_else_keeps_its_placeholders() -> None:
    """The translation and the placeholder beside it form another placeholder."""
    model = FakeModel(lambda text: "{" if text == "x" else text.replace("%s", ""))
    assert model.translate("x %s}") in (["{ %s}"], ["x %s}"])
    assert FakeModel(lambda text: "" if "%s" in text else "$").translate("y %s") == ["$ %s"]


WORDS = st.sampled_from(
    ["eins", "zwei", "天", ".", " ", " ", "\n", "\r\n", "(", "„", "“", "{", "}", "%", "*", "- ", "`"]
)
KEPT = st.sampled_from(["{a}", "{b}", "%s", "%1$d", "https://a.de/b", "a@b.de", "🎉", "{{x}}", "{n, date, y}"])
TEXTS = st.lists(st.one_of(WORDS, KEPT.map(lambda each: f" {each} ")), max_size=14).map("".join)
REPLIES = ["un", "deux", "天", ".", " ", "{a}", "{", "}", "%", "s", "$", "🎉", "https://", "<b>", "`", "5 km"]


@given(text=TEXTS, markup=st.sampled_from([None, "html"]), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_every_placeholder_occurs_once_whatever_the_model_does(text: str, markup: str | None, seed: int) -> None:
    dice = random.Random(seed)

    def reply(source: str) -> str:
        if dice.random() < 0.3:
            return source
        return "".join(dice.choices(REPLIES, k=dice.randrange(8)))

    (found,) = FakeModel(reply).translate(text, markup=markup)
    expected, counts = count_placeholders(text), count_placeholders(found)
    if markup is None and text.strip():  # a blank text is left to the model
        assert {each: counts[each] for each in expected} == expected
        assert re.findall("\r\n|\n", found) == re.findall("\r\n|\n", text)
    elif "`" not in text:
        assert all(
            counts[each] >= count for each, count in expected.items() if each.startswith(("{a", "{b", "%", "a@"))
        )


@given(text=TEXTS)
@settings(max_examples=40)
def test_a_model_that_copies_changes_nothing(text: str) -> None:
    (found,) = FakeModel(str).translate(text)
    assert re.sub(" +", " ", found) == re.sub(" +", " ", text)


MARKED = [
    "<p>das <b>rote</b> Haus</p><p>und ein <i>Baum</i></p>",
    "das {name} Haus",
    "der Baum\nund das Haus",
    "das <img src=x> grüne Haus",
]
PLAIN = ["das rote Haus", "und ein Baum", "", "  der Baum ", "ein rote ein grüne Baum und das Haus"]


def texts_of(translation: Translation) -> list[str]:
    return [candidate.text for candidate in translation.candidates]


@pytest.mark.parametrize("options", [DecodingOptions(min_length=4), DecodingOptions(n_best=3)])
def test_plain_texts_beside_marked_ones_are_translated_as_ever(
    make_translator: Make, options: DecodingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are they aligned, unless this is wanted."""
    translator = make_translator()
    expected = translator.translate(PLAIN, options, protect=False)
    beside = translator.translate([*MARKED, *PLAIN], options)[len(MARKED) :]
    assert [texts_of(each) for each in beside] == [texts_of(each) for each in expected]
    monkeypatch.setattr(call_module, "attention_maps", None)  # an alignment would fail
    assert translator.translate(PLAIN, options) == expected
    translator.translate(PLAIN, options, markup="html")


def test_the_words_are_those_of_the_plain_text(make_translator: Make) -> None:
    """Tags do not change what a segment is translated to."""
    translator = make_translator()
    options = DecodingOptions(min_length=5)
    found = translator.translate(MARKED[0], options, markup="html")
    parts = translator.translate(["das rote Haus", "und ein Baum"], options)
    for tag in ("<b>", "</b>", "<i>", "</i>"):
        assert found.text.count(tag) == 1
    bare = found.text.replace("<b>", "").replace("</b>", "").replace("<i>", "").replace("</i>", "")
    assert html.unescape(bare) == f"<p>{parts[0].text}</p><p>{parts[1].text}</p>"
    assert found.source == MARKED[0]
    assert found.score == pytest.approx(sum(each.score for each in parts))
    assert found.alignment is None


def test_options_of_a_text(make_translator: Make) -> None:
    translator = make_translator()
    found = translator.translate(Source("das rote\nHaus {x}", prefix="ein Baum"), alignment=True)
    assert found.text.startswith("ein Baum")
    assert found.text.count("{x}") == 1
    assert found.alignment is not None
    empty = translator.translate(["5 km\ndas Haus", "<b>das</b>\nHaus"], alignment=True, markup="html")
    assert all(each.alignment is not None and len(each.alignment.pairs) == len(each.tokens) for each in empty)
    included = translator.translate(Source("das rote {x}", include=("Baum",)))
    assert "Baum" in included.text
    with pytest.raises(ConfigError, match="in 2 parts"):
        translator.translate(Source("das rote\nHaus", include=("Baum",)))


def test_candidates_all_have_the_tags(make_translator: Make) -> None:
    found = make_translator().translate(
        "das <b>rote</b> {x} Haus", DecodingOptions(n_best=4, min_length=3), markup="xml"
    )
    assert len(found.candidates) == 4
    for candidate in found.candidates:
        for each in ("<b>", "</b>", "{x}"):
            assert candidate.text.count(each) == 1


@pytest.mark.parametrize("settings", [{"precision": "int8"}, {"max_source_tokens": 5}])
def test_in_other_settings(make_translator: Make, settings: dict[str, Any]) -> None:
    found = make_translator(settings=settings).translate(
        "das rote Haus <cite>und der</cite> ein {x} Baum", markup="html"
    )
    assert [found.text.count(each) for each in ("<cite>", "</cite>", "{x}")] == [1, 1, 1]


def test_a_lone_surrogate_is_an_error_of_its_text(make_translator: Callable[..., Translator]) -> None:
    found = make_translator().translate_each(["{x} \ud800", "das Haus"])
    assert isinstance(found[0], DataError)
    assert str(found[0]).startswith("character 5: lone surrogate")
    assert isinstance(found[1], Translation)


def test_a_long_text_with_a_tag_needs_memory_for_its_length_only(make_translator: Callable[..., Translator]) -> None:
    """The attention of all its sentences to each other would need hundreds of megabytes."""
    text = "<p><b>das</b> " + "das rote Haus. " * 400 + "</p>"
    translator = make_translator()
    tracemalloc.start()
    found = translator.translate(text, DecodingOptions(beam_size=1), markup="html")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.text.count("<b>") == 1
    assert found.alignment is None
    assert peak < 60e6
