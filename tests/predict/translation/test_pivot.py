"""Translation by two models: the ranks follow from the definition, one pivot is two translations in a row, and what a
translation can be asked for is kept."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from headway.bundle import TaskConfig
from headway.decode import DecodingOptions, Sampling
from headway.errors import ConfigError, HeadwayError
from headway.predict import Alignment, Candidate, Glossary, PivotTranslator, Source, Translation, Translator
from headway.predict.translation.alignment import compose_alignments
from headway.text.base import EOS

SOURCES = ["ein Haus", "das rote Haus und", "", "der Baum"]
SHORT = DecodingOptions(max_length=8)


@pytest.fixture(scope="module")
def models(make_translator: Callable[..., Translator]) -> tuple[Translator, Translator]:
    """Two models, of which the second one translates from the language of the first one's targets."""
    first, second = make_translator(settings={"avoid_flagged": False}), make_translator(seed=5)
    for each in (first, second):
        each.bundle.model.projection.bias.data[EOS] -= 2.0  # fewer outputs without text
    task = TaskConfig(source_language="en", target_language="fr")
    second = Translator(replace(second.bundle, task=task), avoid_flagged=False)
    return first, second


@pytest.fixture(scope="module")
def pivot(models: tuple[Translator, Translator]) -> PivotTranslator:
    return PivotTranslator(*models, candidates=4)


def test_one_pivot_is_two_translations_in_a_row(models: tuple[Translator, Translator]) -> None:
    first, second = models
    found = PivotTranslator(first, second, candidates=1).translate(SOURCES, SHORT)
    pivots = [each.text for each in first.translate(SOURCES)]
    assert [each.candidates[0].pivot for each in found] == [
        text if source else None for source, text in zip(SOURCES, pivots, strict=True)
    ]
    assert [each.text for each in found] == [each.text for each in second.translate(pivots, SHORT, protect=False)]


def test_several_pivots_are_ranked_by_the_joint_probability(
    models: tuple[Translator, Translator], pivot: PivotTranslator
) -> None:
    """By the definition: all pairs of the n-best lists, each text with its most probable pivot."""
    first, second = models
    options = DecodingOptions(n_best=4, max_length=8)
    for source in filter(None, SOURCES):
        joint: dict[str, float] = {}
        ones = first.translate(source, DecodingOptions(n_best=4)).candidates
        for one in (each for each in ones if each.text.strip()):
            for other in second.translate(one.text, options, protect=False).candidates:
                value = one.log_probability + other.log_probability
                joint[other.text] = max(value, joint.get(other.text, value))
        best = sorted(joint.items(), key=lambda each: -each[1])[:4]
        found = pivot.translate(source, options)
        assert [each.text for each in found.candidates] == [text for text, _ in best]
        assert [each.score for each in found.candidates] == pytest.approx([value for _, value in best], abs=1e-4)


def test_a_pivot_that_the_second_model_prefers_wins(
    models: tuple[Translator, Translator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worked by hand: log p(z | x) is -1 and -2, log p(y | z) is -3 and -1, so the second pivot is better by 1 nat."""

    def answering(answers: dict[str, dict[str, float]]) -> Callable[..., list[Translation]]:
        def translate_each(sources: list[Source], *_: Any, **__: Any) -> list[Translation]:
            found = [answers[source.text].items() for source in sources]
            return [
                Translation(source.text, tuple(Candidate(text, value, value, (text,)) for text, value in each))
                for source, each in zip(sources, found, strict=True)
            ]

        return translate_each

    first, second = models
    monkeypatch.setattr(first, "translate_each", answering({"Bank": {"bank": -1.0, "bench": -2.0, "": -0.5}}))
    monkeypatch.setattr(second, "translate_each", answering({"bank": {"banque": -3.0}, "bench": {"banc": -1.0}}))
    found = PivotTranslator(first, second, candidates=4).translate("Bank", DecodingOptions(n_best=2))
    assert [(each.text, each.pivot, each.score) for each in found.candidates] == [
        ("banc", "bench", -3.0),
        ("banque", "bank", -4.0),
    ]


def test_texts_in_one_call_equal_texts_alone_and_in_threads(pivot: PivotTranslator) -> None:
    expected = [each.text for each in pivot.translate(SOURCES, SHORT)]
    assert [pivot.translate(source, SHORT).text for source in SOURCES] == expected
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: [each.text for each in pivot.translate(SOURCES, SHORT)], range(4)))
    assert found == [expected] * 4


def test_sentences_of_a_text_have_pivots_of_their_own(pivot: PivotTranslator) -> None:
    sentences = ["Ein Haus.", "Das rote Haus und der Baum."]
    assert all(each.text for each in pivot.translate(sentences, SHORT))
    whole = pivot.translate(Source(" ".join(sentences), split_sentences=True), SHORT)
    parts = pivot.translate(sentences, SHORT)
    assert whole.text == " ".join(each.text for each in parts)
    assert whole.candidates[0].pivot == " ".join(str(each.candidates[0].pivot) for each in parts)
    assert whole.score == pytest.approx(sum(each.score for each in parts), abs=1e-4)


def test_requirements_concern_the_second_step(pivot: PivotTranslator) -> None:
    found = pivot.translate(Source("ein Haus", prefix="der ", include=("Baum",), banned=("und",)), SHORT)
    assert found.text.startswith("der")
    assert "Baum" in found.text
    assert found.candidates[0].unmet == ()
    (error,) = pivot.translate_each([Source("Ein Haus. Das Haus.", include=("Baum",), split_sentences=True)])
    assert isinstance(error, ConfigError)


def test_entries_of_a_glossary_are_found_in_the_source(pivot: PivotTranslator) -> None:
    glossary = Glossary([("Haus", "Baum"), ("rote", "grüne|rote")])
    one, other = pivot.translate(["das Haus und das Haus", "und"], SHORT, glossary=glossary)
    assert one.glossary is not None
    assert [(term.source, term.met) for term in one.glossary] == [("Haus", True)]
    assert "baum" in one.text.lower()
    assert one.candidates[0].unmet == ()
    assert other.glossary == ()
    sampled = pivot.translate("das Haus", DecodingOptions(sampling=Sampling(), max_length=8), glossary=glossary)
    assert sampled.glossary is not None
    assert [term.source for term in sampled.glossary] == ["Haus"]


def test_tags_and_placeholders_are_kept(pivot: PivotTranslator) -> None:
    html = "<p>ein <b>Haus</b> und</p><p>der Baum</p>"
    found = pivot.translate(html, SHORT, markup="html").text
    assert [found.count(tag) for tag in ("<p>", "</p>", "<b>", "</b>")] == [2, 2, 1, 1]
    found = pivot.translate("ein {name} Haus\nhttps://example.org/a", SHORT).text
    assert [found.count(each) for each in ("{name}", "https://example.org/a", "\n")] == [1, 1, 1]


def test_alignments_lead_from_the_source_to_the_target(pivot: PivotTranslator) -> None:
    found = pivot.translate(SOURCES, SHORT, alignment=True)
    assert [each.text for each in found] == [each.text for each in pivot.translate(SOURCES, SHORT)]
    for source, each in zip(SOURCES, found, strict=True):
        if not source:
            continue
        assert each.alignment is not None
        assert "".join(each.alignment.source_tokens) == source
        assert len(each.alignment.attention) == len(each.tokens)
        assert all(0 <= sum(row) <= 1 + 1e-5 for row in each.alignment.attention)
        words = pivot.word_alignment(each.candidates[0])
        assert list(words.source_words) == source.split()
        if "\ufffd" not in each.text:  # a token may be a part of a character
            assert list(words.target_words) == each.text.split()
    assert pivot.translate("ein Haus", SHORT).alignment is None


def test_the_composition_of_two_alignments_worked_by_hand() -> None:
    """The texts are x = "ab c", z = "uv w" with the tokens "uv", " w" and then "u", "v", " w", y = "p", " q"."""
    first = Alignment(("ab", " c"), ((0, 0), (1, 1)), ((0.75, 0.25), (0.0, 0.5)))
    second = Alignment(("u", "v", " w"), ((0, 0), (2, 1)), ((0.5, 0.5, 0.0), (0.0, 0.25, 0.75)))
    found = compose_alignments(first, ("uv", " w"), second)
    # q: 0.25 * (0.75, 0.25) + 0.75 * (0, 0.5)
    assert found.attention == ((0.75, 0.25), (0.1875, 0.4375))
    assert found.pairs == ((0, 0), (1, 1))
    assert found.source_tokens == ("ab", " c")


def test_without_attention_the_pairs_are_composed() -> None:
    first = Alignment(("ab", " c"), ((0, 0), (1, 1)), ())
    second = Alignment(("u", "v", " w"), ((0, 0), (2, 1), (1, 2)), ())
    found = compose_alignments(first, ("uv", " w"), second)
    assert found == Alignment(("ab", " c"), ((0, 0), (1, 1), (0, 2)), ())


def test_a_text_that_the_first_model_refuses_is_an_error_of_its_own(pivot: PivotTranslator) -> None:
    good, bad = pivot.translate_each(["ein Haus", "\ud800"])
    assert isinstance(good, Translation)
    assert isinstance(bad, HeadwayError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"candidates": 0}, "candidates = 0"), ({"swap": True}, "into fr, but the second one from de")],
)
def test_models_that_do_not_fit_are_refused(
    models: tuple[Translator, Translator], arguments: dict[str, Any], message: str
) -> None:
    order = models[::-1] if arguments.pop("swap", False) else models
    with pytest.raises(ConfigError, match=message):
        PivotTranslator(*order, **arguments)
