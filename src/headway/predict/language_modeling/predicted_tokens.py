"""The probability of each token in a given text, and the most probable tokens at each position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headway.errors import BundleError
from headway.predict.results import TokenAlternative
from headway.text.base import TextTokenizer

DEFAULT_ALTERNATIVES = 5  # default number of alternatives per position

_LOGITS_IN_MEMORY = 1 << 24  # maximum number of logits in memory: 64 MiB in float32


@dataclass(frozen=True)
class PredictedToken:
    """The probability of a token at its position in a text, and the probabilities of other tokens at this position.

    Attributes:
        token: The token in readable form.
        log_probability: Log-probability of the token given the source and the tokens before it, in nats.
        rank: Rank of the token by probability. 1 is the most probable token.
        forced: Whether the token was given to the model instead of predicted, such as a language code.
        alternatives: The most probable tokens at this position, best first.
        entropy: Entropy of the prediction in nats. The prediction is as uncertain as a choice among exp(entropy)
            equally probable tokens.
    """

    token: str
    log_probability: float
    rank: int
    forced: bool
    alternatives: tuple[TokenAlternative, ...]
    entropy: float | None = None


def predicted_tokens(
    projection: nn.Linear,
    hidden: Float[Tensor, "T D"],
    predicted: Sequence[int],
    forced: int,
    count: int,
    tokenizer: TextTokenizer,
) -> Iterator[PredictedToken]:
    """Yield the token and its alternatives at each position. Logits are computed for a few positions at a time."""
    size = max(1, _LOGITS_IN_MEMORY // projection.out_features)
    for start in range(0, len(predicted), size):
        tokens = predicted[start : start + size]
        log_probs = projection(hidden[start : start + size]).float().log_softmax(-1).cpu()
        chosen = log_probs.gather(1, torch.tensor(tokens).unsqueeze(1))
        if bool(chosen.isnan().any()):
            raise BundleError("the model's probabilities are NaN: its weights are damaged")
        ranks = (log_probs > chosen).sum(1) + 1
        best = log_probs.topk(min(count, log_probs.size(1)))
        # 0 log 0 is 0.
        entropies = -(log_probs.exp() * log_probs).nan_to_num().sum(1)
        rows: Any = zip(
            tokenizer.display(tokens),
            chosen.squeeze(1).tolist(),
            ranks.tolist(),
            entropies.tolist(),
            best.indices.tolist(),
            best.values.tolist(),
            strict=True,
        )
        for position, (token, value, rank, entropy, ids, values) in enumerate(rows, start):
            others = tuple(map(TokenAlternative, tokenizer.display(ids), values))
            yield PredictedToken(token, value, rank, position < forced, others, entropy)
