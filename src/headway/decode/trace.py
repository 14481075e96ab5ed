"""A step-by-step record of a search: each hypothesis, the model's predictions, and the tokens that the search chose.

The paper's decoder "generates an output sequence of symbols one element at a time" (section 3). A step predicts the
next token from the tokens of a hypothesis so far. Greedy search follows one hypothesis, beam search several.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headway.decode.protocol import Step
from headway.decode.ranking import Extensions
from headway.decode.request import Hypothesis, NextToken, Request


@dataclass(frozen=True)
class TracedHypothesis:
    """A hypothesis in one step of a search.

    Attributes:
        group: The index of its group in diverse beam search, or of its sample. 0 in plain beam search.
        tokens: The tokens that it had before the step, without BOS.
        score: The score that ranks it in the beam, before division by the length penalty: the log-probability of its
            tokens, including the effects of rules and penalties.
        top_tokens: The most probable next tokens under the model, best first.
        chosen: The tokens with which the search extended the hypothesis, best first; empty if the search dropped it. A
            forced token is chosen regardless of its probability.
    """

    group: int
    tokens: tuple[int, ...]
    score: float
    top_tokens: tuple[NextToken, ...]
    chosen: tuple[NextToken, ...]


@dataclass(frozen=True)
class SearchTrace:
    """The recorded search for one request.

    Attributes:
        request: The request that was decoded.
        steps: The hypotheses of each step, best first in each group.
        hypotheses: The result of the search, best first.
    """

    request: Request
    steps: tuple[tuple[TracedHypothesis, ...], ...]
    hypotheses: tuple[Hypothesis, ...]


class StepRecorder:
    """Records the steps of a search for a single request.

    Args:
        num_tokens: The number of most probable tokens to record for each hypothesis.
        eos: The token that ends a target.
        width: The maximum number of hypotheses that a group continues or finishes in a step.

    Attributes:
        steps: The hypotheses of each step so far.
    """

    def __init__(self, num_tokens: int, eos: int, width: int) -> None:
        self._num_tokens, self._eos, self._width = num_tokens, eos, width
        self.steps: list[tuple[TracedHypothesis, ...]] = []

    def record(
        self,
        step: Step,
        tokens: Int[Tensor, "R T"],
        scores: Float[Tensor, "1 G W"],
        considered: Extensions,
        ended: Bool[Tensor, "1 G C"] | None,
    ) -> None:
        """Record a step.

        Args:
            step: The model's predictions in this step.
            tokens: The tokens of each hypothesis before the step.
            scores: The score of each hypothesis before the step; -inf marks an empty slot.
            considered: The extensions from which the search chooses the hypotheses that finish or continue.
            ended: Mask of the extensions that end a hypothesis. None means that no extension ends one.
        """
        top = step.top_k(self._num_tokens, (), self._eos)
        width = scores.size(2)  # the first step has a single hypothesis
        chosen = self._chosen(considered, ended, width)
        rows = zip(tokens.tolist(), scores.flatten().tolist(), _as_next_tokens(top.tokens, top.log_probs), strict=True)
        hypotheses = [
            TracedHypothesis(row // width, tuple(row_tokens), score, best, tuple(chosen.get(row, ())))
            for row, (row_tokens, score, best) in enumerate(rows)
            if score > -torch.inf
        ]
        self.steps.append(tuple(sorted(hypotheses, key=lambda hypothesis: (hypothesis.group, -hypothesis.score))))

    def _chosen(
        self, considered: Extensions, ended: Bool[Tensor, "1 G C"] | None, rows_per_group: int
    ) -> dict[int, list[NextToken]]:
        """Return the extensions that the search chose, by the row that they extend.

        Extensions that end are finished if they are among the first ``width`` of their group. The first ``width``
        extensions that do not end continue.
        """
        has_ended = torch.zeros_like(considered.tokens, dtype=torch.bool) if ended is None else ended
        chosen: dict[int, list[NextToken]] = {}
        values = (considered.scores, considered.parents, considered.tokens, considered.log_probs, has_ended)
        for group, extensions in enumerate(zip(*(value[0].tolist() for value in values), strict=True)):
            num_continued = 0
            for rank, (score, parent, token, log_prob, is_end) in enumerate(zip(*extensions, strict=True)):
                if score == -torch.inf or (rank if is_end else num_continued) >= self._width:
                    continue
                num_continued += not is_end
                chosen.setdefault(group * rows_per_group + parent, []).append(NextToken(token, log_prob))
        return chosen


def _as_next_tokens(tokens: Int[Tensor, "R C"], log_probs: Float[Tensor, "R C"]) -> list[tuple[NextToken, ...]]:
    """Return the tokens of each row with a probability above 0."""
    return [
        tuple(NextToken(*pair) for pair in zip(*row, strict=True) if pair[1] > -torch.inf)
        for row in zip(tokens.tolist(), log_probs.tolist(), strict=True)
    ]
