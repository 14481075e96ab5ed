"""The step of a batch in which sentences have constraints: from tensors to candidates and back.

The choice itself is :func:`headway.decode.constraints.allocate`, on the host: it looks at few candidates, and only of
the sentences that have constraints.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from headway.decode.batch import Batch
from headway.decode.constraints import Candidate, Constraints, allocate
from headway.decode.extension import Extensions
from headway.decode.protocol import StateT
from headway.decode.ranker import Ranking

__all__ = ["extend_constrained"]


def extend_constrained(
    batch: Batch[StateT], ranking: Ranking, chosen: Extensions, *, width: int, end: int
) -> Extensions:
    """``chosen`` with the extensions of sentences that have constraints replaced by the ``width`` that serve these."""
    assert batch.nodes is not None, "sentences have constraints"
    count = chosen.scores.size(2)
    nodes = batch.nodes.squeeze(1).tolist()
    chosen = dataclasses.replace(
        chosen, **{name: getattr(chosen, name).clone() for name in ("scores", "parents", "tokens", "own")}
    )
    found_nodes = torch.zeros_like(chosen.tokens)
    for at, sentence in enumerate(batch.sentences):
        if sentence.constraints is None:
            continue
        candidates = _candidates(batch, ranking, at, sentence.constraints, nodes[at])
        found = allocate(sentence.constraints, nodes[at], candidates, count=width, left=sentence.left, end=end)
        missing = count - len(found)
        for target, values in (
            (chosen.scores, [one.score for one, _ in found] + [-math.inf] * missing),
            (chosen.parents, [one.parent for one, _ in found] + [0] * missing),
            (chosen.tokens, [one.token for one, _ in found] + [end] * missing),
            (chosen.own, [one.own for one, _ in found] + [0.0] * missing),
            (found_nodes, [node for _, node in found] + [0] * missing),
        ):
            target[at, 0] = torch.tensor(values, dtype=target.dtype, device=target.device)
    return dataclasses.replace(chosen, nodes=found_nodes)


def _candidates(
    batch: Batch[StateT], ranking: Ranking, at: int, constraints: Constraints, nodes: list[int]
) -> list[Candidate]:
    """The best extensions of each prefix of a sentence, and those that bring a constraint forward."""
    ranked = ranking.ranked
    columns = [ranked.gains[at, 0].tolist(), ranked.own[at, 0].tolist(), ranked.tokens[at, 0].tolist()]
    if batch.sentences[at].left > 0:
        wanted = [sorted(constraints.forward(node)) for node in nodes]
        for extra, column in zip(_looked_up(ranking, at * len(nodes), wanted), columns, strict=True):
            for row, values in zip(column, extra, strict=True):
                row += values
    found: dict[tuple[int, int], Candidate] = {}
    for parent, score in enumerate(batch.scores[at, 0].tolist()):
        for gain, own, token in zip(*(column[parent] for column in columns), strict=True):
            if score + gain != -math.inf:
                found.setdefault((parent, token), Candidate(score + gain, parent, token, own))
    return list(found.values())


def _looked_up(ranking: Ranking, first: int, wanted: list[list[int]]) -> list[list[list[Any]]]:
    """Gains and log-probabilities of the ``wanted`` tokens of the rows from ``first`` on, and these tokens."""
    assert ranking.gains is not None, "constraints are a rule"
    assert ranking.own is not None, "constraints are a rule"
    rows = [first + row for row, tokens in enumerate(wanted) for _ in tokens]
    index = torch.tensor([rows, [token for tokens in wanted for token in tokens]], dtype=torch.long)
    index = index.to(ranking.gains.device)

    def split(values: Tensor) -> list[list[float]]:
        flat = iter(values[index[0], index[1]].tolist())
        return [[next(flat) for _ in tokens] for tokens in wanted]

    return [split(ranking.gains), split(ranking.own), [list(tokens) for tokens in wanted]]
