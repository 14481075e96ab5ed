"""Dual conditional cross-entropy: how well two translation models agree that a pair is a translation.

Junczys-Dowmunt, "Dual Conditional Cross-Entropy Filtering of Noisy Parallel Corpora" (WMT 2018), equation 2. For a pair
(x, y) and models of both directions,

    |H(y | x) - H(x | y)| + (H(y | x) + H(x | y)) / 2

where H is the cross-entropy per token, EOS included, in nats. The first term is large if one side says more than the
other, as in truncated translations. The paper's score is exp of the negative value; here lower is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from headway.errors import HeadwayError

if TYPE_CHECKING:
    from headway.predict import Translator

Entropies = Float[npt.NDArray[np.float64], " N"]


def cross_entropies(model: Translator, sources: Sequence[str], targets: Sequence[str]) -> Entropies:
    """Return H(target | source) per token, in nats; NaN for a pair that the model cannot score, such as too long ones.

    A model in int8 computes the probabilities as its searches do.
    """
    results = model.score_each(sources, targets, as_searched=model.precision != "float32")
    return np.array(
        [
            np.nan
            if isinstance(result, HeadwayError)
            else -result.log_probability / len(result.token_log_probabilities)
            for result in results
        ],
        dtype=np.float64,
    )


def dual_cross_entropies(
    forward_model: Translator, reverse_model: Translator, sources: Sequence[str], targets: Sequence[str]
) -> Entropies:
    """Return the dual conditional cross-entropy of each pair; NaN if one of the models cannot score it.

    Args:
        forward_model: Translates sources into targets.
        reverse_model: Translates targets into sources.
        sources: The source texts.
        targets: The target texts.
    """
    forward = cross_entropies(forward_model, sources, targets)
    reverse = cross_entropies(reverse_model, targets, sources)
    return np.abs(forward - reverse) + (forward + reverse) / 2
