"""Texts that are the same to a reader get the same result from a model that was trained on normalized text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headway.decode import DecodingOptions
from headway.errors import HeadwayError
from headway.predict import Classifier, Glossary, LanguageModel, PivotTranslator, Source, TranslateOptions, Translator

Make = Callable[..., Any]
TEXT = "das rote Haus und der grüne Baum"
DISTURBED = {
    " " + TEXT: (" ", ""),
    "  " + TEXT + " \t": ("  ", " \t"),
    "\t" + TEXT: ("\t", ""),
    "\u00a0" + TEXT: ("\u00a0", ""),
    "\u200b" + TEXT + "\u200b ": ("", " "),
    "\ufeff" + TEXT: ("", ""),
    " \ufeff " + TEXT: ("  ", ""),
    TEXT.replace(" ", "  "): ("", ""),
    TEXT.replace(" ", "\t"): ("", ""),
    TEXT.replace("ü", "u\u0308"): ("", ""),
    "das ro\u00adte H\u200baus und der grüne Baum": ("", ""),
}


def normalizing(model: Any) -> Any:
    """Return the same model, trained on normalized text."""
    kind = type(model)
    return kind(replace(model.bundle, normalize=True), device="cpu")


@pytest.fixture(scope="module")
def model(make_translator: Make) -> Translator:
    made: Translator = normalizing(make_translator())
    return made


@pytest.mark.parametrize("split", [False, True], ids=["whole", "in sentences"])
def test_a_translation_keeps_the_white_space_around_its_source(model: Translator, split: bool) -> None:
    options = DecodingOptions(min_length=5)
    plain = model.translate(Source(TEXT, split_sentences=split), options)
    assert plain.text.strip()
    for text, (before, after) in DISTURBED.items():
        disturbed = model.translate(Source(text, split_sentences=split), options)
        assert disturbed.source == text
        assert disturbed.text == before + plain.text + after
        assert disturbed.candidates[0].ids == plain.candidates[0].ids


def test_a_model_of_texts_as_they_are_reads_them_so(make_translator: Make) -> None:
    old = make_translator()
    plain = old.translate(TEXT).candidates[0].ids
    assert any(old.translate(text).candidates[0].ids != plain for text in DISTURBED)


def test_texts_without_a_visible_character_are_blank(model: Translator) -> None:
    for text in ("\u200b", " \ufeff ", "\u2060\u00ad "):
        assert model.translate(text).text == ""
    parts = model.translate(Source("Das Haus. \u200b Der Baum.", split_sentences=True))
    assert (
        parts.candidates[0].ids
        == model.translate(Source("Das Haus. Der Baum.", split_sentences=True)).candidates[0].ids
    )


@pytest.mark.parametrize("text", DISTURBED)
def test_alignments_are_those_of_the_text_as_it_was_written(model: Translator, text: str) -> None:
    plain = model.translate(TEXT, alignment=True).alignment
    found = model.translate(text, alignment=True).alignment
    assert plain is not None
    assert found is not None
    assert found.pairs == plain.pairs
    assert "".join(found.source_tokens).strip("\ufeff\u200b \t\u00a0") == text.strip("\ufeff\u200b \t\u00a0")


def test_scores_prefixes_and_alternatives_do_not_depend_on_it_either(model: Translator) -> None:
    plain = model.score([TEXT], ["the red house"])
    for text in DISTURBED:
        assert model.score([text], ["\ufeffthe  red\u00ad house "]) == plain
    assert model.alternatives(" " + TEXT, " the  red ") == model.alternatives(TEXT, "the red")
    prefixed = model.translate(Source(TEXT, prefix="\u200b der  grüne "))
    assert prefixed.text == model.translate(Source(TEXT, prefix="der grüne")).text
    assert prefixed.text.startswith("der grüne")


def test_two_models_in_turn_keep_the_white_space_once(make_translator: Make) -> None:
    first, second = normalizing(make_translator(seed=3)), normalizing(make_translator(seed=4))
    pivot = PivotTranslator(first, second, pivot_language="x")
    assert pivot.translate("\u00a0 " + TEXT + "\n").text == "\u00a0 " + pivot.translate(TEXT).text + "\n"


@pytest.mark.parametrize("form", ["grüne", "gru\u0308ne", "grü\u00adne"])
def test_phrases_apply_in_every_spelling(make_translator: Make, form: str) -> None:
    """In models of any age: an entry or a phrase in one form, and the text in another."""
    for model in (make_translator(), normalizing(make_translator())):
        included = model.translate(Source("das Haus", include=(form,))).candidates[0]
        assert included.unmet == ()
        assert "grüne" in included.text
        banned = model.translate(Source("das Haus", include=("grüne",), banned=("Baum",)))
        assert banned.candidates[0].banned == ()
        with pytest.raises(HeadwayError, match=r"banned|exclude"):
            model.translate(Source("das Haus", include=("grüne",), banned=(form,)))
        glossary = Glossary([(f"der {form}  Baum", form)])
        for text in ("der grüne Baum", "der gru\u0308ne Baum", "der\u00a0gr\u200büne Baum"):
            (term,) = model.translate(text, glossary=glossary).glossary
            assert term.met, (form, text)


def test_glossary_entries_that_differ_in_form_only_contradict_each_other() -> None:
    assert len(Glossary([("grün", "green"), ("gru\u0308n", "green")])) == 2
    with pytest.raises(HeadwayError, match="is translated as"):
        Glossary([("grün", "green"), ("gru\u0308n", "verdant")])


def test_a_classifier_labels_all_forms_alike(make_classifier: Make) -> None:
    classifier: Classifier = normalizing(make_classifier())
    plain = classifier.classify(TEXT)
    for text in DISTURBED:
        found = classifier.classify(text)
        assert found == plain
        assert classifier.explain(text).tokens == classifier.explain(TEXT).tokens
    with pytest.raises(HeadwayError, match="empty"):
        classifier.classify("\u200b \ufeff")


def test_a_language_model_reads_characters_in_one_form_and_white_space_as_it_is(make_language_model: Make) -> None:
    model: LanguageModel = normalizing(make_language_model())
    assert model.score(["gru\u0308ner\u00ad Baum"]) == model.score(["grüner Baum"])
    assert model.score([" Baum"]) != model.score(["Baum"])
    ours, plain = (model.generate(text, temperature=0, max_new_tokens=4)[0].ids for text in ("u\u0308b", "üb"))
    assert ours == plain


def test_markup_and_placeholders_around_disturbed_text(model: Translator) -> None:
    options = DecodingOptions(beam_size=1)
    for text in ("<b> das\u200b Haus </b>", "<b>das  Haus</b>"):
        found = model.translate_each([text], TranslateOptions(decoding=options, markup="html"))[0]
        assert not isinstance(found, HeadwayError)
        assert "<b>" in found.text
