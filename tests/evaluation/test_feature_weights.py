"""Tuning the weights of features on BLEU, against cases in which the best weights are known."""

from __future__ import annotations

import numpy as np
import pytest

from headway.errors import DataError
from headway.evaluation import bleu
from headway.evaluation.feature_weights import tune_feature_weights

RIGHT, WRONG = "the small red house stands there", "a tree is not what we see"


def test_the_weights_rank_the_right_candidates_first() -> None:
    """The second feature is better for the right candidate by 1, and the first one is worse by 0.25 to 0.45.

    So every weight above 0.45 ranks all right candidates first, and 0.5 is the smallest such weight on the grid. After
    two refinements the step is 0.125: 0.5 - 0.25 + 0.125 is too small, so 0.5 remains.
    """
    losses = [0.25, 0.35, 0.45]
    features = [np.array([[-1.0, -1.0], [-1.0 - loss, 0.0]]) for loss in losses]
    found = tune_feature_weights(features, [[WRONG, RIGHT]] * 3, [RIGHT] * 3, [(0.0, 0.5, 1.0)])
    assert found == (0.5,)


def test_the_refinement_finds_values_between_those_of_the_grid() -> None:
    """The first two sentences need w > 0.45 and w > 0.6, and the third w < 0.7.

    On the grid, 0.5 and 1 rank two right candidates first. 0.5 is smaller, and around it only 0.625 is between 0.6 and
    0.7.
    """
    features = [np.array([[0.0, 0.0], [-least, 1.0]]) for least in (0.45, 0.6, 0.7)]
    candidates = [[WRONG, RIGHT], [WRONG, RIGHT], [RIGHT, WRONG]]
    assert tune_feature_weights(features, candidates, [RIGHT] * 3, [(0.0, 0.5, 1.0)]) == (0.625,)


def test_it_is_the_best_of_the_grid_by_sacrebleu() -> None:
    rng = np.random.default_rng(1)
    words = RIGHT.split()
    references = [" ".join(rng.permutation(words)) for _ in range(12)]
    candidates = [[" ".join(rng.permutation(words)) for _ in range(int(rng.integers(1, 6)))] for _ in references]
    features = [rng.normal(size=(len(texts), 3)) for texts in candidates]

    def score(weights: tuple[float, ...]) -> float:
        chosen = [
            texts[int((rows @ [1.0, *weights]).argmax())] for texts, rows in zip(candidates, features, strict=True)
        ]
        return bleu(chosen, references).value

    grid = (-1.0, 0.0, 1.0)
    found = tune_feature_weights(features, candidates, references, [grid, grid])
    assert score(found) >= max(score((first, second)) for first in grid for second in grid) - 1e-9


def test_a_grid_of_one_value_fixes_a_weight() -> None:
    features = [np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])]
    assert tune_feature_weights(features, [[WRONG, RIGHT]], [RIGHT], [(0.0,), (-1.0, 0.0, 1.0)])[0] == 0.0


def test_sentences_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="1 sentences with features, 1 with candidates and 2 references"):
        tune_feature_weights([np.zeros((1, 2))], [["a"]], ["a", "b"], [(0.0,)])
