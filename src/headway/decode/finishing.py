"""The finished hypotheses of a request. Decides when a beam's group is done and which hypotheses are returned."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy.typing as npt
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.decode.request import DecodingOptions, Hypothesis, NextToken, Request, length_penalty, target_limit

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class EndedRows:
    """The E rows whose hypotheses end in the same step."""

    tokens: Int[Tensor, "E T"]  # right-aligned; the last token is EOS unless the request's rule ended the hypothesis
    log_probs: Float[Tensor, "E T"]
    chose_eos: Bool[Tensor, " E"] | None  # whether the model itself would choose EOS; None if no row was forced to end

    @cached_property
    def arrays(self) -> tuple[_Array, _Array, _Array | None]:
        """The three tensors as NumPy arrays in host memory, copied at the first access."""
        natural = None if self.chose_eos is None else self.chose_eos.numpy(force=True)
        return self.tokens.numpy(force=True), self.log_probs.numpy(force=True), natural


@dataclass(frozen=True)
class Ending:
    """A hypothesis that has ended: one row of an :class:`EndedRows`."""

    batch: EndedRows
    row: int
    length: int  # number of tokens before the last token
    ends_with_eos: bool
    score: float
    coverage: float  # the coverage penalty, which is part of the score
    ended_by_limit: bool  # whether the length limit ended the hypothesis
    unmet: tuple[int, ...]
    is_incomplete: bool  # whether a longer hypothesis could have met an unmet constraint

    @property
    def sort_key(self) -> tuple[int, float]:
        """The sort key: fewest unmet constraints first, then highest score."""
        return len(self.unmet), -self.score

    def hypothesis(self, top_tokens_per_step: tuple[tuple[NextToken, ...], ...] = ()) -> Hypothesis:
        """Return this row as a :class:`Hypothesis`, with the recorded top tokens."""
        tokens, log_probs, natural = self.batch.arrays
        start = tokens.shape[1] - self.length - 1
        token_log_probs = tuple(log_probs[self.row, start:].tolist())
        return Hypothesis(
            tokens=tuple(tokens[self.row, start : -1 if self.ends_with_eos else None].tolist()),
            log_probability=math.fsum(token_log_probs),
            score=self.score,
            token_log_probabilities=token_log_probs,
            finished=not self.ended_by_limit or natural is None or bool(natural[self.row]),
            unmet=self.unmet,
            top_tokens_per_step=top_tokens_per_step,
        )


class FinishedHypotheses:
    """The finished hypotheses of one request, by group of its beam, and the set of groups that are done.

    A group is done if it has no unfinished hypotheses, or if it needs no more finished hypotheses. The conditions are
    listed in :mod:`headway.decode.beam`.
    """

    def __init__(self, request: Request, options: DecodingOptions, groups: int, width: int) -> None:
        self._request, self._options, self._width = request, options, width
        self._limit = target_limit(request, options)
        self._endings: list[list[Ending]] = [[] for _ in range(groups)]
        self.closed_groups: set[int] = set()

    @property
    def is_complete(self) -> bool:
        """Whether all groups are done."""
        return len(self.closed_groups) == len(self._endings)

    @property
    def has_any(self) -> bool:
        """Whether any group has a finished hypothesis."""
        return any(self._endings)

    def length_penalty(self, length: int) -> float:
        """Return the divisor of a hypothesis's log-probability, for ``length`` tokens including EOS."""
        return length_penalty(length, self._options.length_penalty, self._options.normalization)

    def add(self, group: int, ending: Ending) -> None:
        """Add a finished hypothesis to a group."""
        self._endings[group].append(ending)

    def update_group(self, group: int, best_unfinished: float, *, may_repeat: bool) -> None:
        """Keep the best finished hypotheses of a group, and close the group if it can no longer improve.

        Args:
            group: Index of the group to update.
            best_unfinished: The score of the group's best unfinished hypothesis, before division by the length penalty.
                -inf means that no hypothesis is left.
            may_repeat: Whether different end tokens may have ended the same hypothesis. Of such endings, only the best
                is kept.
        """
        endings = self._endings[group]
        if not endings and best_unfinished > -math.inf:
            return
        endings.sort(key=lambda ending: ending.sort_key)
        if may_repeat:
            distinct: dict[tuple[int, ...], Ending] = {}
            for ending in endings:
                distinct.setdefault(ending.hypothesis().tokens, ending)
            endings[:] = distinct.values()
        del endings[self._width :]
        if not self._may_improve(endings, best_unfinished):
            self.closed_groups.add(group)

    def _may_improve(self, endings: list[Ending], best_unfinished: float) -> bool:
        """Return whether the search of a group must continue."""
        if best_unfinished == -math.inf:
            return False
        if self._options.stopping == "first":
            return len(endings) < self._width
        wanted = math.ceil(self._options.n_best / len(self._endings))
        if len(endings) < wanted or endings[wanted - 1].is_incomplete:
            return True
        # The upper bound of a longer hypothesis uses the length penalty at the limit, and a coverage penalty of 0.
        return endings[wanted - 1].score < best_unfinished / self.length_penalty(self._limit + 1)

    def best(self, top_tokens_per_step: tuple[tuple[NextToken, ...], ...]) -> list[Hypothesis]:
        """Return the hypotheses found for the request, best first, with the recorded top tokens."""
        if len(self._endings) == 1 and self._options.sampling is None:
            (endings,) = self._endings  # sorted; incomplete endings are returned only if no ending is complete
            return [
                ending.hypothesis(top_tokens_per_step)
                for ending in endings
                if ending.is_incomplete == endings[0].is_incomplete
            ]
        distinct: dict[tuple[tuple[int, ...], int], Hypothesis] = {}
        # Take the best hypothesis of each group, then each group's second best, and so on, because hypotheses of
        # different groups differ most.
        for rank in range(self._width):
            for group, endings in enumerate(self._endings):
                for ending in endings[rank : rank + 1]:
                    hypothesis = ending.hypothesis(top_tokens_per_step)
                    # The score uses only the model's probability, not the effects of diversity or temperature.
                    free = math.fsum(hypothesis.token_log_probabilities[len(self._request.prefix) :])
                    score = free / self.length_penalty(ending.length + 1) + ending.coverage
                    key = hypothesis.tokens, group if self._options.sampling else 0
                    distinct.setdefault(key, dataclasses.replace(hypothesis, score=score))
        return sorted(list(distinct.values())[: self._options.n_best], key=lambda hypothesis: -hypothesis.score)
