"""Beam search with the length penalty of Wu et al. 2016.

The paper, section 6.1: beam 4, alpha 0.6, maximum output length input length + 50.

Each sentence keeps prefixes. A step extends each by every token, and the W best of all extensions survive: those that
end are finished hypotheses, the others go on as prefixes. Hypotheses are ranked by log P / length_penalty. A sentence
is done when no prefix is left, or none can become better than what is finished: a prefix only loses probability, so
log P over the penalty at the limit bounds its score. At its limit all prefixes are ended by force. Done, it leaves the
batch.

Stopping at the first W finished hypotheses, as many toolkits do, loses good translations: where the model is sure of
one, the other places of the beam hold noise, and W bits of noise may end before the one good prefix does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headway.decode.protocol import Hypothesis, SearchModel, StateT, length_penalty
from headway.errors import ConfigError

__all__ = ["beam_search"]


@dataclass
class _Sentence:
    """One sentence of the batch: where it stands in the input, how long it may get, and what is finished."""

    index: int
    limit: int
    finished: list[Hypothesis] = field(default_factory=list)

    def may_improve(self, bound: float, n_best: int) -> bool:
        """Whether a prefix, its score at most ``bound``, may come among the ``n_best`` first (-inf: none is left)."""
        return bound > -math.inf and (len(self.finished) < n_best or self.finished[n_best - 1].score < bound)


@torch.inference_mode()
def beam_search(
    model: SearchModel[StateT],
    source: Int[Tensor, "B S"],
    limits: Sequence[int],
    *,
    begin: int,
    end: int,
    beam_size: int = 4,
    alpha: float = 0.6,
    n_best: int = 1,
    forbidden: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Up to ``beam_size`` hypotheses for each source, best first; it goes on until the ``n_best`` first are sure.

    ``limits`` are the sentences' maximum lengths in tokens, the end symbol not counted; ``forbidden`` tokens are never
    chosen.
    """
    if beam_size < 1:
        raise ConfigError(f"beam_size = {beam_size}: expected at least 1 (1 is greedy search, the paper uses 4)")
    state = model.start(source)
    sentences = [_Sentence(index, limit) for index, limit in enumerate(limits)]
    results: list[list[Hypothesis]] = [[] for _ in limits]
    scores = torch.zeros(len(sentences), 1, device=source.device)  # (B, W) log-probabilities; W grows to beam_size
    prefixes = torch.full((len(sentences), 1, 1), begin, device=source.device)  # (B, W, 1 + step)
    while sentences:
        log_probs = model.advance(state, prefixes[:, :, -1].flatten()).float().log_softmax(-1)
        log_probs[:, list(forbidden)] = -torch.inf
        step = prefixes.size(2) - 1
        full = [row for row, sentence in enumerate(sentences) if sentence.limit <= step]
        totals = scores.unsqueeze(2) + torch.unflatten(log_probs, 0, scores.shape)
        totals[full] = _only(totals[full], end)
        candidates = _best(totals, beam_size)
        _collect(sentences, candidates, prefixes, end, alpha)
        scores = candidates.scores.masked_fill(candidates.tokens == end, -torch.inf)
        going = []
        for row, (sentence, best) in enumerate(zip(sentences, scores.amax(1).tolist(), strict=True)):
            sentence.finished.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
            results[sentence.index] = sentence.finished[:beam_size]
            if sentence.may_improve(best / length_penalty(sentence.limit + 1, alpha), n_best):
                going.append(row)
        rows = torch.tensor(going, dtype=torch.long, device=source.device)
        scores, parents, tokens = scores[rows], candidates.parents[rows], candidates.tokens[rows]
        state.select(
            (rows.unsqueeze(1) * prefixes.size(1) + parents).flatten(), rows if len(going) < len(sentences) else None
        )
        prefixes = torch.cat([prefixes[rows.unsqueeze(1), parents], tokens.unsqueeze(2)], dim=2)
        sentences = [sentences[row] for row in going]
    return results


@dataclass(frozen=True)
class _Candidates:
    """The best extensions of each sentence's prefixes, best first: (B, C) scores, prefixes they extend, tokens."""

    scores: Float[Tensor, "B C"]
    parents: Int[Tensor, "B C"]
    tokens: Int[Tensor, "B C"]


def _only(totals: Float[Tensor, "F W V"], token: int) -> Float[Tensor, "F W V"]:
    """``totals`` with every other token ruled out."""
    allowed = torch.full_like(totals, -torch.inf)
    allowed[:, :, token] = totals[:, :, token]
    return allowed


def _best(totals: Float[Tensor, "B W V"], beam_size: int) -> _Candidates:
    """The W best extensions (all of them, where there are fewer)."""
    vocab_size = totals.size(2)
    scores, indices = totals.flatten(1).topk(min(beam_size, totals.size(1) * vocab_size), dim=1)
    return _Candidates(scores, indices // vocab_size, indices % vocab_size)


def _collect(
    sentences: list[_Sentence],
    candidates: _Candidates,
    prefixes: Int[Tensor, "B W T"],
    end: int,
    alpha: float,
) -> None:
    """Give each sentence its hypotheses that end now."""
    penalty = length_penalty(prefixes.size(2), alpha)
    ends = (candidates.tokens == end) & candidates.scores.isfinite()
    for row, place in ends.nonzero().tolist():
        log_probability = float(candidates.scores[row, place])
        tokens = prefixes[row, candidates.parents[row, place], 1:].tolist()
        sentences[row].finished.append(Hypothesis(tuple(tokens), log_probability, log_probability / penalty))
