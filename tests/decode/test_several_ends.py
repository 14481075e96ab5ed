"""Models with several tokens that end a text: each of them ends it as EOS does."""

from __future__ import annotations

import math
from typing import Any

import pytest
from table_models import BEGIN, END, TableModel

from headway.decode import DecodingOptions, Hypothesis, Request, SearchVocabulary, search

OTHER = 5  # also ends a text


def probabilities(_: int, prefix: tuple[int, ...]) -> list[float]:
    """The probabilities of tokens 0 to 5. The other end is always more probable than EOS."""
    weights = {3: 0.3, 4: 0.2, END: 0.15, OTHER: 0.35} if len(prefix) < 3 else {3: 0.1, 4: 0.1, END: 0.3, OTHER: 0.5}
    return [weights.get(token, 0.0) for token in range(6)]


def found(request: dict[str, Any] | None = None, **options: Any) -> list[Hypothesis]:
    given = Request(source=(3, END), **({"limit": 6} | (request or {})))
    settings = DecodingOptions.parse({"length_penalty": 0.0, **options}, "test")
    (hypotheses,) = search(
        TableModel(probabilities), [given], settings, SearchVocabulary(BEGIN, END, extra_eos_ids=(OTHER,))
    )
    return hypotheses


@pytest.mark.parametrize("beam_size", [2, 4, 6])
def test_no_text_is_returned_twice(beam_size: int) -> None:
    hypotheses = found(beam_size=beam_size, n_best=beam_size)
    texts = [each.tokens for each in hypotheses]
    assert len(set(texts)) == len(texts) == beam_size
    assert texts[0] == ()
    assert hypotheses[0].log_probability == pytest.approx(math.log(0.35))  # by the better end


@pytest.mark.parametrize("beam_size", [1, 4])
def test_none_ends_a_text_before_its_minimum_length(beam_size: int) -> None:
    hypotheses = found(beam_size=beam_size, min_length=2)
    assert all(len(each.tokens) >= 2 for each in hypotheses)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_text_whose_model_ends_it_at_the_limit_is_finished(beam_size: int) -> None:
    hypotheses = found({"limit": 3}, beam_size=beam_size, min_length=3)
    assert all(each.finished and len(each.tokens) == 3 for each in hypotheses)


def test_none_ends_a_text_without_a_phrase_that_it_must_include() -> None:
    best = found({"include": (((4, 3),),)}, beam_size=4)[0]
    assert (4, 3) in zip(best.tokens, best.tokens[1:], strict=False)
    assert best.unmet == ()
