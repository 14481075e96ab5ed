"""The cost of a word is a difference of two probabilities, which are computed in another way here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.errors import DataError
from headway.inspection.forced_word import force_word
from headway.predict import Source, Translator

TEXT = "das rote Haus"


def test_the_cost_is_the_difference_of_the_probabilities(make_translator: Callable[..., Translator]) -> None:
    translator = make_translator()
    own = translator.translate(TEXT).text
    found = force_word(translator, TEXT, "", "grüne")
    assert (found.original.target, found.with_word.target) == (
        own,
        translator.translate(Source(TEXT, prefix="grüne")).text,
    )
    assert found.with_word.target is not None
    assert found.with_word.target.startswith("grüne")
    one, other = translator.score([TEXT] * 2, [own, found.with_word.target])
    assert found.cost == pytest.approx(one.log_probability - other.log_probability, abs=1e-3)


def test_the_word_that_is_there_costs_nothing(make_translator: Callable[..., Translator]) -> None:
    translator = make_translator()
    translation = translator.translate(Source(TEXT, prefix="grüne Baum")).text
    found = force_word(translator, TEXT, "grüne ", "Baum", translation=translation)
    assert found.with_word.target == found.original.target == translation
    assert found.cost == 0


def test_a_given_translation_is_what_the_cost_is_compared_with(make_translator: Callable[..., Translator]) -> None:
    translator = make_translator()
    found = force_word(translator, TEXT, "der ", "Baum", translation="der Haus")
    assert (found.original.target, found.original.target_given) == ("der Haus", True)
    (scored,) = translator.score([TEXT], ["der Haus"])
    assert found.original.log_probability == pytest.approx(scored.log_probability, abs=1e-3)
    with pytest.raises(DataError, match="blank"):
        force_word(translator, TEXT, "der ", " ")
