"""Tune the weights of features for reranking candidate translations, to maximize BLEU.

The score of a candidate is f_0 + w_1 f_1 + ... + w_n f_n (Och and Ney 2002, "Discriminative Training and Maximum
Entropy Models for Statistical Machine Translation"; the weight of f_0 is 1, because only the ratios matter). All
combinations of weights on a grid are compared by the corpus BLEU of the candidates that they rank first. Then finer
grids around the best combination are searched, with half and a quarter of the step. The n-gram counts of each candidate
are computed only once, so evaluating a combination takes less than a millisecond per thousand sentences.

BLEU is a step function of the weights, and its maximum on the tuning sentences is too optimistic: evaluate the weights
on other sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from jaxtyping import Float

from headway.errors import DataError
from headway.evaluation.tokenization import DEFAULT_TOKENIZATION, Tokenization
from headway.evaluation.translation import find_metric

_REFINEMENTS = 2


def tune_feature_weights(
    features: Sequence[Float[np.ndarray, "_ F"]],
    candidates: Sequence[Sequence[str]],
    references: Sequence[str],
    grids: Sequence[Sequence[float]],
    tokenization: Tokenization = DEFAULT_TOKENIZATION,
) -> tuple[float, ...]:
    """Return the weights with the best corpus BLEU, for all features except the first.

    Args:
        features: For each sentence, a matrix with one row of features per candidate.
        candidates: The candidates of each sentence.
        references: One reference for each sentence.
        grids: Evenly spaced values to try for each weight. A grid with a single value fixes the weight. If several
            combinations are equally good, the one with the smallest absolute weights is returned.
        tokenization: The tokenization of BLEU.

    Raises:
        DataError: There are no sentences, or the numbers of sentences differ.
    """
    if not len(features) == len(candidates) == len(references) or not references:
        raise DataError(
            f"{len(features):,} sentences with features, {len(candidates):,} with candidates and {len(references):,} "
            "references; expected the same number of each, and at least one"
        )
    metric = find_metric("bleu", tokenization)
    flat = [(text, reference) for texts, reference in zip(candidates, references, strict=True) for text in texts]
    counts = metric.counts([text for text, _ in flat], [reference for _, reference in flat])
    rows = np.concatenate(features)
    sizes = np.array([len(texts) for texts in candidates])
    present = np.arange(sizes.max()) < sizes[:, None]
    starts = np.cumsum(sizes) - sizes
    scores = np.full(present.shape, -np.inf)

    def bleu(weights: Sequence[float]) -> float:
        scores[present] = rows @ np.array([1.0, *weights])
        return metric.value(counts[starts + scores.argmax(1)].sum(axis=0))

    def best_on(axes: Sequence[Sequence[float]]) -> tuple[float, ...]:
        return max(product(*axes), key=lambda weights: (bleu(weights), -sum(map(abs, weights))))

    best = best_on(grids)
    steps = [grid[1] - grid[0] if len(grid) > 1 else 0.0 for grid in grids]
    for _ in range(_REFINEMENTS):
        steps = [step / 2 for step in steps]
        best = best_on(
            [
                (weight - step, weight, weight + step) if step else (weight,)
                for weight, step in zip(best, steps, strict=True)
            ]
        )
    return best
