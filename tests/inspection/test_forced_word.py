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
    assert (found.chosen.target, found.forced.target) == (own, translator.translate(Source(TEXT, prefix="grüne")).text)
    assert found.forced.target is not None
    assert found.forced.target.startswith("grüne")
    one, other = translator.score([TEXT] * 2, [own, found.forced.target])
    assert found.cost == pytest.approx(one.log_probability - other.log_probability, abs=1e-3)


def test_the_word_that_is_there_costs_nothing(make_translator: Callable[..., Translator]) -> None:
    translator = make_translator()
    translation = translator.translate(Source(TEXT, prefix="grüne Baum")).text
    found = force_word(translator, TEXT, "grüne ", "Baum", translation=translation)
    assert found.forced.target == found.chosen.target == translation
    assert found.cost == 0


def test_a_given_translation_is_what_the_cost_is_compared_with(make_translator: Callable[..., Translator]) -> None:
    translator = make_translator()
    found = force_word(translator, TEXT, "der ", "Baum", translation="der Haus")
    assert (found.chosen.target, found.chosen.target_given) == ("der Haus", True)
    (scored,) = translator.score([TEXT], ["der Haus"])
    assert found.chosen.log_probability == pytest.approx(scored.log_probability, abs=1e-3)
    with pytest.raises(DataError, match="blank"):
        force_word(translator, TEXT, "der ", " ")
