"""Reordering candidates: by agreement and by models."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from headway.decode import length_penalty
from headway.errors import ConfigError, DataError
from headway.evaluation import chrf, sentence_chrf
from headway.predict import Candidate, Translation, Translator, minimum_bayes_risk, rank_by_agreement, rank_by_models
from headway.predict.reranking.rerank import expected_chrf, softmax

TEXTS = ["the red house", "the red house!", "a red house", "trees", "the red house"]
Make = Callable[..., Translator]


def test_sentence_chrf_is_that_of_a_test_set_of_one() -> None:
    for text in TEXTS[1:4]:
        assert sentence_chrf(text, TEXTS[0]) == pytest.approx(chrf([text], [TEXTS[0]]).value)


@pytest.mark.parametrize("weights", [[1.0] * 5, [0.1, 3.0, 0.2, 0.5, 1.0]])
def test_the_expectation_is_the_weighted_mean_over_all_pairs(weights: list[float]) -> None:
    def utility(text: str, reference: str) -> float:
        return 100.0 if text == reference else sentence_chrf(text, reference)

    for text, value in zip(TEXTS, expected_chrf(TEXTS, weights), strict=True):
        terms = [weight * utility(text, other) for other, weight in zip(TEXTS, weights, strict=True)]
        assert value == pytest.approx(sum(terms) / sum(weights))


def test_softmax() -> None:
    assert softmax([0.0, math.log(3)]) == pytest.approx([0.25, 0.75])
    assert softmax([-1000.0, -1000.0]) == [0.5, 0.5]
    assert softmax([-math.inf, 0.0]) == [0.0, 1.0]
    assert softmax([-math.inf, -math.inf]) == [0.5, 0.5]


class TestMinimumBayesRisk:
    def candidates(self) -> Translation:
        """The most probable candidate differs from all others, which agree among themselves."""
        texts = [("trees", -0.5), ("the red house", -1.0), ("the red mouse", -1.1), ("a red house", -1.2)]
        return Translation("x", tuple(Candidate(text, p, p, (text,)) for text, p in texts))

    def test_agreement_beats_probability(self) -> None:
        found = minimum_bayes_risk(self.candidates(), sampled=True)
        assert found.text == "the red house"
        assert found.candidates[-1].text == "trees"
        utilities = [candidate.utility for candidate in found.candidates]
        assert all(utility is not None for utility in utilities)
        assert utilities == sorted(utilities, reverse=True)  # type: ignore[type-var]

    def test_a_beams_candidates_count_by_their_probability(self) -> None:
        sure = self.candidates()
        trees = Candidate("trees", -0.01, -0.01, ("trees",))
        found = minimum_bayes_risk(
            Translation("x", (trees, *(Candidate(c.text, -9.0, -9.0, ()) for c in sure.candidates[1:]))), sampled=False
        )
        assert found.text == "trees"

    def test_by_score(self) -> None:
        assert [each.text for each in rank_by_agreement(["trees", "a house", "the house"])][-1] == "trees"
        assert rank_by_agreement(["trees", "a house", "the house"], [0.0, -9.0, -9.0])[0].text == "trees"


class TestByModels:
    def test_it_is_the_weighted_sum_of_forced_scores(self, make_translator: Make) -> None:
        models = [make_translator("whitespace", seed=1), make_translator("bpe", seed=2)]
        sources, candidates = ["das Haus", "ein Baum"], [["das", "ein rote"], ["der Baum", "und", "das"]]
        ranked = rank_by_models(models, sources, candidates, weights=[0.3, 2.0], alpha=0.6)
        for source, texts, found in zip(sources, candidates, ranked, strict=True):
            assert sorted(each.text for each in found) == sorted(texts)
            assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
            for each in found:
                forced = [model.score([source], [each.text])[0] for model in models]
                terms = [one.log_probability / length_penalty(len(one.tokens) + 1, 0.6) for one in forced]
                assert each.score == pytest.approx(0.3 * terms[0] + 2.0 * terms[1], abs=1e-4)

    def test_mistakes(self, make_translator: Make) -> None:
        model = make_translator("whitespace")
        with pytest.raises(ConfigError, match="2 weights for 1 models"):
            rank_by_models([model], ["das"], [["ein"]], weights=[1.0, 2.0])
        with pytest.raises(DataError, match="source 2: character 1: lone surrogate"):
            rank_by_models([model], ["das", "das"], [["ein"], ["\ud800"]], weights=[1.0])
