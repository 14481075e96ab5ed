"""Beam search with the length penalty of Wu et al. 2016 (the paper, section 6.1: beam 4, alpha 0.6, maximum input
length + 50).

Each sentence keeps its W most probable unfinished prefixes. A step extends each by every token; of all extensions the 2
W best are looked at: those that end and stand among the first W are finished hypotheses, the W best that do not end go
on. A sentence is done when W hypotheses are finished, or at its limit, where all prefixes are ended by force. It then
leaves the batch. Hypotheses are ranked by log P / length_penalty.
"""

from __future__ import annotations

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
    forbidden: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """Up to ``beam_size`` hypotheses for each source, best first.

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
        candidates = _best(totals, beam_size, end)
        _collect(sentences, candidates, prefixes, beam_size, end, alpha)
        for row in full:
            sentences[row].limit = -1
        going = [row for row, s in enumerate(sentences) if s.limit >= 0 and len(s.finished) < beam_size]
        for sentence in sentences:
            results[sentence.index] = sentence.finished
        rows = torch.tensor(going, dtype=torch.long, device=source.device)
        scores, parents, tokens = (part[rows] for part in candidates.unfinished(beam_size, end))
        state.select(
            (rows.unsqueeze(1) * prefixes.size(1) + parents).flatten(), rows if len(going) < len(sentences) else None
        )
        prefixes = torch.cat([prefixes[rows.unsqueeze(1), parents], tokens.unsqueeze(2)], dim=2)
        sentences = [sentences[row] for row in going]
    return [sorted(finished, key=lambda h: h.score, reverse=True)[:beam_size] for finished in results]


@dataclass(frozen=True)
class _Candidates:
    """The best extensions of each sentence's prefixes, best first: (B, C) scores, prefixes they extend, tokens."""

    scores: Float[Tensor, "B C"]
    parents: Int[Tensor, "B C"]
    tokens: Int[Tensor, "B C"]

    def unfinished(self, beam_size: int, end: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ``beam_size`` best that do not end: scores, parents, tokens.

        Where there are not so many, the rest have probability zero.
        """
        # Enders sort behind all others, which keep their order.
        scores = self.scores.masked_fill(self.tokens == end, -torch.inf)
        order = (self.tokens == end).to(torch.int8).sort(dim=1, stable=True).indices[:, :beam_size]
        return scores.gather(1, order), self.parents.gather(1, order), self.tokens.gather(1, order)


def _only(totals: Float[Tensor, "F W V"], token: int) -> Float[Tensor, "F W V"]:
    """``totals`` with every other token ruled out."""
    allowed = torch.full_like(totals, -torch.inf)
    allowed[:, :, token] = totals[:, :, token]
    return allowed


def _best(totals: Float[Tensor, "B W V"], beam_size: int, end: int) -> _Candidates:
    """The 2 W best extensions: at most W of them end, so at least W do not."""
    vocab_size = totals.size(2)
    scores, indices = totals.flatten(1).topk(min(2 * beam_size, totals.size(1) * vocab_size), dim=1)
    return _Candidates(scores, indices // vocab_size, indices % vocab_size)


def _collect(
    sentences: list[_Sentence],
    candidates: _Candidates,
    prefixes: Int[Tensor, "B W T"],
    beam_size: int,
    end: int,
    alpha: float,
) -> None:
    """Give each sentence its hypotheses that end now and stand among the first W candidates."""
    penalty = length_penalty(prefixes.size(2), alpha)
    first = slice(0, beam_size)
    ends = (candidates.tokens[:, first] == end) & candidates.scores[:, first].isfinite()
    for row, place in ends.nonzero().tolist():
        log_probability = float(candidates.scores[row, place])
        tokens = prefixes[row, candidates.parents[row, place], 1:].tolist()
        sentences[row].finished.append(Hypothesis(tuple(tokens), log_probability, log_probability / penalty))
