"""Dual conditional cross-entropy: how well two translation models agree that a pair is a translation.

Junczys-Dowmunt, "Dual Conditional Cross-Entropy Filtering of Noisy Parallel Corpora" (WMT 2018), equation 2. For a pair
(x, y) and models for both directions,

    |H(y | x) - H(x | y)| + (H(y | x) + H(x | y)) / 2

where H is the cross-entropy per token, EOS included, in nats. The paper's score is exp(-value); here, a lower value is
better.

Truncation hardly changes the mean over tokens, but it does change the cross-entropies at the end of a text. Given the
whole source, a model assigns a low probability to EOS where the target was cut off. Given the truncated text, a model
assigns low probabilities to the words whose translations are missing. So :mod:`headway.corpus.cleaning.coverage` also
uses the cross-entropies of the last tokens as features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from headway.errors import HeadwayError
from headway.text.languages import base_language, normalize_language_code

if TYPE_CHECKING:
    from headway.predict import ScoredTarget, Translator

NUM_FEATURES = 6  # number of features for each direction
_SHORTEST_END = 3  # tokens

Entropies = Float[npt.NDArray[np.float64], " N"]


@dataclass(frozen=True, eq=False)
class PairEntropies:
    """Cross-entropies of pairs from models for both directions, in nats. NaN for a pair that a model cannot score.

    Attributes:
        forward: Features of the targets given their sources; see :func:`entropy_features`.
        reverse: Features of the sources given their targets.
    """

    forward: Float[npt.NDArray[np.float64], "N 6"]
    reverse: Float[npt.NDArray[np.float64], "N 6"]

    @classmethod
    def compute(
        cls,
        forward_model: Translator,
        reverse_model: Translator,
        sources: Sequence[str],
        targets: Sequence[str],
        languages: tuple[str | None, str | None] = (None, None),
    ) -> PairEntropies:
        """Score pairs.

        Args:
            forward_model: Translates sources into targets.
            reverse_model: Translates targets into sources.
            sources: The source texts.
            targets: The target texts.
            languages: The languages of sources and targets, for multilingual models.
        """
        return cls(
            entropy_features(forward_model, sources, targets, languages),
            entropy_features(reverse_model, targets, sources, languages[::-1]),
        )

    @property
    def dual_cross_entropy(self) -> Entropies:
        """The dual conditional cross-entropy of each pair, equation 2."""
        forward, reverse = self.forward[:, 0], self.reverse[:, 0]
        return np.abs(forward - reverse) + (forward + reverse) / 2

    @property
    def features(self) -> Float[npt.NDArray[np.float64], "N 12"]:
        """All features of both directions."""
        return np.concatenate([self.forward, self.reverse], axis=1)


def entropy_features(
    model: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    languages: tuple[str | None, str | None] = (None, None),
) -> Float[npt.NDArray[np.float64], "N 6"]:
    """Return six features of each target, computed from the cross-entropies of its tokens given the source.

    The features are the mean of the cross-entropies, their sum, the cross-entropy of EOS, the cross-entropy of the
    token before EOS, the largest mean over three or more tokens at the end of the text, and the logarithm of the number
    of tokens.

    An int8 model computes the probabilities in the same way as its searches.
    """
    results = model.score_each(
        sources,
        targets,
        source_language=_choice(languages[0], model.source_languages),
        target_language=_choice(languages[1], model.target_languages),
        as_searched=model.precision != "float32",
    )
    return np.array([_features(result) for result in results], dtype=np.float64).reshape(-1, NUM_FEATURES)


def _choice(language: str | None, choices: Sequence[str]) -> str | None:
    """Return the model's code for a language, or None if the model does not need one."""
    if language is None or not choices:
        return None
    for form in (normalize_language_code, base_language):
        for code in choices:
            if form(code) == form(language):
                return code
    return language


def _features(result: ScoredTarget | HeadwayError) -> list[float]:
    if isinstance(result, HeadwayError):
        return [np.nan] * NUM_FEATURES
    entropies = -np.array(result.token_log_probabilities)
    of_text = entropies[:-1] if len(entropies) > 1 else entropies
    ends = np.cumsum(of_text[::-1]) / np.arange(1, len(of_text) + 1)  # the means of the last 1, 2, ... tokens
    return [
        float(entropies.mean()),
        float(entropies.sum()),
        float(entropies[-1]),
        float(of_text[-1]),
        float(ends[min(_SHORTEST_END, len(ends)) - 1 :].max()),
        float(np.log1p(len(entropies))),
    ]
