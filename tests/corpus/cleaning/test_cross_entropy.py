"""Cross-entropies of pairs by models of both directions, worked by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from headway.corpus.cleaning.cross_entropy import PairEntropies, entropy_features
from headway.errors import LengthError


class Model:
    """Gives each token, EOS included, the same probability."""

    precision = "float32"
    source_languages: tuple[str, ...] = ()
    target_languages: tuple[str, ...] = ()

    def __init__(self, probability: float) -> None:
        self.log_probability = math.log(probability)

    def score_each(self, sources: list[str], targets: list[str], *, as_searched: bool, **languages: Any) -> list[Any]:
        assert not as_searched
        self.languages = languages
        return [self._score(target) for target in targets]

    def _score(self, target: str) -> Any:
        tokens = len(target.split()) + 1
        if tokens > 6:
            return LengthError("too long")
        return SimpleNamespace(token_log_probabilities=(self.log_probability,) * tokens)


def test_dual_entropy_is_the_mean_of_both_directions_and_their_difference() -> None:
    forward, reverse = Model(1 / 2), Model(1 / 8)
    values = PairEntropies.compute(forward, reverse, ["a b", "a"], ["c", "c d"]).dual_cross_entropy  # type: ignore[arg-type]
    # H = log 2 and log 8 = 3 log 2 per token: |1 - 3| + (1 + 3) / 2 = 4
    np.testing.assert_allclose(values, [4 * math.log(2)] * 2)
    equal = PairEntropies.compute(forward, forward, ["a b"], ["c"]).dual_cross_entropy  # type: ignore[arg-type]
    np.testing.assert_allclose(equal, [math.log(2)])


def test_a_pair_that_one_model_cannot_score_has_no_value() -> None:
    model: Any = Model(1 / 2)
    entropies = PairEntropies.compute(model, model, ["a b c d e f", "a"], ["e", "e"])
    assert np.isnan(entropies.dual_cross_entropy).tolist() == [True, False]
    assert np.isnan(entropies.forward).any(axis=1).tolist() == [False, False]


def test_the_end_of_a_text_has_features_of_its_own() -> None:
    result = SimpleNamespace(token_log_probabilities=(-1.0, -1.0, -4.0, -4.0, -4.0, -1.0, -8.0))
    model: Any = Model(1 / 2)
    model.score_each = lambda *_, **__: [result]
    # 23 nats in 7 tokens; EOS 8, before it 1; the last four tokens before EOS have 13 nats, more in the mean than any
    # other three or more at the end.
    expected = [23 / 7, 23, 8, 1, 13 / 4, math.log(8)]
    np.testing.assert_allclose(entropy_features(model, ["x"], ["y"]), [expected])


def test_models_of_several_languages_score_with_their_codes() -> None:
    forward, reverse = Model(1 / 2), Model(1 / 2)
    forward.source_languages = ("eng_Latn", "zho_Hant", "zho_Hans", "deu_Latn")
    reverse.target_languages = ("de", "en")
    PairEntropies.compute(forward, reverse, ["a"], ["b"], ("de", "zh-Hans"))  # type: ignore[arg-type]
    assert forward.languages == {"source_language": "deu_Latn", "target_language": None}
    assert reverse.languages == {"source_language": None, "target_language": "de"}
