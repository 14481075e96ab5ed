"""Sentences in decoding: what a search keeps between steps, and what it keeps of a hypothesis that has ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic

import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from headway.decode.constraints import Constraints
from headway.decode.extension import Extensions
from headway.decode.protocol import Hypothesis, StateT
from headway.decode.request import Request
from headway.decode.rules import BannedSequences

__all__ = ["Batch", "Ending", "Sentence"]

NOTHING = -1  # in place of a token where a prefix has none


class Ended:
    """The E rows that end in one step."""

    def __init__(
        self, tokens: Int[Tensor, "E T"], own: Float[Tensor, "E T1"], natural: Bool[Tensor, " E"] | None
    ) -> None:
        self._tokens = tokens  # right-aligned
        self._own = own  # their log-probabilities, with those of the end symbol
        self._natural = natural  # whether the model, too, would have ended; None: nothing forced it

    @cached_property
    def read(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any] | None]:
        """The host's copy of all three, made when the first of their sentences is done."""
        natural = None if self._natural is None else self._natural.numpy(force=True)
        return self._tokens.numpy(force=True), self._own.numpy(force=True), natural


@dataclass(frozen=True)
class Ending:
    """A hypothesis that has ended: row ``row`` of those that ended in the same step."""

    ended: Ended
    row: int
    length: int
    score: float
    coverage: float  # the part of the score that is the coverage penalty
    forced: bool  # since there was no room for more
    unmet: tuple[int, ...] = ()
    lacking: bool = False  # whether a constraint is unmet that might have been met

    @property
    def order(self) -> tuple[int, float]:
        """By which endings are sorted: the fewest unmet constraints, then the best score."""
        return len(self.unmet), -self.score

    def hypothesis(self) -> Hypothesis:
        """It, read from the tensors."""
        tokens, own, natural = self.ended.read
        start = tokens.shape[1] - self.length
        log_probs = tuple(own[self.row, start:].tolist())
        return Hypothesis(
            tokens=tuple(tokens[self.row, start:].tolist()),
            log_probability=math.fsum(log_probs),
            score=self.score,
            token_log_probabilities=log_probs,
            finished=not self.forced or natural is None or bool(natural[self.row]),
            unmet=self.unmet,
        )


class Sentence:
    """One sentence in decoding."""

    def __init__(
        self, key: int, request: Request, limit: int, groups: int, keys: Sequence[int], constraints: Constraints | None
    ) -> None:
        self.key = key
        self.request = request
        self.limit = limit
        self.keys = keys  # of its random draws
        self.constraints = constraints
        self.length = 0  # of its prefixes, in tokens
        self.groups: list[list[Ending]] = [[] for _ in range(groups)]  # what each group has finished, best first
        self.closed: set[int] = set()  # the groups that are done

    @property
    def left(self) -> int:
        """Tokens that its prefixes may still grow by."""
        return self.limit - self.length

    @property
    def forced(self) -> int | None:
        """The next token of the request's prefix."""
        return self.request.prefix[self.length] if self.length < len(self.request.prefix) else None

    @property
    def done(self) -> bool:
        """Whether all groups are."""
        return len(self.closed) == len(self.groups)


class Batch(Generic[StateT]):
    """B sentences in decoding, with R = B * G * W rows: G groups of W prefixes for each."""

    def __init__(self, sentences: list[Sentence], state: StateT, scores: Float[Tensor, "B G W"]) -> None:
        rows = scores.numel()
        self.sentences = sentences
        self.state = state
        self.scores = scores  # of the prefixes; -inf: no prefix is here
        # Right-aligned, since sentences join at different times: the last tokens of a row are its prefix.
        self.tokens: Int[Tensor, "R T"] = torch.empty(rows, 0, dtype=torch.long, device=scores.device)
        self.own: Float[Tensor, "R T"] = torch.empty(rows, 0, device=scores.device)  # the model's log-probabilities
        self.coverage: Float[Tensor, "R S"] | None = None  # the sum of all attention to each source position
        self.nodes: Int[Tensor, "B G W"] | None = None  # of the automata of constraints
        if any(sentence.constraints for sentence in sentences):
            self.nodes = torch.zeros(scores.shape, dtype=torch.long, device=scores.device)
        self._banned: BannedSequences | None = None

    def last_tokens(self, begin: int) -> Int[Tensor, " R"]:
        """What the model advances by; all rows are at their first step, or none is."""
        rows, length = self.tokens.shape
        return self.tokens[:, -1] if length else self.tokens.new_full((rows,), begin)

    def endings(
        self,
        places: Sequence[tuple[int, int, int]],
        chosen: Extensions,
        natural: Bool[Tensor, " R"] | None,
        scores: Sequence[float],
        coverages: Sequence[float],
    ) -> list[Ending]:
        """What ends at each of ``places`` (sentence, group, extension)."""
        at = tuple(torch.tensor(places, device=self.scores.device).unbind(1))
        rows = self._rows(chosen)[at]
        own = torch.cat([self.own[rows], chosen.own[at].unsqueeze(1)], dim=1)
        ended = Ended(self.tokens[rows], own, None if natural is None else natural[rows])
        sentences = [self.sentences[sentence] for sentence, _, _ in places]
        return [
            Ending(ended, row, sentence.length, score, coverage, forced=sentence.left < 1)
            for row, (sentence, score, coverage) in enumerate(zip(sentences, scores, coverages, strict=True))
        ]

    def follow(self, chosen: Extensions, staying: Sequence[int]) -> None:
        """Go on with the ``chosen`` prefixes of the sentences that stay."""
        if not staying:
            self.sentences = []
            return
        whole = len(staying) == len(self.sentences)
        rows, scores, tokens, own = self._rows(chosen), chosen.scores, chosen.tokens, chosen.own
        self.nodes, index = chosen.nodes, None
        if not whole:
            index = torch.tensor(staying, dtype=torch.long, device=scores.device)
            rows, scores, tokens, own = (x[index] for x in (rows, scores, tokens, own))
            self.sentences = [self.sentences[at] for at in staying]
            if self.nodes is not None:
                constrained = any(sentence.constraints for sentence in self.sentences)
                self.nodes = self.nodes[index] if constrained else None
            self._banned = None
        if not (whole and self.scores.size(2) == scores.size(2) == 1):  # else every row goes on in its place
            rows = rows.flatten()
            self.state.select(rows, index)
            self.tokens, self.own = self.tokens[rows], self.own[rows]
            self.coverage = None if self.coverage is None else self.coverage[rows]
        self.scores = scores
        self.tokens = torch.cat([self.tokens, tokens.flatten().unsqueeze(1)], dim=1)
        self.own = torch.cat([self.own, own.flatten().unsqueeze(1)], dim=1)
        closed = []
        for at, sentence in enumerate(self.sentences):
            sentence.length += 1
            closed += [(at, group) for group in sentence.closed]
        if closed:
            self.scores[tuple(torch.tensor(closed, device=scores.device).unbind(1))] = -torch.inf
        if not whole:
            longest = max(sentence.length for sentence in self.sentences)
            self.tokens, self.own = self.tokens[:, -longest:], self.own[:, -longest:]

    def join(self, other: Batch[StateT]) -> None:
        """Append the sentences of another batch."""
        width = max(self.tokens.size(1), other.tokens.size(1))
        both = (self, other)
        self.state.join(other.state)
        if self.nodes is not None or other.nodes is not None:
            self.nodes = torch.cat(
                [torch.zeros_like(x.tokens[:, 0]).view_as(x.scores) if x.nodes is None else x.nodes for x in both]
            )
        if self.coverage is not None and other.coverage is not None:
            covered = max(self.coverage.size(1), other.coverage.size(1))
            self.coverage = torch.cat([F.pad(x, (0, covered - x.size(1))) for x in (self.coverage, other.coverage)])
        self.sentences = self.sentences + other.sentences
        self._banned = None
        self.scores = torch.cat([batch.scores for batch in both])
        self.tokens, self.own = (
            torch.cat([F.pad(x, (width - x.size(1), 0), value=NOTHING) for x in parts])
            for parts in ([batch.tokens for batch in both], [batch.own for batch in both])
        )

    def cover(self, attention: Float[Tensor, "R S"]) -> None:
        """Add what a step attended to."""
        if self.coverage is None:
            self.coverage = torch.zeros_like(attention)
        # Joined memories may be wider than what was attended to before.
        self.coverage = F.pad(self.coverage, (0, attention.size(1) - self.coverage.size(1))) + attention

    def coverage_penalties(self, weight: float) -> Float[Tensor, "B G W"]:
        """The sum over source positions of log min(coverage, 1), times ``weight`` (Wu et al. 2016, equation 14)."""
        assert self.coverage is not None, "cover comes first"
        lengths = [len(sentence.request.source) for sentence in self.sentences]
        each = len(self.coverage) // len(lengths)
        real = torch.arange(self.coverage.size(1), device=self.coverage.device) < torch.tensor(
            lengths, device=self.coverage.device
        ).repeat_interleave(each).unsqueeze(1)
        shares = self.coverage.clamp(min=torch.finfo(self.coverage.dtype).tiny, max=1).log()
        return weight * shares.masked_fill(~real, 0.0).sum(1).view_as(self.scores)

    def banned_sequences(self) -> BannedSequences:
        """What the sentences' requests ban."""
        if self._banned is None:
            self._banned = BannedSequences([one.request.banned for one in self.sentences], self.tokens.device)
        return self._banned

    def prefixes(self) -> Int[Tensor, "R T"]:
        """The prefixes with -1 where a row is shorter."""
        width = self.tokens.size(1)
        lengths = torch.tensor([sentence.length for sentence in self.sentences], device=self.tokens.device)
        missing = (width - lengths).repeat_interleave(self.tokens.size(0) // len(self.sentences))
        return self.tokens.masked_fill(torch.arange(width, device=missing.device) < missing.unsqueeze(1), NOTHING)

    def _rows(self, chosen: Extensions) -> Int[Tensor, "B G C"]:
        """The row that each extension extends."""
        sentences, groups, width = self.scores.shape
        first = torch.arange(0, sentences * groups * width, width, device=self.scores.device)
        return first.view(sentences, groups, 1) + chosen.parents
