"""Dual conditional cross-entropy, worked by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from headway.corpus.cleaning.cross_entropy import cross_entropies, dual_cross_entropies
from headway.errors import LengthError


class Model:
    """Gives each token, EOS included, the same probability."""

    precision = "float32"

    def __init__(self, probability: float) -> None:
        self.log_probability = math.log(probability)

    def score_each(self, sources: list[str], targets: list[str], *, as_searched: bool) -> list[Any]:
        assert not as_searched
        return [self._score(target) for target in targets]

    def _score(self, target: str) -> Any:
        tokens = len(target.split()) + 1
        if tokens > 4:
            return LengthError("too long")
        each = (self.log_probability,) * tokens
        return SimpleNamespace(log_probability=sum(each), token_log_probabilities=each)


def test_it_is_the_mean_of_both_directions_and_their_difference() -> None:
    forward, reverse = Model(1 / 2), Model(1 / 8)
    values = dual_cross_entropies(forward, reverse, ["a b", "a"], ["c", "c d"])  # type: ignore[arg-type]
    # H = log 2 and log 8 = 3 log 2 per token: |1 - 3| + (1 + 3) / 2 = 4
    np.testing.assert_allclose(values, [4 * math.log(2)] * 2)
    equal = dual_cross_entropies(forward, forward, ["a b"], ["c"])  # type: ignore[arg-type]
    np.testing.assert_allclose(equal, [math.log(2)])


def test_a_pair_that_one_model_cannot_score_has_no_value() -> None:
    model: Any = Model(1 / 2)
    assert np.isnan(dual_cross_entropies(model, model, ["a b c d"], ["e"])).tolist() == [True]
    assert np.isnan(cross_entropies(model, ["a b c d"], ["e"])).tolist() == [False]
