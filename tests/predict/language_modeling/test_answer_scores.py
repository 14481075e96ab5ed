"""Scores of the answers to a question, against the log-probabilities of whole texts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headway.errors import LengthError
from headway.predict import LanguageModel, score_answers

Make = Callable[..., LanguageModel]


@pytest.mark.parametrize("kind", ["bpe", "characters", "words"])
def test_the_scores_are_those_of_the_last_tokens(make_language_model: Make, kind: str) -> None:
    model = make_language_model(kind)
    prompts, answers = ["das rote", "der"], [[" Haus", " Baum und"], [" Baum", " Haus", " rote Haus"]]
    for prompt, several, found in zip(prompts, answers, score_answers(model, prompts, answers), strict=True):
        assert not isinstance(found, LengthError)
        for answer, values in zip(several, found, strict=True):
            (whole,) = model.score([prompt + answer])
            count = len(model.bundle.tokenizer.encode(prompt + answer)) - len(model.bundle.tokenizer.encode(prompt))
            assert values == pytest.approx(whole.token_log_probabilities[-count:], abs=1e-3)


def test_answers_begin_where_their_tokens_differ(make_language_model: Make) -> None:
    """A word whose beginning is in the question belongs to the answer."""
    model = make_language_model("words")
    ((first, second),) = score_answers(model, ["das Ha"], [["us", "use"]])  # type: ignore[misc]
    assert len(first) == 1  # " Haus" is one token; after "das" comes " Ha" or " Haus"
    assert len(second) == 2  # " Hause" is unknown: a space and <unk>
    assert first == pytest.approx(model.score(["das Haus"])[0].token_log_probabilities[1:], abs=1e-3)


def test_a_question_that_is_too_long_does_not_stop_the_others(make_language_model: Make) -> None:
    model = make_language_model("characters", max_length=16)
    long, short = score_answers(model, ["das rote Haus", "das"], [[" Ha", " B"], [" Ha", " B"]])
    assert isinstance(long, LengthError)
    assert "an answer have 16 tokens, but the model's context has 16" in str(long)
    assert [len(values) for values in short] == [3, 2]  # type: ignore[union-attr]
