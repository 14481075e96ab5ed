"""Rank candidate translations with a language model and a model for the reverse direction: the noisy channel.

    score(y) = log p(y | x) + a log p(y) + b log p(x | y) + c |y|

x is the source, y a candidate, and |y| its number of tokens. By Bayes' rule, p(y | x) is proportional to p(x | y) p(y).
The language model p(y) can be trained on text that has no translation. The weighted sum of all terms, with weights
tuned on a development set, ranks better than any single term (Yee et al. 2019, "Simple and Effective Noisy Channel
Modeling for Neural Machine Translation"; Ng et al. 2019, "Facebook FAIR's WMT19 News Translation Task Submission",
section 3.5). The term |y| compensates for the higher log-probabilities of short translations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from pydantic import Field

from headway.config import Config
from headway.predict.language_modeling.scored_text import TextScorer
from headway.predict.reranking.rerank import RankedText, rank_by_scores, score_candidates
from headway.predict.translation.translator import Translator

_LANGUAGE_MODEL_GRID = _CHANNEL_GRID = tuple(step / 10 for step in range(11))
_LENGTH_GRID = tuple(step / 4 for step in range(-4, 13))

NoisyChannelFeatures = Float[np.ndarray, "_ 4"]  # log p(y | x), log p(y), log p(x | y), |y|


class NoisyChannelWeights(Config):
    """The weights of all terms except log p(y | x), whose weight is 1."""

    language_model: float = Field(0.0, allow_inf_nan=False, description="Weight a of log p(y), the language model.")
    channel: float = Field(0.0, allow_inf_nan=False, description="Weight b of log p(x | y), the reverse model.")
    length: float = Field(0.0, allow_inf_nan=False, description="Weight c of the number of tokens of y.")


def noisy_channel_features(
    translator: Translator,
    sources: Sequence[str],
    candidates: Sequence[Sequence[str]],
    *,
    language_model: TextScorer | None = None,
    channel: Translator | None = None,
    target_language: str | None = None,
    source_language: str | None = None,
) -> list[NoisyChannelFeatures]:
    """Return log p(y | x), log p(y), log p(x | y) and |y| for each candidate of each source.

    If a model is not given, its log-probabilities are 0.

    Args:
        translator: The model for the direction from source to target. |y| is counted in its tokens.
        sources: The source texts.
        candidates: The candidates for each source.
        language_model: A language model for the target language that was trained on one-line documents.
        channel: A model for the reverse direction.
        target_language: The language of the candidates, if ``translator`` has several.
        source_language: The language of the sources, for imported models that need it.

    Raises:
        HeadwayError: A candidate cannot be scored. The message contains the source's number, counted from 1.
    """
    direct = score_candidates(
        translator, sources, candidates, target_language=target_language, source_language=source_language
    )
    texts = [text for group in candidates for text in group]
    rows = np.zeros((len(texts), 4))
    rows[:, 0] = [scored_target.log_probability for scored_target in direct]
    rows[:, 3] = [len(scored_target.tokens) for scored_target in direct]
    if language_model is not None:
        rows[:, 1] = [scored_target.log_probability for scored_target in language_model.score(texts)]
    if channel is not None:
        rows[:, 2] = [
            scored_target.log_probability
            for scored_target in score_candidates(channel, sources, candidates, reverse=True)
        ]
    return np.split(rows, np.cumsum([len(group) for group in candidates])[:-1])


def rank_by_noisy_channel(
    candidates: Sequence[Sequence[str]], features: Sequence[NoisyChannelFeatures], weights: NoisyChannelWeights
) -> list[list[RankedText]]:
    """Rank the candidates of each source, best first."""
    values = np.array([1.0, weights.language_model, weights.channel, weights.length])
    return [rank_by_scores(texts, (rows @ values).tolist()) for texts, rows in zip(candidates, features, strict=True)]


def tune_noisy_channel(
    candidates: Sequence[Sequence[str]],
    features: Sequence[NoisyChannelFeatures],
    references: Sequence[str],
    target_language: str | None = None,
) -> NoisyChannelWeights:
    """Return the weights with the best corpus BLEU, found by grid search.

    ``target_language`` determines the tokenization for BLEU.

    The models' weights are between 0 and about 1, and the weight of the length is between -1 and 3. A model whose
    feature is always 0 keeps the weight 0. Evaluate the weights on sentences that they were not tuned on.

    Raises:
        DataError: There are no sentences, or the numbers of candidates, features and references differ.
    """
    from headway.evaluation import tokenization_for
    from headway.evaluation.feature_weights import tune_feature_weights

    used = [any(bool(rows[:, column].any()) for rows in features) for column in (1, 2)]
    grids = [grid if has else (0.0,) for has, grid in zip(used, (_LANGUAGE_MODEL_GRID, _CHANNEL_GRID), strict=True)]
    weights = tune_feature_weights(
        features, candidates, references, [*grids, _LENGTH_GRID], tokenization_for(target_language)
    )
    return NoisyChannelWeights(**dict(zip(NoisyChannelWeights.model_fields, weights, strict=True)))
